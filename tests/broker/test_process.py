"""The broker's process: its reports of the answers that carriers have, and its end after an update.

Level: both real shells in one thread (`tests.kit.in_process_daemon`). A second supervisor is a greeting only.
"""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from carpool_broker import process as broker_shell
from carpool_broker.transport.incarnation import Incarnation
from carpool_protocol.ids import CallId, Epoch, SupervisorName
from carpool_protocol.link.messages import LINK_VERSION, AnswersWritten, AnyMessage, CallFailed, Hello
from carpool_protocol.link.peer import PeerDown, PeerRefused, PeerUp
from carpool_protocol.runtime.lifeline import Lifeline
from carpool_protocol.runtime.poller import ReadySet
from tests.behaviours import behaviour
from tests.kit.in_process_daemon import SUPERVISOR, AgentSocket, InProcessDaemon, LinkEnd
from tests.kit.in_process_servers import InProcessServer, Json, echo

OTHER = "sup2"
SERVERS = {
    name: {"command": "x", "args": ["tool"], "sharing": "concurrent"} for name in map("s{}".format, range(8))
}


def tool(server: InProcessServer, message: Json) -> None:
    """Echo; a call with the text `never` is never answered."""
    if message.get("params", {}).get("arguments") != {"text": "never"}:
        echo(server, message)


class BrokerLinkEnd(LinkEnd):
    """What is sent to the second supervisor goes nowhere; the reports of written answers are noted."""

    def __init__(self, me: Hello, address: str) -> None:
        super().__init__(me, address)
        self.reports: list[tuple[str, list[CallId]]] = []

    def send(self, peer: str, message: AnyMessage) -> None:
        if isinstance(message, AnswersWritten):
            self.reports.append((peer, message.calls))
        if peer != OTHER:
            super().send(peer, message)


class TwoSupervisorsDaemon(InProcessDaemon):
    """One carpool whose configuration wants two supervisors."""

    def _end(self, me: Hello, address: str, _ready: ReadySet) -> LinkEnd:
        end = LinkEnd(me, address) if self.ends else BrokerLinkEnd(me, address)
        self.ends.append(end)
        return end

    def _new_broker(self, incarnation: Incarnation) -> broker_shell.BrokerShell:
        names = (SupervisorName(SUPERVISOR), SupervisorName(OTHER))
        shell = broker_shell.BrokerShell
        with mock.patch.object(broker_shell, "BrokerShell", lambda *them: shell(*them, supervisors=names)):
            return super()._new_broker(incarnation)

    @property
    def reports(self) -> list[tuple[str, list[CallId]]]:
        """The calls whose answers were reported as written, with the supervisor that heard it."""
        end = self.ends[0]
        assert isinstance(end, BrokerLinkEnd)
        return [(peer, calls) for peer, calls in end.reports if calls]

    def other_comes(self) -> None:
        hello = Hello(LINK_VERSION, Epoch("e-other"), OTHER, os.getpid(), "1")
        self.broker._deliver(OTHER, [PeerUp(hello)])
        self.settle()

    def other_goes(self) -> None:
        self.broker._deliver(OTHER, [PeerDown("it died")])
        self.settle()

    def second_passes(self) -> None:
        """The second is over after which the broker says which answers are written."""
        self.broker._report_written()
        self.settle()

    def mine(self) -> str:
        """Return a server of the first supervisor."""
        return next(name for name in SERVERS if self.broker.core.links.owner_of_server(name) == SUPERVISOR)  # type: ignore[arg-type]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[TwoSupervisorsDaemon]:
    made = TwoSupervisorsDaemon(tmp_path, SERVERS, {"tool": tool})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def agent(one: TwoSupervisorsDaemon) -> AgentSocket:
    found = one.connect()
    found.greet()
    return found


@behaviour("supervisors:several")
def test_answers_that_were_written_are_reported_although_another_supervisor_is_lost_meanwhile(
    one: TwoSupervisorsDaemon, agent: AgentSocket
) -> None:
    """Otherwise the record of the supervisor that has answered would keep them for ever."""
    one.other_comes()
    agent.echo("hello", f"{one.mine()}__echo")
    one.other_goes()
    assert not one.reports
    one.second_passes()
    assert one.reports == [(SUPERVISOR, [CallId(1)])]


def begin_call(one: TwoSupervisorsDaemon, agent: AgentSocket, number: int) -> CallId:
    """The agent calls a tool that does not answer."""
    params = {"name": f"{one.mine()}__echo", "arguments": {"text": "never"}}
    request = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    before = {*one.broker.core.call_table.calls}
    agent.send(json.dumps(request).encode() + b"\n")
    (call,) = {*one.broker.core.call_table.calls} - before
    return call


def lose_state(one: TwoSupervisorsDaemon, call: CallId) -> None:
    """The supervisor answers a call as one whose state was lost."""
    one.broker._deliver(SUPERVISOR, [CallFailed(call, "state_lost", "no", "")])
    one.broker._flush_burst()
    one.settle()


@behaviour("lease:every-call-hears")
def test_that_an_agent_has_heard_of_lost_state_is_reported_before_anything_else_is_read(
    one: TwoSupervisorsDaemon, agent: AgentSocket
) -> None:
    """Until then all its calls get that error, also those that it sends because it knows."""
    call = begin_call(one, agent, 7)
    lose_state(one, call)
    assert json.loads(agent.lines[-1])["id"] == 7
    assert (SUPERVISOR, [call]) in one.reports


@behaviour("lease:every-call-hears")
def test_losses_that_agents_have_heard_of_make_room_for_those_that_they_have_not(
    one: TwoSupervisorsDaemon, agent: AgentSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_shell, "MAX_LOSSES", 2)
    slow = one.connect()
    slow.greet()
    one.lines.remove(slow)  # it reads no more
    params = {"name": f"{one.mine()}__echo", "arguments": {"text": "x" * 1_000_000}}
    slow.send(
        json.dumps({"jsonrpc": "2.0", "id": 6, "method": "tools/call", "params": params}).encode() + b"\n"
    )
    unread = begin_call(one, slow, 7)
    lose_state(one, unread)
    for number in (7, 8):
        heard = begin_call(one, agent, number)
        lose_state(one, heard)
        assert one.reports[-1] == (SUPERVISOR, [heard])
    one.lines.append(slow)
    one.settle()
    assert json.loads(slow.lines[-1])["id"] == 7
    assert unread in one.reports[-1][1]


@behaviour("restart:one-half-newer")
@pytest.mark.parametrize("superseded", [True, False])
def test_a_broker_ends_when_its_supervisor_comes_back_in_another_version(
    one: TwoSupervisorsDaemon, superseded: bool
) -> None:
    """The launcher starts the new version then. A stranger of another version is ignored."""
    launcher, ours = socket.socketpair()
    with launcher:
        one.broker._lifeline = Lifeline(ours.detach())
        one.broker._deliver(SUPERVISOR, [PeerRefused("another version of the link", superseded)])
        assert one.broker._stopped.is_set() is superseded
        one.broker._lifeline.close()


@behaviour("reattach:everything-died")
@pytest.mark.parametrize("end", ["the launcher died", "an update"])
def test_a_broker_that_ends_by_itself_leaves_a_later_call_unread(
    one: TwoSupervisorsDaemon, agent: AgentSocket, end: str
) -> None:
    """Its carrier then knows that no server had it, and sends it to the next broker."""
    launcher, ours = socket.socketpair()
    with launcher:
        one.broker._lifeline = Lifeline(ours.detach())
        one.broker.stop() if end == "the launcher died" else one.broker._end_replaced()
        params = {"name": f"{one.mine()}__echo", "arguments": {"text": "late"}}
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        before = len(agent.lines)
        agent.send(json.dumps(call).encode() + b"\n")
        assert not one.broker.core.call_table.calls
        assert agent.lines[before:] == []
        one.broker._lifeline.close()
