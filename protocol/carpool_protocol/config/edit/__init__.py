"""Changes to a configuration file that keep everything else as it was written.

The files here know nothing of: what the change is good for.
"""
