"""Records, events and effects of the supervisor's core.

The files here know nothing of: the parts that change the records.
"""
