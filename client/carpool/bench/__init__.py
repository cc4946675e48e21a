"""`carpool bench`: load on a server through carpool and directly.

The files here know nothing of: scenarios of the repository's own `bench`.
"""
