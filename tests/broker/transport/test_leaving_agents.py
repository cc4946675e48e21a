"""A peer that goes while it is written to: its session ends after the burst, and nobody else notices.

Level: both real shells in one thread (`tests.kit.in_process_daemon`), by the shortest way to each place that
once took the session for granted.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool_broker.transport.inbound import MAX_OPERATOR_REQUESTS
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, attach_line
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from tests.behaviours import behaviour
from tests.kit import hostile_agents
from tests.kit.in_process_daemon import AgentSocket, InProcessDaemon, in_process_daemon
from tests.kit.in_process_servers import echo

SERVERS = {"good": {"command": "x", "args": ["echo"], "sharing": "concurrent"}}
KEEPS = attach_line(Attach(version=ATTACH_VERSION, carrier="client", cwd="/", keeps=True))
PINGS = range(OUTPUTS_PER_FLUSH - 4, OUTPUTS_PER_FLUSH + 1)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[InProcessDaemon]:
    with in_process_daemon(tmp_path, SERVERS, {"echo": echo}) as made:
        yield made


def ping(number: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % number


def up_to_a_flush(count: int) -> list[bytes]:
    """So many answers that the one to the last leaves with them, in a piece of lines that has not ended."""
    return [*map(ping, range(count)), b'{"jsonrpc":"2.0","method":"notifications/other"}\n', ping(98)]


def say_and_go(line: AgentSocket, data: bytes) -> None:
    """All of it can be read, and nothing can be written any more."""
    line._sock.send(data)
    line.close()


def others_are_served(one: InProcessDaemon, good: AgentSocket) -> None:
    good.echo("undisturbed")
    assert len(one.broker.core.sessions) == len(one.broker._agent_server.connections.agents) == 1


@pytest.mark.parametrize("before", PINGS)
@behaviour("leave:between-bursts")
def test_an_agent_that_leaves_with_a_burst_half_read_ends_no_other(one: InProcessDaemon, before: int) -> None:
    good, other = one.connect(), one.connect()
    good.greet()
    other.greet()
    say_and_go(other, b"".join(up_to_a_flush(before)) + b"[" + ping(99).strip() + b"]\n")
    others_are_served(one, good)


@pytest.mark.parametrize("before", PINGS)
@behaviour("leave:between-bursts")
def test_an_agent_that_leaves_while_it_moves_ends_no_other(
    one: InProcessDaemon, before: int, tmp_path: Path
) -> None:
    good, other = one.connect(), one.connect()
    good.greet()
    other.send(KEEPS)
    move = b'{"jsonrpc":"2.0","id":"m","method":"carpool/use_workspace","params":{"workspace":"%s"}}\n'
    say_and_go(other, b"".join(up_to_a_flush(before)) + move % str(tmp_path).encode())
    others_are_served(one, good)


@pytest.mark.parametrize("kind", [b"session", b"shared", b"control"])
@pytest.mark.parametrize("before", PINGS)
@behaviour("leave:between-bursts")
def test_an_http_door_that_leaves_within_a_burst_of_a_client_ends_no_other(
    one: InProcessDaemon, before: int, kind: bytes
) -> None:
    good, door = one.connect(), one.connect()
    good.greet()
    door.send(hostile_agents.door_attach() + b'\n[1,null,{"open":{"kind":"%b"}}]\n' % kind)
    pings = b"".join(b"[1,%b,1]\n" % each.strip() for each in up_to_a_flush(before))
    say_and_go(door, pings + b"[1,[%b],2]\n" % ping(99).strip())
    others_are_served_beside_one_that_lingers(one, good)


def others_are_served_beside_one_that_lingers(one: InProcessDaemon, good: AgentSocket) -> None:
    """A session over HTTP outlives its door for a while."""
    good.echo("undisturbed")
    one.wait(60)
    one.wait(60)
    others_are_served(one, good)


@behaviour("leave:everybody-told")
@pytest.mark.parametrize("again", [False, True])
def test_all_agents_are_told_of_an_end_though_one_of_them_cannot_be(
    one: InProcessDaemon, *, again: bool
) -> None:
    lines = [one.connect() for _ in range(3)]
    for line in lines:
        line.send(KEEPS)
    lines[1]._sock.shutdown(0)  # SHUT_RD, of which no reader hears
    one.broker._agent_server.stop_accepting("the end is meant", again=again)
    one.settle()
    for line in (lines[0], lines[2]):
        said = [json.loads(each) for each in line.lines]
        ends = [each["params"]["text"] for each in said if each["method"] == "carpool/ended"]
        assert ends == ["the end is meant"]
    one.broker._agent_server.close()


@behaviour("status:asked-once")
def test_a_session_of_an_operator_has_a_bounded_number_of_requests_open(one: InProcessDaemon) -> None:
    operator = one.connect()
    operator.send(attach_line(Attach(version=ATTACH_VERSION, carrier="cli", cwd="/", control=True)))
    count = MAX_OPERATOR_REQUESTS + 3
    ask = b'{"jsonrpc":"2.0","id":%d,"method":"carpool/status"}\n'
    operator._sock.send(b"".join(ask % number for number in range(count)))
    one.settle()
    said = [json.loads(each) for each in operator.lines]
    answers = {each["id"]: each for each in said if "id" in each}
    refused = sorted(ident for ident, each in answers.items() if "error" in each)
    assert refused == [*range(MAX_OPERATOR_REQUESTS, count)]
    assert f"At most {MAX_OPERATOR_REQUESTS}" in json.dumps(answers[refused[0]])
