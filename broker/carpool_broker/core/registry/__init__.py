"""Catalogs of all pools, and the view of them that a class of sessions has: names, URIs, approvals.

The files here know nothing of: open calls.
"""
