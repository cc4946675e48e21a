"""The configuration in force: which files apply to which session, read and watched.

The files here know nothing of: servers' processes and calls.
"""
