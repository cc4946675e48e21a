"""`carpool check --probe`: which sharing mode a server allows, found by trying.

The files here know nothing of: the running carpool.
"""
