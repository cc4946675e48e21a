"""The supervisor's CPU time for operations on all servers, at several numbers of servers.

Owns the operations: each is one that once cost the square or the cube of the number. `rows` returns CPU
seconds of this thread, without processes and without the link. `python -m bench.growth_supervisor` prints
them with the exponent between the last two numbers.

Knows nothing of: the page that the figures are for.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from carpool_protocol.ids import CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.codec import encode_frames
from carpool_protocol.link.messages import (
    AnswersWritten,
    Call,
    CallAnswered,
    Catalog,
    Policy,
    PoolSpec,
    SetPools,
    ToolOffer,
)
from carpool_protocol.wire.lines import LineBuffer
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.core.model.trace_context import LIFE_BYTES
from carpool_supervisor.core.supervisor import SupervisorCore

NUMBERS: Final = (10, 100, 1000)
MEBIBYTES: Final = (1, 10, 50)
_EMPTY: Final = RawJson(b"{}")
_CHUNK_BYTES: Final = 256 * 1024


class GrowthRow(NamedTuple):
    """One operation, and the CPU seconds that it took for each number."""

    operation: str
    seconds: dict[int, float]


class _Servers:
    """A core with servers of mode `session`, that do at once what they are asked for."""

    def __init__(self, count: int, *, are_healthy: bool = True) -> None:
        self._core = SupervisorCore(b"l" * LIFE_BYTES)
        self._are_healthy = are_healthy
        policy = Policy(sharing="session", auto_connect=True)
        self._specs = [
            PoolSpec(
                key=PoolKey(f"s{at}:"),
                server=ServerName(f"s{at}"),
                argv=["s"],
                env={},
                cwd="/",
                policy=policy,
            )
            for at in range(count)
        ]
        self._todo: list[events.AnyEvent] = []
        self._feed(events.BrokerConnected())

    def configure(self) -> None:
        """The configuration comes, and all servers start."""
        self._feed(SetPools(self._specs, 10_000, 3))
        known = tuple(events.PoolKnowledge(spec.key, None, ()) for spec in self._specs)
        self._feed(events.KnowledgeChanged(known))
        self._settle()

    def call(self) -> None:
        """Each server is called by an agent of its own, and answers."""
        for at, spec in enumerate(self._specs, 1):
            self._feed(
                Call(CallId(at), spec.key, SessionId(f"a{at}"), "tools/call", "t", _EMPTY, _EMPTY, False)
            )
        self._settle()

    def remove(self) -> None:
        """No server is configured any more."""
        self._feed(SetPools([], 10_000, 3))
        self._settle()

    def _settle(self) -> None:
        while self._todo:
            self._feed(self._todo.pop(0))

    def _feed(self, event: events.AnyEvent) -> None:
        for effect in self._core.handle(event, 100.0):
            match effect:
                case effects.Spawn():
                    self._todo.append(events.InstanceSpawned(effect.instance, 100))
                    self._todo.append(self._greeting(effect) if self._are_healthy else self._end(effect))
                case effects.CloseStdin() | effects.SignalGroup():
                    self._todo.append(self._end(effect))
                case effects.WriteCall():
                    self._todo.append(events.ServerAnswered(effect.instance, effect.wire, False, _EMPTY))
                    self._todo.append(AnswersWritten([effect.call.call]))
                case _:
                    pass

    @staticmethod
    def _greeting(effect: effects.Spawn) -> events.InstanceGreeted:
        catalog = Catalog(effect.key, [ToolOffer("t", _EMPTY)], "", _EMPTY, _EMPTY, "2025-11-25")
        return events.InstanceGreeted(effect.instance, catalog)

    @staticmethod
    def _end(effect: effects.Spawn | effects.CloseStdin | effects.SignalGroup) -> events.InstanceExited:
        return events.InstanceExited(effect.instance, "ended", (), "", 0.5)


def _come_up(count: int) -> Callable[[], None]:
    return _Servers(count).configure


def _end_at_once(count: int) -> Callable[[], None]:
    return _Servers(count, are_healthy=False).configure


def _are_called(count: int) -> Callable[[], None]:
    servers = _Servers(count)
    servers.configure()
    return servers.call


def _are_removed(count: int) -> Callable[[], None]:
    servers = _Servers(count)
    servers.configure()
    servers.call()
    return servers.remove


def _cut_line(mebibytes: int) -> Callable[[], None]:
    line = b'"' + b"x" * (mebibytes << 20) + b'"\n'
    chunks = [line[at : at + _CHUNK_BYTES] for at in range(0, len(line), _CHUNK_BYTES)]
    buffer = LineBuffer(64 << 20)

    def cut() -> None:
        for each in chunks:
            buffer.feed(each)

    return cut


def _frame_answer(mebibytes: int) -> Callable[[], None]:
    body = RawJson(b'"' + b"x" * (mebibytes << 20) + b'"')
    answer = CallAnswered(CallId(1), False, body)
    return lambda: encode_frames("a", "b", [answer], cargo_bytes=len(body)).clear()


OPERATIONS: Final[tuple[tuple[str, Callable[[int], Callable[[], None]], Sequence[int]], ...]] = (
    ("servers that come up", _come_up, NUMBERS),
    ("servers that end at once", _end_at_once, NUMBERS),
    ("servers that are called once", _are_called, NUMBERS),
    ("servers that are removed", _are_removed, NUMBERS),
    ("MiB of one line that are cut", _cut_line, MEBIBYTES),
    ("MiB of one answer that are put into a frame", _frame_answer, MEBIBYTES),
)


def rows() -> list[GrowthRow]:
    """Measure every operation. What stands before the measured part costs nothing."""
    return [
        GrowthRow(name, {number: _cpu_s(prepare(number)) for number in numbers})
        for name, prepare, numbers in OPERATIONS
    ]


def exponent(row: GrowthRow) -> float:
    """Return the power of the number with which the time grows, between the last two numbers."""
    (few, first_s), (many, last_s) = list(row.seconds.items())[-2:]
    return math.log(last_s / first_s) / math.log(many / few)


def _cpu_s(work: Callable[[], None]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


if __name__ == "__main__":
    for row in rows():
        times = "  ".join(f"{number}: {seconds:.4f} s" for number, seconds in row.seconds.items())
        print(f"{row.operation:44} {times}  exponent {exponent(row):.2f}")
