"""Configuration files of other programs, translated.

The files here know nothing of: which file belongs to which program on this machine.
"""
