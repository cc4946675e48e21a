"""Records, events and effects of the broker's core.

The files here know nothing of: who changes them, and when.
"""
