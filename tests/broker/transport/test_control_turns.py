"""The order in which requests of operators begin."""

from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing

from carpool_broker.transport.control_turns import ControlTurns
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, attach_line
from carpool_protocol.ids import SessionId
from tests.behaviours import behaviour
from tests.kit.in_process_daemon import AgentSocket, in_process_daemon

ONE, TWO = SessionId("s1"), SessionId("s2")


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop."""

    def __init__(self) -> None:
        self.number = 0

    def after_io_wait(self, timeout: float) -> None:
        self.number += 1


@behaviour("status:asked-once")
async def test_no_two_requests_begin_in_one_pass_and_sessions_take_turns() -> None:
    turns, passes = ControlTurns(), Passes()
    begun: list[tuple[SessionId, int]] = []

    async def ask(session: SessionId) -> None:
        await turns.wait(session)
        begun.append((session, passes.number))

    trio.lowlevel.add_instrument(passes)
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask, ONE)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        waiting_for_two = len(begun)
        nursery.start_soon(ask, TWO)
    trio.lowlevel.remove_instrument(passes)
    numbers = [number for _, number in begun]
    assert len(numbers) == len({*numbers}) == 51, "each begins in a pass of its own"
    place = [session for session, _ in begun].index(TWO)
    assert place <= waiting_for_two + 4, "one request of a session does not wait for all of another's"


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_request_that_is_cancelled_while_it_waits_holds_up_no_other(gone: int) -> None:
    turns, begun = ControlTurns(), list[int]()
    scopes = [trio.CancelScope() for _ in range(3)]

    async def ask(number: int) -> None:
        with scopes[number]:
            await turns.wait(ONE)
            begun.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(ask, number)
        scopes[gone].cancel()
    assert sorted(begun) == sorted({0, 1, 2} - {gone})
    with trio.fail_after(5):
        await turns.wait(TWO)


class AnswersByPass(trio.abc.Instrument):
    """Notes how many answers an operator has before each pass of the event loop."""

    def __init__(self, operator: AgentSocket) -> None:
        self._operator = operator
        self.counts: list[int] = []

    def after_io_wait(self, timeout: float) -> None:
        self._operator.read()
        self.counts.append(len(self._operator.lines))


@behaviour("status:asked-once")
def test_a_broker_handles_other_events_between_any_two_requests_of_an_operator(tmp_path: Path) -> None:
    with in_process_daemon(tmp_path, {}, {}) as one:
        operator = one.connect()
        operator.send(attach_line(Attach(version=ATTACH_VERSION, carrier="cli", cwd="/", control=True)))
        ask = b'{"jsonrpc":"2.0","id":%d,"method":"carpool/profiles"}\n'
        operator.send(b"".join(ask % number for number in range(20)))
        answers = AnswersByPass(operator)

        async def run() -> None:
            trio.lowlevel.add_instrument(answers)
            async with trio.open_nursery() as nursery:
                while one.operations:
                    nursery.start_soon(*one.operations.pop(0))
            await trio.lowlevel.checkpoint()

        before = len(operator.lines)
        trio.run(run)
        assert answers.counts[-1] - before == 20
        assert max(later - earlier for earlier, later in pairwise(answers.counts)) == 1
