"""From a file to a configuration: includes, projects, trust, errors with their place.

The files here know nothing of: when files are read.
"""
