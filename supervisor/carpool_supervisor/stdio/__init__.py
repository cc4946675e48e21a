"""Pipes of running servers: bounded lines in and out, and the log of stderr.

The files here know nothing of: the meaning of a line.
"""
