"""The verdict on servers that are being started: which serve, which have failed, which are still starting.

Owns the moment at which a server is decided. It serves once it has greeted and listed its tools, or if it has
nothing to run. It has failed if it is not started any more, if it failed twice with the same words, or if its
limit is over. Pure: the broker's status and the time come in. Knows nothing of: how servers are started, what
repairs them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

LISTS_S: Final = 5.0
"""A server that has greeted gets this long to list its tools."""

_ENDED: Final = frozenset({"breaker_open", "half_open", "given_up", "stopped", "draining"})
_WITHOUT_POOL: Final = frozenset({"disabled", "misconfigured", "unset", "untrusted"})


class DecidedStart(Struct, frozen=True):
    """A server that is decided."""

    server: str
    ok: bool
    text: str
    """The reason without `ok`. If it is empty, the answer to the request to start the server has one."""
    row: Mapping[str, Any] = {}
    """Its row in the broker's status."""


class _Starting:
    """A server that is not decided yet."""

    def __init__(self, limit_s: float, row: Mapping[str, Any], asked_at: float) -> None:
        self.limit_s = limit_s
        self.was_serving = row.get("state") == "serving"
        self.restarts = _restarts(row)
        self.failure = ""
        self.seen_at: float | None = None
        """The time at which a process of it was first seen."""
        self.greeted_at: float | None = None
        self.asked_at = asked_at

    def started_s(self) -> float:
        """Return how long the start took; where its begin was missed, from the request on."""
        until_s = self.greeted_at if self.greeted_at is not None else self.asked_at
        began_s = self.seen_at if self.seen_at is not None and self.seen_at < until_s else self.asked_at
        return until_s - began_s


class StartWatch:
    """All servers of one request to start, until each is decided."""

    def __init__(
        self, limits: Mapping[str, float], status: Mapping[str, Any], now: float, *, of_all: bool = True
    ) -> None:
        """`limits`: by server, the seconds within which it must serve; `status`: from before the start.

        `of_all`: the seconds count from the request. Otherwise they count from the begin of the server's own
        start: only a few servers greet at the same time, and the others wait for them.
        """
        rows = status.get("servers") or {}
        self._starting = {
            name: _Starting(limit_s, rows.get(name) or {}, now) for name, limit_s in limits.items()
        }
        self._of_all = of_all
        self._began_at = now
        self._advanced_at = now
        """The last time at which a server began or was decided: the others may have waited for it."""

    def undecided(self) -> list[str]:
        """Return the servers that are still starting."""
        return list(self._starting)

    def give_up(self, server: str, text: str) -> DecidedStart:
        """Decide that a server which is still starting does not start, for this reason."""
        del self._starting[server]
        return DecidedStart(server, ok=False, text=text)

    def status_read(self, status: Mapping[str, Any], now: float) -> Iterator[DecidedStart]:
        """Take the broker's status in. Yields the servers that are decided by it, each once."""
        rows = status.get("servers") or {}
        for name in list(self._starting):
            row = rows.get(name) or {}
            decided = self._decide(name, self._starting[name], row, now)
            if decided is not None:
                del self._starting[name]
                self._advanced_at = now
                yield decided

    def _decide(
        self, name: str, server: _Starting, row: Mapping[str, Any], now: float
    ) -> DecidedStart | None:
        state, error = row.get("state"), str(row.get("last_error") or "")
        if server.seen_at is None and row.get("instances"):
            server.seen_at = self._advanced_at = now
        if state == "serving":
            server.greeted_at = now if server.greeted_at is None else server.greeted_at
            is_listed = (row.get("lists") or {}).get("from") in {"server", "file"}
            if is_listed or now - server.greeted_at >= LISTS_S:
                return DecidedStart(name, ok=True, text=_served_text(server, row), row=row)
        elif state == "offline":
            return DecidedStart(name, ok=True, text="", row=row)
        elif not row or state in _WITHOUT_POOL or state in _ENDED or self._has_repeated(server, row, error):
            return DecidedStart(name, ok=False, text=error, row=row)
        since = self._advanced_at if server.seen_at is None else server.seen_at
        if now - (self._began_at if self._of_all else since) < server.limit_s:
            return None
        text = f"it has not greeted after {server.limit_s:g} s"
        return DecidedStart(name, ok=False, text=error or text, row=row)

    def _has_repeated(self, server: _Starting, row: Mapping[str, Any], error: str) -> bool:
        """True if the server failed once more, with the same words as before."""
        restarts = _restarts(row)
        if restarts <= server.restarts or not error:
            return False
        again = error == server.failure or restarts > server.restarts + 1
        server.restarts, server.failure = restarts, error
        return again


def _restarts(row: Mapping[str, Any]) -> int:
    found = row.get("restarts")
    return found if isinstance(found, int) else 0


def _served_text(server: _Starting, row: Mapping[str, Any]) -> str:
    count = row.get("tools") or 0
    tools = f"{count} tool{'' if count == 1 else 's'}"
    return tools if server.was_serving else f"{tools}, {server.started_s():.1f} s"
