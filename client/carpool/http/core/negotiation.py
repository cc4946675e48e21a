"""What `Accept` and `Content-Type` say (RFC 9110, 8.3 and 12.5.1), as far as MCP's transports ask.

Knows nothing of: which of them a request needs. Agents repeat themselves, so what was read is remembered.
"""

from functools import lru_cache


@lru_cache(maxsize=256)
def accepts(accept: str | None, needed: tuple[str, ...]) -> bool:
    """Whether an `Accept` header has all of these types. One that is missing has none, as in the SDKs."""
    ranges = set()
    for part in (accept or "").split(","):
        kind, *params = (each.strip().lower() for each in part.split(";"))
        if "q=0" not in params:
            ranges.add(kind)
    return all(
        kind in ranges or "*/*" in ranges or kind.partition("/")[0] + "/*" in ranges for kind in needed
    )


@lru_cache(maxsize=64)
def is_json(content_type: str | None) -> bool:
    """Whether a `Content-Type` is that of JSON, whatever its parameters."""
    return (content_type or "").partition(";")[0].strip().lower() == "application/json"
