"""The limit of open descriptors of this process.

Owns how far it is raised: the customary soft limit, 1024, is for programs that use `select`; up to the hard
limit a process may raise its own.

Knows nothing of: what descriptors are for.
"""

import contextlib
import resource


def raise_descriptor_limit(wished: int) -> int:
    """Raise this process's limit of open descriptors as far as allowed. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wished:
        wished = wished if hard == resource.RLIM_INFINITY else min(wished, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wished), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
