"""Pipes of running servers: lines in and out, bounded, and the log of stderr.

The files here know nothing of: what a line means.
"""
