"""Log files and the audit, read back: lines of every format that carpool has written, merged by time.

The files here know nothing of: the processes that write logs, the daemon's state.
"""
