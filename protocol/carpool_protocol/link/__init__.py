"""Messages between broker and supervisor, their encoding, and the two ends.

The files here know nothing of: the use of a message.
"""
