"""The live view of `carpool top`: what runs now, drawn from what the broker answers every second.

The files here know nothing of: how the broker counts, the verbs of the command line.
"""
