"""Questions to hooks and their verdicts, as lines.

The files here know nothing of: the moment at which a hook is asked.
"""
