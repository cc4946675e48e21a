"""Server processes: starting them, finding all of them again, and ending them.

The files here know nothing of: the messages of servers.
"""
