"""The configuration in force: reads and watches files, and decides which files apply to which session.

The files here know nothing of: servers' processes and calls.
"""
