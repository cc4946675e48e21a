"""Reads configuration files: includes, projects, trust, and errors with their place.

The files here know nothing of: when files are read.
"""
