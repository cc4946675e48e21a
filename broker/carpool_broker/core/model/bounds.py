"""What sessions may have open, waiting and unread (rule 3), and how long they wait (rule 14)."""

from collections.abc import Mapping

from msgspec import Struct


class ProfileLimits(Struct, frozen=True, kw_only=True):
    """What a profile bounds beside the rights. They hold for one session, or for all of one bearer token."""

    max_in_flight: int | None = None
    """Calls that are at servers; more wait in line."""
    calls_per_minute: int | None = None
    max_servers: int | None = None
    """Different servers that may be called."""


class SessionBounds(Struct, frozen=True, kw_only=True):
    """Admission's limits. Changed live by a reload; what is open stays open."""

    max_open_calls: int = 64
    max_waiting_calls: int = 256
    max_waiting_bytes: int = 16 * 1024 * 1024
    argument_budget_bytes: int = 256 * 1024 * 1024
    """Of the open calls of all sessions (`memory_budgets`)."""
    unread_budget_bytes: int = 256 * 1024 * 1024
    """Of all sessions: answers that their agents leave unread (`memory_budgets`)."""
    profiles: Mapping[str, ProfileLimits] = {}
    """By the name of the profile; only those that bound anything."""
    wait_s: float = 30.0
    park_s: float = 300.0
    """How long a call waits for a retry with what it wants of its agent (rule 14)."""
    return_s: float = 30.0
    """How long after the record came a session of an earlier broker may come back (rule 4). So long a request
    of one that is back waits for the record."""
