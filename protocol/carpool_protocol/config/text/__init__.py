"""JSON with comments, and problems with their line.

The files here know nothing of: settings.
"""
