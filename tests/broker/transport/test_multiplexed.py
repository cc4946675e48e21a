"""A carrier with many streams at the door, with real sockets and a host that echoes."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from carpool_broker.core.model import events
from carpool_broker.core.model.effects import NO_CALL
from carpool_broker.core.model.events import AnyEvent, PingRequested
from carpool_broker.transport import attach_dialogue as attaching
from carpool_broker.transport import multiplexed
from carpool_broker.transport.agent_server import AgentServer
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_broker.transport.detached_sessions import DetachedSessions
from carpool_broker.transport.incarnation import Incarnation
from carpool_broker.transport.multiplexed import MultiplexedConnection
from carpool_broker.transport.streams import SessionStream
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import (
    Attach,
    ResumeSession,
    attach_line,
    ended_line,
    environment_line,
)
from carpool_protocol.carrier.streams import (
    ClientAbsent,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    Kind,
    OpenCallsRaised,
    OpenStream,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    control_line,
    frame_line,
    read_control,
    split_frame,
)
from carpool_protocol.ids import CallId, Epoch, RawJson, SessionId
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.wire.lines import LineBuffer, OverlongLine
from tests.behaviours import behaviour
from tests.kit.door_host import NoReturningSessions, new_door
from tests.kit.waits import until

Frame = tuple[int, bytes, int]


class Hall(NoReturningSessions):
    """A host that keeps what it is told and echoes every message on its exchange."""

    def __init__(self) -> None:
        self.here: dict[SessionId, tuple[Attach, OpenStream | None]] = {}
        self.given_up: list[tuple[SessionId, RawJson]] = []
        self.lines: list[bytes | OverlongLine] = []
        self.fed: list[AnyEvent] = []
        self.unread: list[tuple[SessionId, int]] = []
        self.streams: dict[SessionId, SessionStream] = {}
        self.slow: dict[str, Callable[[], None]] = {}
        """Looks that take their time, by the directory `/slow…` that they are for."""

    def scan_workspace(self, attach: Attach, then: Callable[[], None]) -> None:
        if attach.cwd.startswith("/slow"):
            self.slow[attach.cwd] = then
        else:
            then()

    def wanted_variables(self, attach: Attach) -> list[str]:
        return ["SECRET"]

    def attach_note(self, attach: Attach) -> str:
        return ""

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        return StreamRefused("no such server", "unknown_server") if attach.server == "nope" else None

    def session_opened(
        self,
        session: SessionId,
        attach: Attach,
        environment: dict[str, str],
        stream: OpenStream | None = None,
    ) -> None:
        self.here[session] = (attach, stream)

    def lines_received(
        self, session: SessionId, lines: list[bytes | OverlongLine], delivery_log: DeliveryLog | None = None
    ) -> None:
        self.lines += lines

    def feed(self, burst: list[AnyEvent]) -> None:
        self.fed += burst
        burst.clear()

    def message_received(
        self, stream: SessionStream, message: bytes, exchange: int, burst: list[AnyEvent]
    ) -> None:
        self.streams[stream.id] = stream
        if message == b'{"keep":1}':
            stream.exchanges.open(RawJson(b"1"), exchange)
        else:
            stream.write_to_exchange(message, exchange)

    def request_abandoned(self, session: SessionId, request: RawJson) -> None:
        self.given_up.append((session, request))

    def unread_changed(self, session: SessionId, unread_bytes: int) -> None:
        assert session in self.here, "a carrier of many streams is no session"
        self.unread.append((session, unread_bytes))

    def session_closed(self, session: SessionId) -> None:
        del self.here[session]


class FrameClient:
    """The other end: a tiny client of the frames."""

    def __init__(self, end: trio.SocketStream) -> None:
        self.end = end
        self._buffer = LineBuffer(cap_bytes=1 << 24)
        self._came: list[bytes] = []

    async def send(self, *lines: bytes) -> None:
        await self.end.send_all(b"".join(lines))

    async def line(self) -> bytes | None:
        while not self._came:
            data = await self.end.receive_some(1 << 16)
            if not data:
                return None
            self._came += [line for line in self._buffer.feed(data) if isinstance(line, bytes)]
        return self._came.pop(0)

    async def frame(self) -> Frame:
        line = await self.line()
        assert line is not None, "the broker has ended the connection"
        cut = split_frame(line)
        assert cut is not None, line
        return cut

    async def word(self) -> ControlMessage | None:
        return read_control((await self.frame())[1])


class MultiplexedRig:
    def __init__(self, door: AgentServer, hall: Hall, path: str) -> None:
        self.door, self.hall, self.path = door, hall, path
        self.porters: list[FrameClient] = []

    async def porter(self, **said: Any) -> FrameClient:
        one = FrameClient(await trio.open_unix_socket(self.path))
        self.porters.append(one)
        attach = Attach(version=ATTACH_VERSION, carrier="door", streams=True)
        await one.send(attach_line(replace(attach, **said)))
        return one


@asynccontextmanager
async def house(tmp_path: Path) -> AsyncIterator[MultiplexedRig]:
    ready, hall = ReadySet(), Hall()
    path = str(tmp_path / "agents.sock")
    door = new_door(path, ready, hall)
    door.open()
    one = MultiplexedRig(door, hall, path)
    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ready.run, door.connections.flush)
                yield one
                nursery.cancel_scope.cancel()
    finally:
        for porter in one.porters:
            await trio.aclose_forcefully(porter.end)
        door.close()
        ready.close()


async def attached(one: MultiplexedRig) -> FrameClient:
    porter = await one.porter()
    line = await porter.line()
    assert line is not None
    said = json.loads(line)
    assert said["method"] == "carpool/attached"
    assert said["params"]["env"] == [], "no client of a door has an environment"
    return porter


@behaviour("streams:many-sessions")
async def test_each_stream_is_a_session_with_a_secret_of_its_own(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(agent="a", cwd="/x")),
            frame_line(1, b'{"of":"a"}', 5),
            control_line(2, OpenStream(kind="shared", principal="ann", server="git", max_open_calls=9)),
            frame_line(2, b'{"of":"b"}', 5),
        )
        first, echo, second, other = [await porter.frame() for _ in range(4)]
        opened = [read_control(first[1]), read_control(second[1])]
        assert all(isinstance(each, StreamOpened) for each in opened)
        secrets = {each.session for each in opened if isinstance(each, StreamOpened)}
        assert len(secrets) == 2
        assert all(len(each) >= 22 and each.isascii() and each.isprintable() for each in secrets)
        assert echo == (1, b'{"of":"a"}', 5)
        assert other == (2, b'{"of":"b"}', 5)
        (a, a_open), (b, b_open) = one.hall.here.values()
        assert (a.agent, a.cwd, a.server, a.control) == ("a", "/x", "", False)
        assert (b.agent, b.cwd, b.server) == ("ann", "", "git")
        assert a_open == OpenStream(agent="a", cwd="/x")
        assert b_open is not None
        assert (b_open.kind, b_open.max_open_calls) == ("shared", 9)
        assert not one.hall.lines, "the connection itself is no session"


@behaviour("workspaces:disk")
async def test_a_stream_waits_for_its_workspace_with_all_that_comes_meanwhile_and_no_other_does(
    tmp_path: Path,
) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(cwd="/slow")),
            frame_line(1, b'{"n":1}', 5),
            control_line(1, ExchangeClientGone(4)),
            frame_line(1, b'{"n":2}', 6),
            control_line(2, OpenStream()),
            frame_line(2, b'{"n":3}', 7),
        )
        assert isinstance(await porter.word(), StreamOpened)
        assert await porter.frame() == (2, b'{"n":3}', 7)
        assert len(one.hall.here) == 1
        one.hall.slow["/slow"]()
        one.door.connections.flush()
        number, word, _ = await porter.frame()
        assert (number, isinstance(read_control(word), StreamOpened)) == (1, True)
        assert [await porter.frame() for _ in range(2)] == [(1, b'{"n":1}', 5), (1, b'{"n":2}', 6)]


@behaviour("workspaces:disk")
async def test_a_stream_that_is_closed_or_brings_too_much_while_it_waits_is_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "HELD_BYTES", 200)
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(cwd="/slow1")),
            control_line(1, CloseStream()),
            control_line(2, OpenStream(cwd="/slow2")),
            *(frame_line(2, b'{"n":1}', exchange) for exchange in range(1, 20)),
            control_line(3, OpenStream(cwd="/slow3")),
            control_line(4, OpenStream()),
        )
        refused = await porter.word()
        assert isinstance(refused, StreamRefused)
        assert "too much input came" in refused.text
        assert isinstance(await porter.word(), StreamOpened)
        await porter.end.aclose()
        await until(lambda: not one.door.connections.agents, "the door is gone")
        for then in one.hall.slow.values():
            then()
        assert len(one.hall.slow) == 3
        assert not [attach.cwd for attach, _ in one.hall.here.values() if attach.cwd]


@behaviour("workspaces:disk")
async def test_an_agent_waits_for_its_workspace_and_what_it_says_meanwhile_is_kept(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        first, gone = [FrameClient(await trio.open_unix_socket(one.path)) for _ in range(2)]
        one.porters += [first, gone]
        for porter, cwd in ((first, "/slow1"), (gone, "/slow2")):
            attach = Attach(version=ATTACH_VERSION, carrier="shim", cwd=cwd)
            await porter.send(attach_line(attach), b"early\n", environment_line({"SECRET": "1"}), b"then\n")
        await until(lambda: len(one.hall.slow) == 2, "both are looked for")
        await gone.end.aclose()
        for cwd in ("/slow1", "/slow2"):
            one.hall.slow.pop(cwd)()
        assert not one.hall.here, "in between its carrier was asked, so that it is looked once more"
        await until(lambda: len(one.door.connections.agents) == 1, "one has gone")
        one.hall.slow["/slow1"]()
        one.door.connections.flush()
        line = await first.line()
        assert line is not None
        assert json.loads(line)["params"]["env"] == ["SECRET"]
        assert [attach.cwd for attach, _ in one.hall.here.values()] == ["/slow1"]
        assert one.hall.lines == [b"early", b"then"]


@behaviour("leave:everybody-told")
@pytest.mark.parametrize("again", [False, True])
async def test_an_agent_that_waits_for_its_workspace_hears_of_a_stop_and_is_not_admitted(
    tmp_path: Path, *, again: bool
) -> None:
    """Otherwise its shim would start again what was just stopped. Of one that comes back nothing is known:
    to be told that it was stopped is right, and to come back as if nothing had been sent is not.
    """
    async with house(tmp_path) as one:
        for cwd, resume in (("/slow1", None), ("/slow2", ResumeSession(session="s1", secret="x", open=1))):
            porter = FrameClient(await trio.open_unix_socket(one.path))
            one.porters.append(porter)
            attach = Attach(version=ATTACH_VERSION, carrier="shim", cwd=cwd, keeps=True, resume=resume)
            await porter.send(attach_line(attach), b"early\n")
        await until(lambda: len(one.hall.slow) == 2, "both are looked for")
        one.door.stop_accepting("stopped", again=again)
        for then in [*one.hall.slow.values()]:
            then()
        ends = [await porter.line() for porter in one.porters]
        word = ended_line("stopped", again=again).rstrip()
        assert ends == [word, None if again else word]
        assert [await porter.line() for porter in one.porters] == [None, None]
        assert (one.hall.here, one.hall.lines) == ({}, [])


async def test_a_resuming_carrier_may_send_all_lines_that_an_earlier_broker_had_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says all of that at once, before it hears which variables are wanted."""
    monkeypatch.setattr(attaching, "EARLY_BYTES", 100)
    async with house(tmp_path) as one:
        back, more = [FrameClient(await trio.open_unix_socket(one.path)) for _ in range(2)]
        one.porters += [back, more]
        for porter, cwd in ((back, "/slow1"), (more, "/slow2")):
            resume = ResumeSession(session="s1", secret="x", kept=1, open=2)
            attach = Attach(version=ATTACH_VERSION, carrier="shim", cwd=cwd, keeps=True, resume=resume)
            await porter.send(attach_line(attach), *[b"x" * 80 + b"\n"] * 4)
        await more.send(b"y" * 80 + b"\n")
        await until(lambda: len(one.hall.slow) == 2, "both are looked for")
        for then in [*one.hall.slow.values()]:
            then()
        await until(lambda: len(one.door.connections.agents) == 1, "what is new counts")
        (agent,) = one.door.connections.agents.values()
        assert [attach.cwd for attach in [agent.attach] if attach] == ["/slow1"]
        assert (await back.line() or b"").startswith(b'{"jsonrpc"')
        assert [*one.door.connections.agents.values()] == [agent], "nor while it is asked"


async def test_a_stream_that_comes_back_may_bring_all_that_an_earlier_broker_has_taken_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "HELD_BYTES", 200)
    async with house(tmp_path) as one:
        porter = await attached(one)
        resume = ResumeSession(session="s1", secret="x", kept=1, open=2)
        await porter.send(
            control_line(1, OpenStream(cwd="/slow1", resume=resume)),
            *(frame_line(1, b'{"x":"%b"}' % (b"x" * 60), exchange) for exchange in range(1, 4)),
            control_line(2, OpenStream(cwd="/slow2")),
            frame_line(2, b'{"x":"%b"}' % (b"x" * 60), 1),
            control_line(3, OpenStream(cwd="/slow3")),
            frame_line(3, b'{"x":"%b"}' % (b"x" * 60), 1),
            control_line(4, OpenStream()),
        )
        refused = await porter.frame()
        assert (refused[0], type(read_control(refused[1]))) == (3, StreamRefused), "what is new counts"
        assert (await porter.frame())[0] == 4
        await porter.send(
            control_line(1, CloseStream()),
            control_line(5, OpenStream(cwd="/slow5")),
            frame_line(5, b'{"x":"%b"}' % (b"x" * 60), 1),
        )
        assert (await porter.frame())[0] == 5, "what did not count makes no room when it goes"


@behaviour("workspaces:disk")
async def test_the_waiting_streams_of_one_principal_leave_room_for_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiplexed, "HELD_BYTES", 200)
    early = b'{"x":"%b"}' % (b"x" * 60)
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(cwd="/slow1", principal="ann")),
            frame_line(1, early, 1),
            control_line(2, OpenStream(cwd="/slow2", principal="ann")),
            frame_line(2, early, 1),
            control_line(3, OpenStream(cwd="/slow3", principal="bob")),
            frame_line(3, early, 1),
        )
        number, word, _ = await porter.frame()
        assert (number, type(read_control(word))) == (2, StreamRefused)
        one.hall.slow["/slow3"]()
        one.door.connections.flush()
        number, word, _ = await porter.frame()
        assert (number, type(read_control(word))) == (3, StreamOpened)
        assert (await porter.frame())[1] == early


@behaviour("workspaces:disk")
async def test_streams_that_have_waited_make_room_for_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose workspace was read, those that were closed, and those that brought too much."""
    monkeypatch.setattr(multiplexed, "HELD_BYTES", 200)
    early = b'{"x":"%b"}' % (b"x" * 60)
    async with house(tmp_path) as one:
        porter = await attached(one)
        for first in (1, 4, 7):
            await porter.send(
                control_line(first, OpenStream(cwd=f"/slow{first}")), frame_line(first, early, 1)
            )
            await until(lambda at=first: f"/slow{at}" in one.hall.slow, "its workspace is read")  # type: ignore[misc]  # bound late
            one.hall.slow[f"/slow{first}"]()
            one.door.connections.flush()
            number, word, _ = await porter.frame()
            assert (number, type(read_control(word))) == (first, StreamOpened)
            assert (await porter.frame())[1] == early
            await porter.send(
                control_line(first + 1, OpenStream(cwd="/slow")),
                frame_line(first + 1, early, 1),
                control_line(first + 1, CloseStream()),
                control_line(first + 2, OpenStream(cwd="/slow")),
                frame_line(first + 2, early, 1),
                frame_line(first + 2, early, 2),
            )
            number, word, _ = await porter.frame()
            assert (number, type(read_control(word))) == (first + 2, StreamRefused)


async def test_a_stream_that_cannot_be_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(server="nope")),
            frame_line(1, b'{"too":"early"}', 1),
            control_line(1, ExchangeClientGone(1)),
            control_line(1, CloseStream()),
            control_line(2, OpenStream()),
            frame_line(2, b"{}", 1),
        )
        assert await porter.word() == StreamRefused("no such server", "unknown_server")
        assert isinstance(await porter.word(), StreamOpened)
        assert await porter.frame() == (2, b"{}", 1)
        assert len(one.hall.here) == 1


async def test_sessions_end_with_their_stream_and_with_the_connection(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        kinds: list[Kind] = ["shared", "control", "shared"]
        await porter.send(*(control_line(at, OpenStream(kind=kind)) for at, kind in enumerate(kinds, 1)))
        await porter.send(control_line(2, CloseStream()))
        await until(lambda: len(one.hall.here) == 2, "the second is over")
        await porter.end.aclose()
        await until(lambda: not one.hall.here, "all are over")
        await until(lambda: not one.door.connections.agents, "and the connection is forgotten")


@behaviour("http:bounds-at-once")
async def test_a_door_may_let_an_open_stream_have_more_calls(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(kind="shared", max_open_calls=1)),
            control_line(1, OpenCallsRaised(4)),
            control_line(2, OpenStream(server="nope")),
            control_line(2, OpenCallsRaised(4)),
            control_line(1, ClientAbsent(True)),
            control_line(2, ClientAbsent(True)),
        )
        await until(lambda: len(one.hall.fed) > 1, "it has come")
        (session,) = one.hall.here
        assert one.hall.fed == [
            events.SessionBoundRaised(session, 4),
            events.AgentAbsent(session, True),
        ]
        await porter.end.aclose()


@behaviour("streams:gone-is-no-cancel", "streams:gone-cancels")
async def test_a_leaving_http_client_ends_only_its_request_on_a_shared_session(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(
            control_line(1, OpenStream(kind="session")),
            frame_line(1, b'{"keep":1}', 5),
            control_line(1, ExchangeClientGone(5)),
            control_line(2, OpenStream(kind="shared")),
            frame_line(2, b'{"keep":1}', 6),
            control_line(2, ExchangeClientGone(6)),
            control_line(2, ExchangeClientGone(6)),
        )
        await until(lambda: one.hall.given_up, "the shared one's request is given up")
        (own, shared) = one.hall.here
        assert one.hall.given_up == [(shared, b"@6 1")]
        for _ in range(2):
            await porter.frame()
        one.door.connections.write(own, b'{"late":1}\n', RawJson(b"1"), answers=True)
        one.door.connections.flush()
        assert await porter.frame() == (1, b'{"late":1}', 0)


@behaviour("streams:garbage")
@pytest.mark.parametrize("message", [b"\xff", b"{", b"5", b"null", b'{"a":' * 3000, b'"\\ud83d"'])
async def test_a_client_may_send_any_garbage(tmp_path: Path, message: bytes) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(control_line(1, OpenStream()), frame_line(1, message, 2))
        await porter.frame()
        assert await porter.frame() == (1, message, 2)


@behaviour("streams:garbage")
@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b"[9,{}]\n",
        b"[1,null,{}]\n",
        control_line(1, OpenStream()),
        control_line(2, StreamOpened("x")),
        control_line(7, CloseStream()),
        control_line(7, ExchangeClientGone(1)),
    ],
)
async def test_a_broken_frame_ends_the_connection_and_says_so_in_the_log(
    tmp_path: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        with caplog.at_level(logging.WARNING, "carpool.broker"):
            await porter.send(control_line(1, OpenStream()), line, frame_line(1, b"{}", 1))
            assert isinstance(await porter.word(), StreamOpened)
            assert await porter.line() is None
        assert not one.hall.here
        assert "is dropped: it sent" in caplog.text or "is dropped: it said" in caplog.text


async def test_only_the_carrier_door_has_streams(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        for said in ({"carrier": "cli"}, {"streams": False}):
            porter = await one.porter(**said)
            line = await porter.line()
            assert line is not None
            assert b"carpool/refused" in line
            assert await porter.line() is None


async def test_a_plain_agent_of_a_server_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await one.porter(carrier="shim", streams=False, server="nope")
        line = await porter.line()
        assert line is not None
        assert b"no such server" in line
        assert not one.hall.here


LARGE_LINE = b'{"x":"%b"}\n' % (b"x" * (1 << 18))
SMALL_LINE = b'{"y":1}\n'


@behaviour("streams:large-output")
async def test_no_amount_of_output_ends_a_door_and_what_waits_is_reported_by_stream(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        slow, awake = await attached(one), await attached(one)
        await slow.send(control_line(1, OpenStream()), control_line(2, OpenStream()))
        await until(lambda: len(one.hall.here) == 2, "both are in")
        large, small = one.hall.here
        await awake.send(control_line(1, OpenStream()))
        assert isinstance(await awake.word(), StreamOpened)
        for _ in range(1200):  # 300 MiB
            one.door.connections.write(large, LARGE_LINE)
            one.door.connections.flush()
        one.door.connections.write(small, SMALL_LINE)
        one.door.connections.flush()
        assert len(one.hall.here) == 3
        unread = dict(one.hall.unread)
        assert unread.keys() == {large, small}
        assert 1190 * len(LARGE_LINE) <= unread[large] <= 1200 * len(LARGE_LINE)
        assert unread[small] == len(SMALL_LINE)
        (other,) = one.hall.here.keys() - unread
        one.door.connections.write(other, SMALL_LINE)
        one.door.connections.flush()
        assert await awake.frame() == (1, SMALL_LINE[:-1], 0)
        while any(dict(one.hall.unread).values()):
            await slow.end.receive_some(1 << 20)
        sizes = [size for session, size in one.hall.unread if session == large]
        assert len(sizes) > 2 * 290, "as it grows, and as it shrinks"


@behaviour("streams:large-output")
async def test_a_door_that_is_gone_leaves_nothing_unread(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(control_line(1, OpenStream()), control_line(2, OpenStream(kind="shared")))
        await until(lambda: len(one.hall.here) == 2, "both are in")
        detached, ended = one.hall.here
        for session in (detached, ended):
            for _ in range(8):
                one.door.connections.write(session, LARGE_LINE)
        one.door.connections.flush()
        assert all(dict(one.hall.unread).values())
        one.hall.unread.clear()
        await porter.end.aclose()
        await until(lambda: list(one.hall.here) == [detached], "the door is gone")
        assert one.hall.unread == [(detached, 0)]


@behaviour("streams:frozen-door")
async def test_only_a_door_that_takes_nothing_for_long_is_cut_off(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(control_line(1, OpenStream()))
        await until(lambda: one.hall.here, "it is in")
        (session,) = one.hall.here
        for _ in range(64):
            one.door.connections.write(session, LARGE_LINE)
        one.door.connections.flush()
        now = float(round(trio.current_time()))  # a sum with whole seconds is exact
        one.door.check_timeouts(now)
        one.door.check_timeouts(now + one.door.slow_reader_s)
        (agent,) = one.door.connections.agents.values()
        before = agent.io.progress
        while agent.io.progress == before:
            assert await porter.end.receive_some(1 << 16), "it is not cut off yet"
        one.door.check_timeouts(now + 2 * one.door.slow_reader_s)
        one.door.check_timeouts(now + 3 * one.door.slow_reader_s)
        assert one.hall.here, "a little at a time is enough"
        one.door.check_timeouts(now + 3 * one.door.slow_reader_s + 1)
        await until(lambda: not one.hall.here, "it is cut off with its sessions")


@behaviour("record:nothing-runs-twice")
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_is_let_go_when_all_that_was_said_before_is_with_its_carrier(
    tmp_path: Path, *, streams: bool
) -> None:
    async with house(tmp_path) as one:
        porter = await (attached(one) if streams else one.porter(carrier="client", streams=False))
        await porter.send(control_line(1, OpenStream()) if streams else environment_line({}))
        await until(lambda: len(one.hall.here) == 1, "it is in")
        (session,) = one.hall.here
        lines = 8
        for _ in range(lines):  # more than a socket holds that nobody reads
            one.door.connections.write(session, b'{"x":"%b"}\n' % (b"x" * (1 << 18)))
        one.door.connections.forget_recorded_call(session, CallId(7))
        one.door.connections.forget_recorded_call(SessionId("s99"), CallId(8))
        one.door.connections.flush()
        assert one.door.connections.written == []
        while lines:
            lines -= b'"x":"' in (await porter.line() or b"")
        await until(lambda: one.door.connections.written == [7], "it is let go")
        one.door.connections.forget_recorded_call(session, CallId(9))
        one.door.connections.flush()
        assert one.door.connections.written == [7, 9]


class Gatherer(Hall):
    """A host that takes every message for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.course: list[str] = []

    def message_received(
        self, stream: SessionStream, message: bytes, exchange: int, burst: list[AnyEvent]
    ) -> None:
        stream.exchanges.open(RawJson(b"1"), exchange)
        burst.append(PingRequested(stream.id, RawJson(b"%d" % exchange)))

    def feed(self, burst: list[AnyEvent]) -> None:
        self.course += [event.id.decode() for event in burst if isinstance(event, PingRequested)]
        burst.clear()

    def request_abandoned(self, session: SessionId, request: RawJson) -> None:
        self.course.append(f"gave up {request.decode()}")

    def session_closed(self, session: SessionId) -> None:
        self.course.append("farewell")


def test_events_of_one_read_are_fed_together_and_before_whatever_else_came_after_them() -> None:
    host = Gatherer()
    attach = Attach(version=ATTACH_VERSION, carrier="door", streams=True)
    carrier = MultiplexedConnection(
        SessionId("s0"),
        attach,
        host,
        {},
        detached=DetachedSessions(lambda _call: None),
        incarnation=Incarnation(),
        enter=lambda _resume: (SessionId("s1"), Epoch("")),
        write=lambda _frame, _call=NO_CALL: False,
        written_bytes=lambda: 0,
        drop=lambda _: carrier.connection_closed(dropped=True),
    )
    lines = [
        control_line(1, OpenStream(kind="shared")),
        frame_line(1, b"{}", 5),
        frame_line(1, b"{}", 6),
        control_line(1, ExchangeClientGone(5)),
        frame_line(1, b"{}", 7),
        b"junk\n",
        frame_line(1, b"{}", 8),
    ]
    carrier.lines_received([line[:-1] for line in lines])
    assert host.course == ["5", "6", "gave up @5 1", "7", "farewell"]


@behaviour("operate:disconnect")
async def test_an_operator_ends_one_stream_and_the_others_of_its_connection_go_on(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(control_line(1, OpenStream(agent="a")), control_line(2, OpenStream(agent="b")))
        assert [isinstance(await porter.word(), StreamOpened) for _ in range(2)] == [True, True]
        first, second = one.hall.here
        assert one.door.disconnect_session(first, "an operator did it")
        one.door.connections.flush()
        number, word, _ = await porter.frame()
        assert (number, read_control(word)) == (1, StreamClosed("an operator did it"))
        assert [*one.hall.here] == [second]
        assert not one.door.disconnect_session(first, "once more")
        assert not one.door.disconnect_session(SessionId("s99"), "nobody")
        late = control_line(1, ExchangeClientGone(5)), control_line(1, CloseStream()), frame_line(1, b"{}", 6)
        await porter.send(*late, frame_line(2, b'{"n":1}', 7))
        assert await porter.frame() == (2, b'{"n":1}', 7), "what was on its way is ignored"


@behaviour("operate:disconnect")
async def test_an_operator_ends_a_session_whose_door_has_died(tmp_path: Path) -> None:
    async with house(tmp_path) as one:
        porter = await attached(one)
        await porter.send(control_line(1, OpenStream()))
        opened = await porter.word()
        assert isinstance(opened, StreamOpened)
        (session,) = one.hall.here
        await porter.end.aclose()
        await until(lambda: len(one.door.connections.detached) == 1, "it waits for a door")
        assert one.door.disconnect_session(session, "an operator did it")
        assert (len(one.door.connections.detached), one.hall.here) == (0, {})
        heir = await attached(one)
        await heir.send(control_line(1, OpenStream(resume=ResumeSession(session="", secret=opened.session))))
        assert isinstance(await heir.word(), StreamRefused)
