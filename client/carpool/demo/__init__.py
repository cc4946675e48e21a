"""`carpool demo`: a fleet of agents on real servers, with and without carpool.

The files here know nothing of: the user's own carpool.
"""
