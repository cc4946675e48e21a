"""Records, events and effects of the supervisor's core.

The files here know nothing of: who changes them, and when.
"""
