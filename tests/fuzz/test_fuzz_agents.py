"""Whatever an agent or a carrier writes: only defined answers, one for each request, and nobody else notices.

Level: both real shells in one thread (`tests.kit.in_process_daemon`), invariants checked after every event.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from carpool_protocol.ids import SessionId
from tests.behaviours import behaviour
from tests.kit import hostile_agents
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import fresh_ids
from tests.kit.in_process_daemon import AgentSocket, InProcessDaemon, in_process_daemon
from tests.kit.in_process_servers import echo, loads, modern

QUICK = {"timeout_s": 3, "max_total_s": 6, "wait_s": 3, "ask_timeout_s": 6, "probe_s": 3600}
SERVERS: dict[str, Any] = {
    "good": {"command": "x", "args": ["echo"], "sharing": "concurrent", **QUICK},
    "bad": {"command": "x", "args": ["echo"], "sharing": "serial", **QUICK},
    "new": {"command": "x", "args": ["modern"], "era": "auto", "sharing": "concurrent", **QUICK},
}
PROGRAMS = {"echo": echo, "modern": modern}
EVERYTHING_ENDS_S = 30.0
PARKED_S = 301.0


def legible(lines: list[bytes]) -> list[Any]:
    """What was said, read by another reader than ours: one message on each line, and not one control byte."""
    for line in lines:
        assert not any(byte < 0x20 for byte in line), line
    found = []
    for line in lines:
        with suppress(RecursionError):  # legal, and deeper than that reader goes
            found.append(loads(line))
    return found


def raw_id(line: bytes) -> bytes:
    """The id of an answer of ours, as bytes: we write them in one way only."""
    head = b'{"jsonrpc":"2.0","id":'
    if not line.startswith(head):
        return b""
    rest = line[len(head) :]
    ends = [at for mark in (b',"result":', b',"error":', b',"method":') if (at := rest.find(mark)) >= 0]
    return rest[: min(ends)]


def plain(rng: Random, house: Path) -> None:
    """A plain connection, or a carrier of one session."""
    with in_process_daemon(house, SERVERS, PROGRAMS) as one:
        good = greeted(one)
        hostile, fresh = one.connect(), fresh_ids()
        ids: list[bytes] = []
        said = []
        if rng.random() < 0.5:
            hostile.send(hostile_agents.attach(rng) + b"\n" + hostile_agents.environment(rng) + b"\n")
        elif rng.random() < 0.8:
            hello = (
                b'{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"%b"}}\n'
            )
            hostile.send(hello % rng.choice((b"2025-11-25", b"2025-03-26", b"2024-11-05")))
        for _ in range(rng.randrange(1, 6)):
            lines = [hostile_agents.line(rng, fresh, ids) for _ in range(rng.randrange(1, 8))]
            said += lines
            hostile.send(b"".join(each.line + rng.choice((b"\n", b"\n", b"\r\n")) for each in lines))
            good.echo("undisturbed")
        if rng.random() < 0.3:
            hostile.send(b'{"half":')
        one.wait(EVERYTHING_ENDS_S)
        good.echo("still undisturbed")
        legible(hostile.lines)
        if not hostile.ended and not any(each.cancels for each in said) and not one.operations:
            answered = Counter(map(raw_id, hostile.lines))
            asked = Counter(ids)
            for each in said:
                if each.id and asked[each.id] == 1:
                    assert answered[each.id] == 1, f"{each.line!r} was answered {answered[each.id]} times"
        hostile.close()
        nothing_is_left(one)


def framed(rng: Random, house: Path) -> None:
    """A carrier of many sessions."""
    with in_process_daemon(house, SERVERS, PROGRAMS) as one:
        good = greeted(one)
        hostile, fresh = one.connect(), fresh_ids()
        ids: list[bytes] = []
        hostile.send(hostile_agents.door_attach() + b"\n")
        for stream in range(1, rng.randrange(2, 6)):
            if rng.random() < 0.9:
                word = rng.choice((*hostile_agents.WORDS[:4], *hostile_agents.WORDS[5:8]))
                hostile.send(b"[%d,null,%b]\n" % (stream, word))
            if rng.random() < 0.5:
                hostile.send(b'[%d,{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}},5]\n' % stream)
            frames = [hostile_agents.frame(rng, stream, fresh, ids) for _ in range(rng.randrange(1, 8))]
            hostile.send(b"".join(each + b"\n" for each in frames))
            good.echo("undisturbed")
        one.wait(EVERYTHING_ENDS_S)
        good.echo("still undisturbed")
        legible(hostile.lines)
        hostile.close()
        nothing_is_left(one)


def greeted(one: InProcessDaemon) -> AgentSocket:
    """A well-behaved agent, and every server up."""
    good = one.connect()
    good.greet()
    for name in SERVERS:
        good.echo("first", f"{name}__echo")
    return good


def nothing_is_left(one: InProcessDaemon) -> None:
    """Of all the others: no session, no call, no question, nothing parked."""
    one.wait(PARKED_S)
    core = one.broker.core
    assert [session.carrier for session in core.sessions.values()] == ["client"]
    assert not core.call_table.calls
    assert not one.supervisor.core.dispatcher.calls
    assert len(one.broker._agent_server.connections.agents) == 1
    assert not one.broker._agent_server.connections.streams


@behaviour("bad-input:agents")
def test_whatever_an_agent_writes_each_request_is_answered_once_and_nobody_notices(house: Path) -> None:
    fuzz(lambda rng: plain(rng, house), examples=12, seeds=60)


@behaviour("bad-input:agents")
def test_whatever_a_carrier_of_many_writes_nobody_notices(house: Path) -> None:
    fuzz(lambda rng: framed(rng, house), examples=8, seeds=40)


def test_fifty_thousand_ids_are_answered_and_leave_nothing(house: Path) -> None:
    """Also cancels of ids that were never used, progress for tokens nobody gave, answers to nothing."""
    with in_process_daemon(house, SERVERS, PROGRAMS) as one:
        good, many = greeted(one), one.connect()
        many.send(
            b'{"jsonrpc":"2.0","id":"h","method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
        )
        many.lines.clear()
        words = (
            b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n',
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c%d"}}\n',
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progress":1}}\n',
            b'{"jsonrpc":"2.0","id":"a%d","result":{}}\n',
        )
        with mock.patch.object(one.broker._pump, "_check", new=False):
            for at in range(0, 50_000, 500):
                many.send(b"".join(word % each for each in range(at, at + 500) for word in words))
        assert Counter(map(raw_id, many.lines)) == {b"%d" % each: 1 for each in range(50_000)}
        session = one.broker.core.sessions[SessionId("s2")]
        assert not session.open_calls
        assert not one.broker.core.requests.deferred.of(session.id)
        assert entries_of(session) < 10_000
        good.echo("undisturbed")


def entries_of(session: Any) -> int:
    """About what a session holds: the entries of all its containers."""
    return sum(
        len(held) for slot in dir(session) if isinstance(held := getattr(session, slot), dict | set | list)
    )
