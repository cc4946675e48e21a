"""Configuration files of other programs, translated into carpool's form.

The files here know nothing of: the places of these files on this machine.
"""
