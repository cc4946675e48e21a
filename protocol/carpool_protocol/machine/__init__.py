"""Tools for pure cores: timers, the journal, work in slices.

The files here know nothing of: events and effects of any core.
"""
