"""What `carpool` verbs and `/health` ask a broker and tell it to do.

The files here know nothing of: the state of calls and sessions: it asks the core for it.
"""
