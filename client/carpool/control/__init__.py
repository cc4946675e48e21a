"""A blocking connection to the running broker for verbs.

The files here know nothing of: what is asked over it.
"""
