"""The request behind `carpool enable` and `disable`: `carpool/switch`.

Owns what may be switched and what the operator is told about it: what is in force now, until when, and which
files say otherwise.

Knows nothing of: what a switch does to sessions (`configuration`), how it is kept (`override_store`).
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Container, Sequence
from typing import Any, Literal

from msgspec import Struct

from carpool_broker.admin.methods import Methods
from carpool_broker.config.configuration import Configuration, ConfigurationChange
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.configuration.overrides import can_run, is_on
from carpool_protocol.config.reading.merge import cap_problem
from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.config.text.problems import no_such_server
from carpool_protocol.ids import ServerName, SessionId

log = logging.getLogger("carpool.broker")

Reload = Callable[[], Awaitable[list[str]]]
"""Reads the configuration again. Its problems, where it is broken."""
Until = Literal["", "carpool stops", "the session ends"]


class CannotOverrideError(Exception):
    """It is not to be switched. The text says why."""


class OverrideParams(Struct):
    """What is asked for."""

    server: str
    on: bool | None = None
    """None: what the files say counts again, as they are now."""
    session: str = ""
    """For this one alone; empty: for everybody."""
    only_check: bool = False
    """Say whether it may be, and leave it as it is."""


class OverrideCommands:
    """`follow`: have the core take what follows."""

    def __init__(
        self, configuration: Configuration, follow: Callable[[list[ConfigurationChange]], None]
    ) -> None:
        self._configuration = configuration
        self._apply_changes = follow

    def register(self, methods: Methods, core: BrokerCore, reload: Reload) -> None:
        """Put `carpool/switch` into the table. `reload` reads the files that are to count again."""

        async def switch(_: SessionId, params: OverrideParams) -> dict[str, Any]:
            problems = await reload() if params.on is None else []
            agents = {each.id for each in core.sessions.values() if not each.control}
            try:
                return self.switch(params, agents, problems)
            except CannotOverrideError as error:
                return {"server": params.server, "refused": str(error)}

        methods.add("carpool/switch", OverrideParams, switch)

    def switch(
        self, params: OverrideParams, sessions: Collection[SessionId], problems: Sequence[str] = ()
    ) -> dict[str, Any]:
        """`{server, session, enabled, until, disabled_in, problems}`. `sessions`: those of agents.
        `problems`: of the configuration, which is read again before its files are to count. Raises
        `CannotOverrideError`.
        """
        name, session = ServerName(params.server), SessionId(params.session)
        if session:
            if params.on is None:
                raise CannotOverrideError("A session has no file to go by.")
            until = self._switch_for_session(
                session, name, sessions, on=params.on, only_check=params.only_check
            )
        else:
            if not problems:  # else what the file says is not in force: the switch says it still
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
        """Nobody comes back any more: what sessions had of their own that are not `here` ends with them."""
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
        log.info("%s is switched %s by an operator", name, "on" if on else "off")
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
            raise CannotOverrideError(f"There is no session of this id. There are: {there}.")
        written = configuration.configured_server(session, name)
        if written is None:
            if configuration.layers.servers_named(name):
                raise CannotOverrideError(
                    "This session does not see the server: it is another workspace's, or awaits trust."
                )
            raise CannotOverrideError(self._unknown(name))
        self._check_runnable(name, [written], on=on)
        if only_check:
            return ""
        switches.set_for_session(session, written, on=on)
        log.info("%s is switched %s for %s by an operator", name, "on" if on else "off", session)
        self._apply_changes(configuration.overrides_changed())
        return "the session ends" if name in dict(switches.of_session(session)) else ""

    def _check_runnable(self, name: ServerName, written: list[ServerConfig], *, on: bool) -> None:
        """Whether it can be on: something is to be run, and what must always run has to fit (rule 14)."""
        if on and not any(map(can_run, written)):
            files = " and ".join(sorted({each.file for each in written}))
            raise CannotOverrideError(f"It is only taken away in {files}: nothing is said there to be run.")
        config = self._configuration.config
        problem = cap_problem(
            self._configuration.overrides.apply_to_config(config, ((name, on),)), config.file
        )
        if on and problem is not None:
            raise CannotOverrideError(f"{problem.text}.")

    def _enabled(self, name: ServerName, session: SessionId) -> bool:
        """Whether anybody sees it now, or this session does."""
        configuration = self._configuration
        found = configuration.layers.servers_named(name)
        if session:
            mine = configuration.configured_server(session, name)
            found = [] if mine is None else [mine]
        own = configuration.overrides.of_session(session)
        seen = [configuration.overrides.apply({name: each}, own)[name] for each in found]
        return any(is_on(each) is not False for each in seen)

    def _unknown(self, name: ServerName) -> str:
        configuration = self._configuration
        if (why := configuration.config.unusable.get(name)) is not None:
            return f"The server cannot be run as it is written: {why}."
        said = no_such_server(name, configuration.layers.configured_servers())
        return f"{said[:1].upper()}{said[1:]}"
