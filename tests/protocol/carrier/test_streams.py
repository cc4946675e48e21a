"""Frames of a carrier with many streams: what goes in comes out, and nothing raises."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from carpool_protocol.carrier.attach_line import WorkspaceChanged
from carpool_protocol.carrier.streams import (
    CONTROL,
    ClientAbsent,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    ExchangeEnded,
    OpenCallsRaised,
    OpenStream,
    ServersStateful,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    control_line,
    frame_line,
    on_one_line,
    read_control,
    split_frame,
)

NUMBERS = st.integers(1, 10**18 - 1)
ON_ONE_LINE = st.binary(min_size=1).filter(lambda data: b"\n" not in data and not data.startswith(b"null,{"))
TEXTS = st.text(max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
WORDS: list[ControlMessage] = [
    OpenStream(),
    OpenStream(
        kind="shared", principal="ann", server="git", profile="p", agent="a\n", cwd="/é", max_open_calls=7
    ),
    StreamOpened("token", "s12"),
    StreamRefused("no such server", "unknown_server"),
    ExchangeClientGone(3),
    CloseStream(),
    OpenCallsRaised(9),
    ClientAbsent(True),
    ClientAbsent(False),
    ExchangeEnded(10**17),
    StreamClosed("it is over"),
    OpenStream(workspace="shop"),
    WorkspaceChanged("shop", by_roots=True),
    ServersStateful(["browser", "counter"]),
]


@given(NUMBERS, ON_ONE_LINE, NUMBERS)
@example(1, b"5", 7)
@example(1, b"null", 7)
@example(1, b",2", 3)
def test_a_message_of_an_exchange_comes_out_as_it_went_in_whatever_it_is(
    stream: int, message: bytes, exchange: int
) -> None:
    line = frame_line(stream, message, exchange)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert split_frame(line[:-1]) == (stream, message, exchange)


@given(NUMBERS, st.recursive(st.integers() | TEXTS, st.lists, max_leaves=8))
@example(1, [1, 2])
def test_an_object_or_array_needs_no_exchange(stream: int, value: object) -> None:
    for held in ([value], {"a": value}):
        message = json.dumps(held).encode()
        assert split_frame(frame_line(stream, message)[:-1]) == (stream, message, 0)


def test_the_line_end_of_a_message_is_the_frames() -> None:
    assert frame_line(1, b'{"a":1}\n', 2) == frame_line(1, b'{"a":1}', 2) == b'[1,{"a":1},2]\n'
    assert frame_line(1, b"{}\n") == frame_line(1, b"{}") == b"[1,{}]\n"


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word).__name__)
def test_a_word_comes_out_as_it_went_in(word: ControlMessage) -> None:
    line = control_line(9, word)
    assert line.count(b"\n") == 1
    json.loads(line)
    cut = split_frame(line[:-1])
    assert cut is not None
    assert (cut[0], cut[2]) == (9, CONTROL)
    assert read_control(cut[1]) == word


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"[",
        b"[]",
        b"[1]",
        b"[1,]",
        b"[1,5]",
        b"[1,,2]",
        b"[0,{}]",
        b"[01,{}]",
        b"[-1,{}]",
        b"[1,{},0]",
        b"[ 1,{}]",
        b"[1,null,{",
        b"1,{}]",
        b"[1,{},2",
        b"[1000000000000000000000,{}]",
        b'{"jsonrpc":"2.0"}',
    ],
)
def test_what_is_no_frame_is_none(junk: bytes) -> None:
    assert split_frame(junk) is None


@given(
    st.binary() | st.lists(st.sampled_from([b"[", b"]", b",", b"1", b"0", b"null", b"{", b"}"])).map(b"".join)
)
def test_junk_never_raises(junk: bytes) -> None:
    cut = split_frame(junk)
    if cut is not None:
        assert cut[0] > 0
        assert cut[1]
        assert cut[2] == CONTROL or cut[2] >= 0
    read_control(junk)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"gone":"x"}',
        b'{"gone":1,"close":{}}',
        b'{"open":{"kind":"other"}}',
        b'{"opened":{}}',
        b'{"open":' * 5000,
        b"\xff",
    ],
)
def test_what_says_nothing_or_two_things_is_no_word(raw: bytes) -> None:
    assert read_control(raw) is None


def test_a_body_on_several_lines_becomes_one() -> None:
    assert on_one_line(b'{\r\n  "a": 1\n}\n') == b'{    "a": 1 }'
    assert on_one_line(b'{"a":1}') == b'{"a":1}'
