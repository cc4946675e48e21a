"""Starting server processes, finding all of them again, and ending them.

The files here know nothing of: what they say.
"""
