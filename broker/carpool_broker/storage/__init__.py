"""Files that a broker keeps: audit, cached catalogs, approvals, switches, the secret of pools.

The files here know nothing of: why something is kept.
"""
