"""The verbs of the command line, one file each.

The files here know nothing of: what other processes decide.
"""
