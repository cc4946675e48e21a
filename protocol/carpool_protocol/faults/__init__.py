"""Every error that carpool tells: code, words, and what to do.

The files here know nothing of: where an error happens.
"""
