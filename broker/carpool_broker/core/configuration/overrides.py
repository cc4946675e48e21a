"""Overrides: servers that operators have switched on or off, or paused, without writing it into a file.

Owns the paused servers, which stay so until `carpool resume` or the end of carpool, and the switches of
`carpool enable` and `disable`. A global one holds until carpool stops, one of a session
until the session ends. The last command counts: a session's own switch goes before the global one, and a
later global one takes it back. Invariant (`check`): no session is kept without a switch. A switch that says
the same as the files is not kept.

Pure. Refuses to know: files, which configuration a session has.
"""

from collections.abc import Collection, Container, Iterable, Mapping

from msgspec.structs import replace

from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.ids import ServerName, SessionId

SessionOverrides = tuple[tuple[ServerName, bool], ...]
"""A session's own switches, in the order of their names; True is on."""

_WAYS = frozenset({"command", "url", "python"})


class Overrides:
    """All overrides of one carpool."""

    def __init__(self) -> None:
        self.global_overrides: dict[ServerName, bool] = {}
        """The global switches; True is on."""
        self.paused: set[ServerName] = set()
        """The servers that operators have paused, for all sessions."""
        self.session_overrides: dict[SessionId, dict[ServerName, bool]] = {}

    def set(self, server: ServerName, written: Collection[ServerConfig], *, on: bool) -> None:
        """Switch a server for all sessions. `written` has all servers of this name, as their files have
        them.
        """
        self.clear(server)
        if any(is_on(each) is not on and (can_run(each) or not on) for each in written):
            self.global_overrides[server] = on

    def set_for_session(self, session: SessionId, written: ServerConfig, *, on: bool) -> None:
        """Switch a server for one session. `written` is the server that the session sees under this name."""
        server = written.name
        own = self.session_overrides.setdefault(session, {})
        own.pop(server, None)
        if self.global_overrides.get(server, is_on(written)) is not on:
            own[server] = on
        if not own:
            del self.session_overrides[session]

    def clear(self, server: ServerName) -> bool:
        """Let the files decide again, for all sessions. Returns whether a switch was set."""
        found = self.global_overrides.pop(server, None) is not None
        for session, own in list(self.session_overrides.items()):
            found = own.pop(server, None) is not None or found
            if not own:
                del self.session_overrides[session]
        return found

    def servers_removed(self, servers: Iterable[ServerName]) -> bool:
        """These servers have left the configuration: a later server of the same name is another one."""
        gone = list(servers)
        paused = self.paused & set(gone)
        self.paused -= paused
        return bool([server for server in gone if self.clear(server)] or paused)

    def session_closed(self, session: SessionId) -> bool:
        """The session has closed. Returns whether it had a switch."""
        return self.session_overrides.pop(session, None) is not None

    def sessions_known(self, here: Container[SessionId]) -> bool:
        """No session returns any more: forget absent ones. Returns whether one of them had a switch."""
        gone = [session for session in self.session_overrides if session not in here]
        for session in gone:
            del self.session_overrides[session]
        return bool(gone)

    # --- what follows ----------------------------------------------------------------------------------

    def of_session(self, session: SessionId) -> SessionOverrides:
        """Return the switches of one session."""
        return tuple(sorted(self.session_overrides.get(session, {}).items()))

    def apply(
        self, servers: Mapping[ServerName, ServerConfig], own: SessionOverrides = ()
    ) -> dict[ServerName, ServerConfig]:
        """Return these servers as they are switched for a session. A server without anything to run stays as
        it is: it only replaces another one.
        """
        wished = {**self.global_overrides, **dict(own)}
        return {
            name: _opposite(server, on=wished[name])
            if name in wished and (can_run(server) or not wished[name])
            else server
            for name, server in servers.items()
        }

    def apply_to_config(self, config: Config, own: SessionOverrides = ()) -> Config:
        """Do the same for a whole configuration; return the same object if no switch concerns it."""
        if not (self.global_overrides or own):
            return config
        servers = self.apply(config.servers, own)
        return config if servers == config.servers else replace(config, servers=servers)

    def disabled_reason(self, server: ServerConfig, own: SessionOverrides = ()) -> str:
        """Return the reason why a server is disabled, as a sentence."""
        if server.name in dict(own):
            return "`carpool disable --session` switched it off for this agent, until its session ends."
        if server.name in self.global_overrides:
            return "`carpool disable` switched it off, until carpool stops."
        return f"{server.written_in} says so."

    def check(self) -> None:
        """Assert every invariant."""
        assert all(self.session_overrides.values()), "a session is kept without a switch"


def is_on(server: ServerConfig) -> bool | None:
    """Return what its file says; None if a variable decides, so that sessions can differ."""
    return None if ("disabled",) in server.late else not server.disabled


def can_run(server: ServerConfig) -> bool:
    """True if the server has anything to run. A disabled server may have nothing."""
    return any(text for path, text in server.templates() if path[0] in _WAYS)


def _opposite(server: ServerConfig, *, on: bool) -> ServerConfig:
    late = {path: text for path, text in server.late.items() if path != ("disabled",)}
    return replace(server, disabled=not on, late=late)
