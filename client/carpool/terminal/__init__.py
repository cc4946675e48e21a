"""Output of verbs: text, JSON, colours, exit codes, signals.

The files here know nothing of: what is shown.
"""
