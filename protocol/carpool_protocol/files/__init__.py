"""Files that processes of carpool share: state, switches, masked text, private modes.

The files here know nothing of: what they hold.
"""
