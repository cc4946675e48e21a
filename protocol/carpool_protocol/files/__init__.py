"""Files that processes of carpool share: state files, overrides, masked text, private modes.

The files here know nothing of: the meaning of the content.
"""
