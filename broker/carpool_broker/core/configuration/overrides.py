"""Which servers operators have switched on or off without a word in any file.

Owns the switches of `carpool enable` and `disable`: one for everybody holds until carpool stops, one of a
session's own until that ends. A session's own is stronger, and one for everybody that comes later takes it
back: the last word counts. Invariant (`check`): no session is kept without a switch. A switch that says what
would be so without it is not kept, so nothing is left over when a file comes to say the same.

Pure. Knows nothing of: files, which configuration a session has.
"""

from collections.abc import Collection, Container, Iterable, Mapping

from msgspec.structs import replace

from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.ids import ServerName, SessionId

SessionOverrides = tuple[tuple[ServerName, bool], ...]
"""A session's own switches, in order of their names; True: on."""

_WAYS = frozenset({"command", "url", "python"})


class Overrides:
    """All of them."""

    def __init__(self) -> None:
        self.global_overrides: dict[ServerName, bool] = {}
        """True: on."""
        self.session_overrides: dict[SessionId, dict[ServerName, bool]] = {}

    def set(self, server: ServerName, written: Collection[ServerConfig], *, on: bool) -> None:
        """For everybody. `written`: all servers of this name, as their files have them."""
        self.clear(server)
        if any(is_on(each) is not on and (can_run(each) or not on) for each in written):
            self.global_overrides[server] = on

    def set_for_session(self, session: SessionId, written: ServerConfig, *, on: bool) -> None:
        """For one session; `written`: the server that it sees under this name."""
        server = written.name
        own = self.session_overrides.setdefault(session, {})
        own.pop(server, None)
        if self.global_overrides.get(server, is_on(written)) is not on:
            own[server] = on
        if not own:
            del self.session_overrides[session]

    def clear(self, server: ServerName) -> bool:
        """What the files say counts again, for everybody. Whether anything else did."""
        found = self.global_overrides.pop(server, None) is not None
        for session, own in list(self.session_overrides.items()):
            found = own.pop(server, None) is not None or found
            if not own:
                del self.session_overrides[session]
        return found

    def servers_removed(self, servers: Iterable[ServerName]) -> bool:
        """These have left the configuration: one that comes under this name later is another server."""
        return bool([server for server in servers if self.clear(server)])

    def session_closed(self, session: SessionId) -> bool:
        """The session is over. Whether it had any switch."""
        return self.session_overrides.pop(session, None) is not None

    def sessions_known(self, here: Container[SessionId]) -> bool:
        """Nobody comes back any more: who is not here is gone. Whether anybody of them had any switch."""
        gone = [session for session in self.session_overrides if session not in here]
        for session in gone:
            del self.session_overrides[session]
        return bool(gone)

    # --- what follows ----------------------------------------------------------------------------------

    def of_session(self, session: SessionId) -> SessionOverrides:
        """Those of one session."""
        return tuple(sorted(self.session_overrides.get(session, {}).items()))

    def apply(
        self, servers: Mapping[ServerName, ServerConfig], own: SessionOverrides = ()
    ) -> dict[ServerName, ServerConfig]:
        """These servers as they are switched, for a session with these switches of its own. One that says
        nothing to run stays as it is: it only takes the place of another.
        """
        wished = {**self.global_overrides, **dict(own)}
        return {
            name: _opposite(server, on=wished[name])
            if name in wished and (can_run(server) or not wished[name])
            else server
            for name, server in servers.items()
        }

    def apply_to_config(self, config: Config, own: SessionOverrides = ()) -> Config:
        """The same for a whole configuration; the very one where no switch concerns it."""
        if not (self.global_overrides or own):
            return config
        servers = self.apply(config.servers, own)
        return config if servers == config.servers else replace(config, servers=servers)

    def disabled_reason(self, server: ServerConfig, own: SessionOverrides = ()) -> str:
        """Why a server that is disabled is so, as a sentence."""
        if server.name in dict(own):
            return "`carpool disable --session` switched it off for this agent, until its session ends."
        if server.name in self.global_overrides:
            return "`carpool disable` switched it off, until carpool stops."
        return f"{server.written_in} says so."

    def check(self) -> None:
        """Assert every invariant."""
        assert all(self.session_overrides.values()), "a session is kept without a switch"


def is_on(server: ServerConfig) -> bool | None:
    """What its file says; None: a variable decides, so that sessions may differ."""
    return None if ("disabled",) in server.late else not server.disabled


def can_run(server: ServerConfig) -> bool:
    """Whether there is anything to run. A server may be disabled without."""
    return any(text for path, text in server.templates() if path[0] in _WAYS)


def _opposite(server: ServerConfig, *, on: bool) -> ServerConfig:
    late = {path: text for path, text in server.late.items() if path != ("disabled",)}
    return replace(server, disabled=not on, late=late)
