"""Files that a broker keeps: audit log, cached catalogs, approvals, overrides, the secret of pool keys.

The files here know nothing of: the use of what they keep.
"""
