"""Whatever the command line, or who passes for it, asks of a running broker: one answer to each request, of a
defined kind, and no agent notices.

Level: both real shells in one thread (`tests.kit.in_process_daemon`); what they start in the background
runs on a clock that jumps.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import trio
import trio.testing

from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, attach_line
from carpool_protocol.faults.kinds import KINDS
from tests.behaviours import behaviour
from tests.fuzz.test_fuzz_agents import PROGRAMS, SERVERS, greeted, legible, raw_id
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import NAMES, HostileLine, fresh_ids, members, message, one_of, text
from tests.kit.in_process_daemon import InProcessDaemon, in_process_daemon

CONTROL: Final = attach_line(Attach(version=ATTACH_VERSION, carrier="cli", control=True))
METHODS: Final = (
    *("carpool/tools", "carpool/operate", "carpool/why", "carpool/testify") * 3,
    "carpool/status", "carpool/tools", "carpool/operate", "carpool/why", "carpool/testify", "carpool/reload",
    "carpool/attach", "carpool/environment", "carpool/settled", "carpool/", "carpool/\x1b[2J",
)  # fmt: skip
CODES: Final = {kind.code for kind in KINDS.values()}
LOOK_S: Final = 1.0


def name(rng: Random) -> bytes:
    known = (b'"good"', b'"bad"', b'"new"', b'"nowhere"', b'"good__echo"', b'"echo"')
    return text(rng.choice(NAMES)) if rng.random() < 0.2 else one_of(rng, *known)


def params(rng: Random) -> bytes:
    """Of any of these methods."""
    several = b"[" + b",".join(name(rng) for _ in range(rng.randrange(4))) + b"]"
    fields = [
        ("name", name(rng)),
        ("server", name(rng)),
        ("servers", one_of(rng, several, b"null")),
        ("verb", one_of(rng, b'"start"', b'"stop"', b'"restart"')),
        ("kind", one_of(rng, b'"probe_diverged"', b'"probe_agreed"')),
        ("detail", one_of(rng, b'"seen"', b'"' + b"x" * 2000 + b'"')),
    ]
    return one_of(rng, members(rng, [each for each in fields if rng.random() < 0.8]), odd=0.05)


def finish(one: InProcessDaemon) -> None:
    """All that was begun in the background ends."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            while one.operations or nursery.child_tasks:
                while one.operations:
                    nursery.start_soon(*one.operations.pop(0))
                await trio.sleep(LOOK_S)
                one.settle()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def operated(rng: Random, house: Path) -> None:
    with in_process_daemon(house, SERVERS, PROGRAMS) as one:
        good, fresh = greeted(one), fresh_ids()
        operator = one.connect()
        operator.send(CONTROL)
        greeting = (
            b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
        )
        operator.send(greeting)
        operator.lines.clear()
        said: list[HostileLine] = []
        for _ in range(rng.randrange(1, 5)):
            lines = [
                message(rng, rng.choice(METHODS), params(rng), fresh()) for _ in range(rng.randrange(1, 5))
            ]
            said += lines
            operator.send(b"".join(each.line + b"\n" for each in lines))
            finish(one)
            assert "result" in good.ask("ping")
        one.wait(30.0)
        answers = legible(operator.lines)
        for each in answers:
            assert "error" not in each or each["error"]["code"] in CODES, each
        if not operator.ended:
            counted = Counter(map(raw_id, operator.lines))
            for each in said:
                assert not each.id or counted[each.id] == 1, f"{each.line!r}: {counted[each.id]} answers"
        assert "result" in good.ask("tools/list")
        operator.close()
        one.wait(30.0)
        assert [session.carrier for session in one.broker.core.sessions.values()] == ["client"]
        assert not one.broker._inquiries._open_queries


@behaviour("bad-input:operators")
def test_whatever_an_operator_asks_each_request_is_answered_once_and_no_agent_notices(house: Path) -> None:
    fuzz(lambda rng: operated(rng, house), examples=4, seeds=25)
