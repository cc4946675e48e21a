"""Generated pages about settings and formats.

The files here know nothing of: how a file is read.
"""
