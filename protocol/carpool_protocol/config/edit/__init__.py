"""Edits of a configuration file that leave everything else as it was written.

The files here know nothing of: the purpose of an edit.
"""
