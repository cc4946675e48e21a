"""What is counted of calls and servers, as broker, supervisor, HTTP door and verbs share it.

The files here know nothing of: who counts, how a snapshot travels, how it is shown.
"""
