"""The stdio shim of an agent: the standard library only, a few megabytes.

The files here know nothing of: JSON, on the way of a line.
"""
