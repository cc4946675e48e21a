"""The methods `carpool/switch` (`carpool enable` and `disable`) and `carpool/pause` (`pause`, `resume`).

Owns the rules for an override and the operator's answer: the state now, how long it lasts, and the files that
say otherwise.

Knows nothing of: the effect of an override on sessions (`configuration`), its storage (`override_store`).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from typing import Any, Literal

from msgspec import Struct

from carpool_broker.admin.methods import Act, Methods
from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.configuration.overrides import can_run, is_on
from carpool_broker.core.model.events import PausedServersChanged
from carpool_protocol.config.reading.merge import cap_problem
from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.config.text.problems import no_such_server
from carpool_protocol.ids import ServerName, SessionId

log = logging.getLogger("carpool.broker")

Reload = Callable[[], Awaitable[list[str]]]
"""Reads the configuration again. Returns its problems if it is broken."""
Until = Literal["", "carpool stops", "the session ends"]


class CannotOverrideError(Exception):
    """The override is refused. The text says why."""


class OverrideParams(Struct):
    """Params of `carpool/switch`."""

    server: str
    on: bool | None = None
    """None: remove the override, so that the files decide, as they are now."""
    session: str = ""
    """Only for this session; empty: for all."""
    only_check: bool = False
    """True: only check if the override is allowed."""


class PauseParams(Struct):
    """Params of `carpool/pause`."""

    servers: list[str]
    paused: bool
    """False: the servers are resumed."""


def _act_of_override(params: OverrideParams) -> Act | None:
    if params.only_check:
        return None
    verb = "follow files" if params.on is None else "enable" if params.on else "disable"
    return Act(verb, [params.server], params.session)


class OverrideCommands:
    """Answers `carpool/switch` and `carpool/pause`. `follow`: lets the core take changes."""

    def __init__(
        self,
        configuration: Configuration,
        follow: Callable[[Sequence[ConfigurationChange | PausedServersChanged]], None],
    ) -> None:
        self._configuration = configuration
        self._apply_changes = follow

    def register(self, methods: Methods, core: BrokerCore, reload: Reload) -> None:
        """Add `carpool/switch` to the table. `reload` reads the files before they decide again."""

        async def switch(_: SessionId, params: OverrideParams) -> dict[str, Any]:
            problems = await reload() if params.on is None else []
            agents = {each.id for each in core.sessions.values() if not each.control}
            try:
                return self.switch(params, agents, problems)
            except CannotOverrideError as error:
                return {"server": params.server, "refused": str(error)}

        methods.add("carpool/switch", OverrideParams, switch, _act_of_override)
        methods.add(
            "carpool/pause",
            PauseParams,
            lambda _, params: self.pause(params),
            lambda params: Act("pause" if params.paused else "resume", params.servers),
        )

    def pause(self, params: PauseParams) -> dict[str, Any]:
        """Pause or resume servers. Returns `{"results": [{"server", "ok", "text"}]}`, in their order."""
        configuration = self._configuration
        paused, known = configuration.overrides.paused, configuration.layers.server_names()
        results: list[dict[str, Any]] = []
        for name in map(ServerName, params.servers):
            if name not in known:
                text = no_such_server(name, known)
            else:
                is_new = (name in paused) is not params.paused
                text = ("" if is_new else "already ") + ("paused" if params.paused else "running")
                (paused.add if params.paused else paused.discard)(name)
            results.append({"server": name, "ok": name in known, "text": text})
        configuration.override_store.save()
        self._apply_changes([PausedServersChanged(frozenset(paused))])
        log.info("servers paused by operators: %s", ", ".join(sorted(paused)) or "none")
        return {"results": results}

    def switch(
        self, params: OverrideParams, sessions: Collection[SessionId], problems: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Set or remove an override. Returns `{server, session, enabled, until, disabled_in, problems}`.

        `sessions`: ids of agents. `problems`: of the configuration, which was read again. Raises
        `CannotOverrideError`.
        """
        name, session = ServerName(params.server), SessionId(params.session)
        if session:
            if params.on is None:
                raise CannotOverrideError("A session has no configuration file that could decide.")
            until = self._switch_for_session(
                session, name, sessions, on=params.on, only_check=params.only_check
            )
        else:
            if not problems:  # otherwise the file is not in force, and the override stays
                self._switch_for_all(name, on=params.on, only_check=params.only_check)
            until = "carpool stops" if name in self._configuration.overrides.global_overrides else ""
        return {
            "server": name,
            "session": session,
            "enabled": self._enabled(name, session),
            "until": until,
            "disabled_in": self._configuration.layers.disabled_in(name),
            "problems": [*problems],
        }

    def sessions_known(self, here: Container[SessionId]) -> None:
        """Remove the overrides of sessions that are not `here`, because none can resume any more."""
        if self._configuration.overrides.sessions_known(here):
            self._configuration.override_store.save()

    def _switch_for_all(self, name: ServerName, *, on: bool | None, only_check: bool) -> None:
        configuration, switches = self._configuration, self._configuration.overrides
        written = configuration.layers.servers_named(name)
        if on is None:
            if switches.clear(name):
                self._apply_changes(configuration.overrides_changed())
            return
        if not written:
            raise CannotOverrideError(self._unknown(name))
        self._check_runnable(name, written, on=on)
        if only_check:
            return
        switches.set(name, written, on=on)
        log.info("%s is switched %s by an operator", name, "on" if on else "off", extra={"server": name})
        self._apply_changes(configuration.overrides_changed())

    def _switch_for_session(
        self,
        session: SessionId,
        name: ServerName,
        sessions: Collection[SessionId],
        *,
        on: bool,
        only_check: bool,
    ) -> Until:
        configuration, switches = self._configuration, self._configuration.overrides
        if session not in sessions:
            there = ", ".join(sorted(sessions)) or "none"
            raise CannotOverrideError(f"There is no session with this id. Sessions: {there}.")
        written = configuration.configured_server(session, name)
        if written is None:
            if configuration.layers.servers_named(name):
                raise CannotOverrideError(
                    "This session does not have the server: it belongs to another workspace, or its project "
                    "is not trusted."
                )
            raise CannotOverrideError(self._unknown(name))
        self._check_runnable(name, [written], on=on)
        if only_check:
            return ""
        switches.set_for_session(session, written, on=on)
        extra = {"server": name, "session": session}
        log.info("%s is switched %s for %s by an operator", name, "on" if on else "off", session, extra=extra)
        self._apply_changes(configuration.overrides_changed())
        return "the session ends" if name in dict(switches.of_session(session)) else ""

    def _check_runnable(self, name: ServerName, written: list[ServerConfig], *, on: bool) -> None:
        """Check that the server can be enabled: it has something to run, and all that must run fits (rule
        14).
        """
        if on and not any(map(can_run, written)):
            files = " and ".join(sorted({each.file for each in written}))
            raise CannotOverrideError(f"There is nothing to run: {files} only disables the server.")
        config = self._configuration.config
        problem = cap_problem(
            self._configuration.overrides.apply_to_config(config, ((name, on),)), config.file
        )
        if on and problem is not None:
            raise CannotOverrideError(f"{problem.text}.")

    def _enabled(self, name: ServerName, session: SessionId) -> bool:
        """True if any session, or this one, has the server now."""
        configuration = self._configuration
        found = configuration.layers.servers_named(name)
        if session:
            own_server = configuration.configured_server(session, name)
            found = [] if own_server is None else [own_server]
        own = configuration.overrides.of_session(session)
        seen = [configuration.overrides.apply({name: each}, own)[name] for each in found]
        return any(is_on(each) is not False for each in seen)

    def _unknown(self, name: ServerName) -> str:
        configuration = self._configuration
        if (why := configuration.config.unusable.get(name)) is not None:
            return f"The server cannot be run as it is configured: {why}."
        text = no_such_server(name, configuration.layers.configured_servers())
        return f"{text[:1].upper()}{text[1:]}"
