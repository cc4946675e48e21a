"""Carpool's built-in tools: the search over all tools, and the results of the tools that list and read.

The files here know nothing of: the agents that see them (`core/registry`).
"""
