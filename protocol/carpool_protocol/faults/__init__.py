"""Every error that carpool itself answers with: code, sentences, and what to do next.

The files here know nothing of: the place where an error happens.
"""
