"""What is remembered of servers between runs: era, evidence on sharing, what ships with carpool.

The files here know nothing of: what is concluded from it (`core`).
"""
