"""One connection of the Python client, without a socket."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from carpool.api.attach import Attachment
from carpool.shim.kept_lines import Kept
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.carrier.attach import (
    Moved,
    Settled,
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
        moved_line(Moved("shop")),
        ANSWER % 3,
        ended_line("enough", again=True),
        b'{"jsonrpc":"2.0","id":4,"res',
    ]
)


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=30))
def test_however_the_bytes_are_cut_the_lines_and_what_is_kept_are_the_same(cuts: list[int]) -> None:
    kept = Kept()
    one = Attachment(kept, HELLO, variables)
    for number in range(1, 5):
        one.say(CALL % number)
    places = sorted({0, len(STREAM), *cuts})
    lines = [line for a, b in pairwise(places) for line in one.received(STREAM[a:b])]
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
    kept = Kept()
    one = Attachment(kept, HELLO, variables)
    one.say(CALL % 1)
    one.say(CALL % 2)
    assert one.untaken_bytes() == len(kept.fresh), "it says its first line before it takes anything"
    one.received(attached_line("s1", [], "0.secret", "e"))
    one.wrote(taken_bytes)
    assert one.untaken_bytes() == len(one.out)
    one.say(CALL % 3)
    assert one.untaken_bytes() == len(one.out)
    assert one.untaken_bytes() >= len(CALL % 3)


def test_a_line_that_only_looks_like_the_brokers_is_the_agents() -> None:
    one = Attachment(Kept(), HELLO, variables)
    assert one.received(b'{"jsonrpc":"2.0","id":1,"result":{}}\n') == [
        b'{"jsonrpc":"2.0","id":1,"result":{}}'
    ]
    assert one.attached is None
