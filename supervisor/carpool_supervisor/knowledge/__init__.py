"""Knowledge about servers between runs: era, evidence on sharing, the well-known list.

The files here know nothing of: decisions that follow from it (`core`).
"""
