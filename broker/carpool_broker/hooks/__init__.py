"""Processes in which hooks run.

The files here know nothing of: when a hook is asked (`core/hooks`).
"""
