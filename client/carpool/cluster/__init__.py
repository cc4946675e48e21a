"""Nodes of a cluster: the process that reaches other carpools, and what it decides.

Owns the way between the nodes: agents' sessions at other nodes, and what each node offers. A node's own
broker and supervisors do all the rest (docs/decisions/0052).
"""
