"""Tools of pure cores: timers, journal, work in slices.

The files here know nothing of: events and effects of any core.
"""
