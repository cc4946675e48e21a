"""Agents at the boundary of a carpool in one thread, through every way in, and brokers that die under them.

Owns the ways in: a plain connection, a carrier of its own (`Keeper`), a shim (the real pump, on pipes), and
streams of an HTTP door. Each says bytes when it is told to and takes in nothing until it has its turn, so
that whatever waits in a socket can meet a death, an end or a late answer. Owns how a broker of
`in_process_daemon` dies, ends and is followed by the next one.

Knows nothing of: which promises there are, who does what next (`boundary_machine`).
"""

import json
import os
import select
import socket
import types
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from unittest import mock

import trio

from carpool.shim import resume
from carpool.shim.kept_lines import KeptLines
from carpool.shim.pump import AGENT_GONE, REFUSED, ShimPump
from carpool_broker.core.model import events
from carpool_broker.transport import delivery_log
from carpool_broker.transport.connections import AgentConnection
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import OURS_PREFIX, Attach, attach_line, environment_line
from carpool_protocol.carrier.streams import (
    CONTROL,
    OpenStream,
    StreamClosed,
    control_line,
    frame_line,
    read_control,
    split_frame,
)
from tests.kit.in_process_deaths import KillableDaemon
from tests.kit.in_process_servers import READ_BYTES, Json, Program

SETTLE_LINES: Final = 4
"""So often carriers are told what is settled: here it is to count."""
MARK: Final = "0123abcd"


class Way:
    """One agent's way in. `say` leaves its bytes where the broker can read them."""

    connection: AgentConnection
    """As the door knows it."""
    is_told_of_ends: bool = False
    returns: bool = False
    """It comes back when a broker dies."""

    def __init__(self, stage: "Stage") -> None:
        self.stage = stage
        self.lines: list[bytes] = []
        """What the agent has heard."""
        self.ended = False
        self.stopped = False
        """It takes in nothing for now."""

    def say(self, data: bytes) -> None:
        """Whole lines of the agent."""
        raise NotImplementedError

    def turn(self) -> bool:
        """Take in what is there. Whether anything was."""
        raise NotImplementedError

    def go(self, *, deaf: bool = False) -> None:
        """Be gone without a word; the broker finds out when it next reads, or, of one that is only `deaf`,
        when it next writes.
        """
        raise NotImplementedError

    def broker_died(self) -> None:
        """The next broker is there."""

    def close(self) -> None:
        """Let go of every descriptor."""


class PlainWay(Way):
    """A connection whose first line is the agent's."""

    def __init__(self, stage: "Stage") -> None:
        super().__init__(stage)
        self.sock, self.connection = stage.connection()
        self._rest = b""

    def say(self, data: bytes) -> None:
        while data and not self.ended:
            try:
                data = data[self.sock.send(data) :]
            except BlockingIOError:
                self.stage.settle()
            except OSError:
                self.ended = True

    def turn(self) -> bool:
        if self.ended or self.stopped:
            return False
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.ended = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.hear(line)
        return True

    def hear(self, line: bytes) -> None:
        """A line of the broker."""
        self.lines.append(line)

    def go(self, *, deaf: bool = False) -> None:
        self.ended = True
        if deaf:
            with suppress(OSError):  # the broker has closed it
                self.sock.shutdown(socket.SHUT_RD)  # of which no reader hears
        else:
            self.sock.close()

    def close(self) -> None:
        self.sock.close()


class Keeper(PlainWay):
    """A carrier of its own, which keeps: it says its environment when it is told to, often or never."""

    is_told_of_ends = True

    def __init__(self, stage: "Stage") -> None:
        super().__init__(stage)
        self.own: list[Json] = []
        """What the broker has said for the carrier itself."""
        hello = Attach(
            version=ATTACH_VERSION, carrier="shim", cwd=str(stage._house), keeps=True, tells=True, mark=MARK
        )
        self.say(attach_line(hello))

    def hear(self, line: bytes) -> None:
        if line.startswith(OURS_PREFIX):
            self.own.append(json.loads(line))
        else:
            self.lines.append(line)

    def tell_environment(self) -> None:
        """Whether it was asked or not."""
        self.say(environment_line(dict.fromkeys(VARIABLES, "v"), MARK))

    @property
    def farewells(self) -> list[str]:
        """Why it was told that an end is meant."""
        return [each["params"]["text"] for each in self.own if each["method"] == "carpool/ended"]


VARIABLES: Final = {"CP_VALUE": "1", "CP_SHOP": "2"}
"""In the environment of every shim."""


class _Idle(Exception):  # noqa: N818 - no error
    """A pump has nothing to do."""


class _Poll:
    """`select.poll` that does not wait."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def poll(self) -> list[tuple[int, int]]:
        ready = self._poll.poll(0)
        if not ready:
            raise _Idle
        return ready


class ShimWay(Way):
    """The real shim between its agent's pipes and the socket; what its `_main` does is done here."""

    is_told_of_ends = returns = True

    def __init__(self, stage: "Stage") -> None:
        super().__init__(stage)
        (self._stdin, self._agent), (self._heard, self._stdout) = os.pipe(), os.pipe()
        for fd in (self._agent, self._heard):
            os.set_blocking(fd, False)
        self._hello = attach_line(
            Attach(
                version=ATTACH_VERSION,
                carrier="shim",
                cwd=str(stage._house),
                keeps=True,
                tells=True,
                mark=MARK,
            )
        )
        self.kept = KeptLines()
        self.farewells: list[str] = []
        self._rest = b""
        self._attach(self._hello)

    def _attach(self, first: bytes) -> None:
        self._sock, self.connection = self.stage.connection()
        self.pump = ShimPump(self._sock, first, self.kept, self._stdin, self._stdout, mark=MARK)
        self.pump._poll = _Poll()  # type: ignore[assignment]
        self.pump._unblock_stdout()
        self.pump._write_to_broker()
        self.pump._update_polling()

    def say(self, data: bytes) -> None:
        while data and not self.ended:
            try:
                data = data[os.write(self._agent, data) :]
            except BlockingIOError:
                assert not self.stopped, "a shim that is stopped is told more than a pipe holds"
                self.stage.settle()
        if not self.stopped:
            self._pump_on()

    def _pump_on(self) -> bool:
        pump, done = self.pump, False
        try:
            while not pump._outcome:
                pump._pass_on()
                pump._update_polling()
                done = True
        except _Idle:
            pass
        return done

    def turn(self) -> bool:
        if self.ended or self.stopped:
            return False
        done = self._pump_on()
        with suppress(BlockingIOError):
            while data := os.read(self._heard, READ_BYTES):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self.lines += lines
                done = True
        if self.pump._outcome:
            self._come_back()
            done = True
        return done

    def _come_back(self) -> None:
        pump = self.pump
        self._sock.close()
        if pump._outcome in {AGENT_GONE, REFUSED}:
            assert pump._outcome == AGENT_GONE, pump.refusal
            self.ended = True
            return
        pump._count_untaken()
        text, again = resume.read_farewell(pump.farewell)
        if text:
            self.farewells.append(text)
        assert not self.kept.is_full
        if (text and not again) or not self.stage.serves:
            self.ended = True
            return
        self._attach(resume.resume(self.kept, self._hello, again=again, untaken_bytes=pump.untaken_bytes))

    def go(self, *, deaf: bool = False) -> None:
        self.ended = True
        if deaf:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RD)
        else:
            self._sock.close()

    def close(self) -> None:
        self._sock.close()
        for fd in (self._stdin, self._agent, self._heard, self._stdout):
            os.close(fd)


class DoorWay(PlainWay):
    """A door: its streams are the agents."""

    def __init__(self, stage: "Stage") -> None:
        super().__init__(stage)
        self.streams: list[StreamOf] = []
        self.say(attach_line(Attach(version=ATTACH_VERSION, carrier="door", streams=True)))

    def hear(self, line: bytes) -> None:
        cut = split_frame(line)
        if cut is None:
            return
        stream = self.streams[cut[0] - 1]
        if cut[2] != CONTROL:
            stream.lines.append(cut[1])
        elif isinstance(read_control(cut[1]), StreamClosed):
            stream.is_closed = True


class StreamOf(Way):
    """One stream of a door, which says everything on exchanges of its own."""

    def __init__(self, door: DoorWay, kind: str) -> None:
        super().__init__(door.stage)
        self.door, self.kind = door, kind
        self.connection = door.connection
        self.is_closed = False
        """The broker has ended it."""
        door.streams.append(self)
        self.number = len(door.streams)
        self._exchange = 0
        door.say(control_line(self.number, OpenStream(kind=kind)))  # type: ignore[arg-type]

    def say(self, data: bytes) -> None:
        frames = []
        for line in data.splitlines():
            self._exchange += 1
            frames.append(frame_line(self.number, line, self._exchange))
        self.door.say(b"".join(frames))

    def turn(self) -> bool:
        self.ended = self.is_closed or self.door.ended
        return False

    def go(self, *, deaf: bool = False) -> None:
        self.door.go(deaf=deaf)
        self.ended = True


@types.coroutine
def _pause(_seconds: float) -> Generator[None]:
    yield


class Stage(KillableDaemon):
    """A carpool whose broker dies and is followed by another. Made by `stage`."""

    serves = True
    """False: it has come to an end that is meant."""

    def __init__(
        self, house: Path, servers: Mapping[str, Json], programs: Mapping[str, Program], **more: Json
    ) -> None:
        self.ways: list[Way] = []
        super().__init__(house, servers, programs, **more)
        self._watch()

    def _watch(self) -> None:
        self._watching = [self.broker._agent_server.watch(), self.broker._check_periodically()]
        for each in self._watching:
            each.send(None)  # to its first pause

    def _unwatch(self) -> None:
        for each in self._watching:
            each.close()

    def connection(self) -> tuple[socket.socket, AgentConnection]:
        """An agent's end of a new connection, and the door's."""
        sock = self.socket_for_agent()
        return sock, next(reversed(self.broker._agent_server.connections.agents.values()))

    def add(self, way: Way) -> None:
        """It has its turns from now on."""
        self.ways.append(way)

    def settle(self) -> None:
        """Let everything happen that happens without time, as far as it is not stopped."""
        while True:
            super().settle()
            if not self.turns():
                return

    def turns(self) -> bool:
        """All agents take in what is there. Whether anything was."""
        return any([way.turn() for way in self.ways])  # noqa: C419 - each has its turn

    def wait(self, seconds: float) -> None:
        """Time passes, with a look of the door each second."""
        for _ in range(int(seconds)):
            super().wait(1.0)
            for each in self._watching if self.serves else ():
                each.send(None)
            self.settle()

    def die(self, *, link_first: bool) -> None:
        """The broker is killed, and the launcher starts the next one. `link_first`: what it has said to the
        supervisor gets there.
        """
        if link_first:
            self.step_link()
        self._unwatch()
        self.ends[1].out.clear()
        self.kill_broker()
        self._watch()

    def end(self, why: str, *, again: bool) -> None:
        """The broker ends because that is meant, as `BrokerShell.run` does it."""
        broker = self.broker
        broker._pump.feed(events.EndRequested(again=again))
        broker._flush_burst()
        broker._agent_server.stop_accepting(why, again=again)
        for _ in range(3):
            self.step_broker()
            self.turns()
        broker._agent_server.close()
        self.serves = False
        self.turns()

    def close(self) -> None:
        self._unwatch()
        for way in self.ways:
            way.close()
        super().close()


@contextmanager
def stage(
    house: Path, servers: Mapping[str, Json], programs: Mapping[str, Program], **more: Json
) -> Iterator[Stage]:
    """A carpool with these servers (see `whole.whole`), and our clock as trio's as long as it runs."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, VARIABLES))
        stack.enter_context(mock.patch.object(trio, "sleep", _pause))
        stack.enter_context(mock.patch.object(delivery_log, "SETTLE_LINES", SETTLE_LINES))
        one = Stage(house, servers, programs, **more)
        stack.enter_context(one._apart())
        stack.callback(one.close)
        yield one
