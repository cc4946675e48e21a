"""JSON with comments, and problems with their lines.

The files here know nothing of: settings.
"""
