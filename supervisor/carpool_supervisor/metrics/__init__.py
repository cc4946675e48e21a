"""Memory and CPU of processes.

The files here know nothing of: limits on them.
"""
