"""How many calls, bytes and calls per minute a session, a token and all together may use.

The files here know nothing of: what a call is about.
"""
