"""The sessions of this machine's agents at other nodes, and of other nodes' agents here: their near ends.

Owns the table of near ends, which instance of which supervisor a session stands for, and what the core asks
to be done at near ends.

Knows nothing of: links, files, offers.
"""

import os
from collections.abc import Callable

from carpool.api.attach import AttachTarget
from carpool.cluster.core.node import NodeCore, NodeEffect, NoNodeError
from carpool.cluster.core.sessions import EndSession, OpenAtBroker, PassBytes, ReadOn, SessionName
from carpool.cluster.log import log
from carpool.cluster.near_ends import BrokerEnd, NearEnd, NearEndEvents, PipesEnd, attach_line
from carpool.cluster.supervisor_socket import SessionRequest, SupervisorConnection

_LEAVING = "the node is leaving the cluster"


class LocalSessions:
    """The near ends of all sessions of this node."""

    def __init__(
        self,
        core: NodeCore,
        directory: str,
        profile: str,
        *,
        refusal: Callable[[str], str],
        flush_soon: Callable[[], None],
    ) -> None:
        """`profile`: of other nodes' agents. `refusal`: why they get no session at a server; empty: they do.
        `flush_soon`: sends what follows.
        """
        self._core = core
        self._directory = directory
        self._profile = profile
        self._refusal = refusal
        self._flush_soon = flush_soon
        self._ends: dict[SessionName, NearEnd] = {}
        self._asked: dict[tuple[SupervisorConnection, int], SessionName] = {}
        """The sessions that stand for instances, by supervisor and instance."""
        self._instances: dict[SessionName, tuple[SupervisorConnection, int]] = {}

    def requested(
        self, supervisor: SupervisorConnection, request: SessionRequest, fds: tuple[int, ...]
    ) -> None:
        """Open a session for an instance of a supervisor, or end it."""
        if request.end:
            name = self._asked.get((supervisor, request.end))
            if name is not None:
                self._core.close(name)
                self._end(name, "", has_ended=False)
                self._flush_soon()
            return
        try:
            name = self._core.open_session(request.node, request.server)
        except NoNodeError as error:
            for fd in fds:
                os.close(fd)
            supervisor.tell({"failed": request.open, "text": str(error)})
            return
        self._asked[supervisor, request.open] = name
        self._instances[name] = supervisor, request.open
        supervisor.tell({"opened": request.open})
        self._ends[name] = PipesEnd(fds, self._events_of(name))
        self._flush_soon()

    def supervisor_gone(self, supervisor: SupervisorConnection) -> None:
        """A supervisor has ended, and with it all of its instances."""
        for key in [key for key in self._asked if key[0] is supervisor]:
            name = self._asked.pop(key)
            del self._instances[name]
            self._core.close(name)
            if (end := self._ends.pop(name, None)) is not None:
                end.end("")
        self._flush_soon()

    def perform(self, effect: NodeEffect) -> None:
        """Do what the core asks for at a near end."""
        match effect:
            case PassBytes():
                if (end := self._ends.get(effect.session)) is not None:
                    end.pass_bytes(effect.data)
            case ReadOn():
                if (end := self._ends.get(effect.session)) is not None:
                    end.read_on()
            case OpenAtBroker():
                self._open_at_broker(effect.session, effect.server)
            case EndSession():
                self._end(effect.session, effect.text, has_ended=False)
            case _:
                pass

    def close(self) -> None:
        """End all sessions: the node leaves the cluster."""
        for name, end in list(self._ends.items()):
            self._core.close(name, _LEAVING)
            end.end(_LEAVING)
        self._ends.clear()

    def _open_at_broker(self, name: SessionName, server: str) -> None:
        if why := self._refusal(server):
            log(f"node {name.node} asked for {server}, and was refused: {why}", "warning")
            self._core.close(name, why)
            return
        place = AttachTarget(self._directory, {})
        line = attach_line(name.node, server, self._profile)
        self._ends[name] = BrokerEnd(place, line, self._events_of(name))

    def _events_of(self, name: SessionName) -> NearEndEvents:
        def send(data: bytes) -> None:
            self._core.send(name, data)
            self._flush_soon()

        def passed(size_bytes: int) -> None:
            self._core.bytes_passed(name, size_bytes)
            self._flush_soon()

        def ended(text: str) -> None:
            if name.number < 0 and text:
                log(f"a session of node {name.node} ended: {text}")
            self._core.close(name, text)
            self._end(name, text, has_ended=True)
            self._flush_soon()

        return NearEndEvents(lambda: self._core.room_bytes(name), send, passed, ended)

    def _end(self, name: SessionName, text: str, *, has_ended: bool) -> None:
        """The session is over. `has_ended`: its near end has said so itself."""
        end = self._ends.pop(name, None)
        if end is not None and not has_ended:
            end.end(text)
        key = self._instances.pop(name, None)
        if key is not None:
            del self._asked[key]
            key[0].tell({"ended": key[1], "text": text or "ended"})
