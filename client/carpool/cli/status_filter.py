"""The filters of `status` and `ps`: by server, by session, by state.

Pure. Owns what a filter leaves: servers and sessions that it names, and nothing of the kind it does not ask
for. Sums (`totals`, `processes`) and the verdict stay those of the whole carpool. Refuses to know how the
facts are shown.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

import click

Facts = dict[str, Any]

STATES: Final = (
    *("cold", "starting", "serving", "backing_off", "breaker_open", "half_open", "given_up", "stopped"),
    *("draining", "disabled", "misconfigured", "unset", "untrusted", "away", "offline"),
)
"""The states of a server (docs/json.md)."""
INSTANCE_STATES: Final = (
    *("spawning", "greeting", "serving", "draining", "stopping", "terminating", "killed"),
)
"""The states of an instance (docs/states.md)."""
_SHOWN_CHARACTERS: Final = 80


class StatusFilter(NamedTuple):
    """The servers, sessions and states that are asked for; empty: all."""

    servers: Collection[str] = ()
    sessions: Collection[str] = ()
    states: Collection[str] = ()

    def is_empty(self) -> bool:
        """Return True if everything is asked for."""
        return not (self.servers or self.sessions or self.states)

    def shows_servers(self) -> bool:
        """Return True unless only sessions are asked for."""
        return bool(self.servers or self.states or not self.sessions)

    def shows_sessions(self) -> bool:
        """Return True unless only servers are asked for."""
        return bool(self.sessions or self.is_empty())


EVERYTHING: Final = StatusFilter()


def unknown_name(facts: Facts, wanted: StatusFilter) -> str:
    """Return the sentence about the first name that nothing has; empty if there is none."""
    known = facts.get("servers") or {}
    for name in wanted.servers:
        if name not in known:
            from carpool_protocol.config.text.problems import no_such_server  # late: hardly ever needed

            return no_such_server(name, known, "here")
    sessions = facts.get("sessions") or []
    for name in wanted.sessions:
        if not any(_is_of(session, [name]) for session in sessions):
            return f"there is no session {name[:_SHOWN_CHARACTERS]!r} here; `carpool status` shows them"
    return ""


def filtered(facts: Facts, wanted: StatusFilter) -> Facts:
    """Return the facts with the servers and the sessions that are asked for."""
    if wanted.is_empty():
        return facts
    servers = facts.get("servers") or {}
    return {
        **facts,
        "servers": {
            name: server
            for name, server in servers.items()
            if wanted.shows_servers()
            and (not wanted.servers or name in wanted.servers)
            and (not wanted.states or server["state"] in wanted.states)
        },
        "sessions": [
            session
            for session in facts.get("sessions") or []
            if wanted.shows_sessions() and _is_of(session, wanted.sessions)
        ],
    }


def filtered_processes(rows: Iterable[Facts], facts: Facts, wanted: StatusFilter) -> list[Facts]:
    """Return the processes of these servers, in these states, leased to these sessions or their shims."""
    sessions = facts.get("sessions") or []
    ids = {session["id"] for session in sessions if _is_of(session, wanted.sessions)}
    return [
        row
        for row in rows
        if (not wanted.servers or row["server"] in wanted.servers)
        and (not wanted.states or row["state"] in wanted.states)
        and (not wanted.sessions or row["holder"] in ids or (row["role"] == "shim" and row["id"] in ids))
    ]


def _is_of(session: Facts, names: Collection[str]) -> bool:
    """Return True if a session, its agent or its token has one of these names; also for no names."""
    if not names:
        return True
    return any(session.get(key) in names for key in ("id", "agent", "principal") if session.get(key))


def filter_options(states: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator with `--server`, `--session` and `--state`, each as often as needed."""

    def add(verb: Callable[..., None]) -> Callable[..., None]:
        for option in (
            click.option(
                "--state",
                "states",
                multiple=True,
                type=click.Choice(list(states)),
                help="Only in this state.",
            ),
            click.option(
                "--session",
                "sessions",
                multiple=True,
                metavar="ID|NAME",
                help="Only this session, or those of an agent or a token of this name.",
            ),
            click.option("--server", "servers", multiple=True, metavar="NAME", help="Only this server."),
        ):
            verb = option(verb)
        return verb

    return add
