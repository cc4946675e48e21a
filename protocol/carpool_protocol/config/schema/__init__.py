"""The settings and their types.

The files here know nothing of: files.
"""
