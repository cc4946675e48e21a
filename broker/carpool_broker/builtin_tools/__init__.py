"""Carpool's own tools: the search over all tools, and the results of the tools that list and read.

The files here know nothing of: which agent sees them (`core/registry`).
"""
