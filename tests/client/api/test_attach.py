"""One connection of the Python client, without a socket."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from carpool.api.attach import BrokerAttachment
from carpool.shim.kept_lines import KeptLines
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach_line import (
    Settled,
    WorkspaceChanged,
    attached_line,
    ended_line,
    moved_line,
    settled_line,
    wanted_line,
)
from carpool_protocol.ids import Epoch

HELLO = b'{"jsonrpc":"2.0","method":"carpool/attach","params":{"version":1}}\n'
CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{}}\n'
LOOKS = rb'"{\"jsonrpc\":\"2.0\",\"method\":\"carpool/ended\""'
ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":{"text":' + LOOKS + b"}}\n"


def variables(names: list[str]) -> dict[str, str]:
    return dict.fromkeys(names, "x")


def settled(last: int, open_: list[int]) -> bytes:
    def name(number: int) -> int:
        return name_of(CALL[:-1] % number)

    return settled_line(Settled(Epoch("e"), name(last), 1, list(map(name, open_)), [], [], []))


STREAM = b"".join(
    [
        attached_line("s1", ["ONE"], "0.secret", "e"),
        ANSWER % 1,
        wanted_line(["TWO"]),
        b"\n",
        settled(2, [2]),
        ANSWER % 2,
        moved_line(WorkspaceChanged("shop")),
        ANSWER % 3,
        ended_line("enough", again=True),
        b'{"jsonrpc":"2.0","id":4,"res',
    ]
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=30))
def test_however_the_bytes_are_cut_the_lines_and_what_is_kept_are_the_same(cuts: list[int]) -> None:
    kept = KeptLines()
    one = BrokerAttachment(kept, HELLO, variables)
    for number in range(1, 5):
        one.send_line(CALL % number)
    places = sorted({0, len(STREAM), *cuts})
    lines = [line for a, b in pairwise(places) for line in one.feed(STREAM[a:b])]
    assert lines == [(ANSWER % 1)[:-1], b"", (ANSWER % 2)[:-1], (ANSWER % 3)[:-1]]
    assert (kept.epoch, kept.in_doubt) == (b"e", False)
    assert list(kept.open.values()) == [CALL[:-1] % 2]
    assert bytes(kept.fresh) == (CALL % 3) + (CALL % 4)
    assert bytes(kept.heard) == (ANSWER % 2) + (ANSWER % 3)
    assert json.loads(kept.moved)["params"]["workspace"] == "shop"
    assert json.loads(one.farewell)["params"] == {"text": "enough", "again": True}
    told = [json.loads(line) for line in bytes(one.out).splitlines()]
    environments = [each["params"] for each in told if each["method"] == "carpool/environment"]
    assert environments == [{"ONE": "x"}, {"TWO": "x"}]


@given(st.integers(0, len(HELLO) + 2 * len(CALL % 1)))
def test_what_the_socket_has_not_taken_no_broker_has_had(taken_bytes: int) -> None:
    kept = KeptLines()
    one = BrokerAttachment(kept, HELLO, variables)
    one.send_line(CALL % 1)
    one.send_line(CALL % 2)
    assert one.unread_by_broker_bytes() == len(kept.fresh), "it says its first line before it takes anything"
    one.feed(attached_line("s1", [], "0.secret", "e"))
    one.bytes_written(taken_bytes)
    assert one.unread_by_broker_bytes() == len(one.out)
    one.send_line(CALL % 3)
    assert one.unread_by_broker_bytes() == len(one.out)
    assert one.unread_by_broker_bytes() >= len(CALL % 3)


def test_a_line_that_only_looks_like_the_brokers_is_the_agents() -> None:
    one = BrokerAttachment(KeptLines(), HELLO, variables)
    assert one.feed(b'{"jsonrpc":"2.0","id":1,"result":{}}\n') == [b'{"jsonrpc":"2.0","id":1,"result":{}}']
    assert one.attached is None
