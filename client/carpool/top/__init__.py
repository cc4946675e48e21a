"""The live view of `carpool top`: it asks the broker every second and draws what runs.

The files here know nothing of: how the broker counts, the verbs of the command line.
"""
