"""Pools of instances: how many, their starts and ends, health, limits, and their state as told.

The files here know nothing of: which instance takes a call (`core/calls`).
"""
