"""Pools of instances: number, starts and ends, health, limits, and the state that the broker is told.

The files here know nothing of: the placement of calls (`core/calls`).
"""
