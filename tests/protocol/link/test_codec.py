"""Frames: what goes in comes out, in order, cut to size; nothing that comes in can raise."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

from carpool_protocol.ids import AskId, CallId, Epoch, RawJson, SessionId
from carpool_protocol.link.codec import (
    FRAME_BYTES,
    MESSAGE_BYTES,
    AnyFrame,
    BadFrame,
    Frame,
    FrameData,
    SplitFrame,
    decode_frame,
    encode_frames,
    paid_size,
)
from carpool_protocol.link.messages import (
    AnyMessage,
    AskWithdrawn,
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    Credit,
    ElicitationFinished,
    Heartbeat,
    Hello,
)
from tests.behaviours import behaviour
from tests.kit.link_messages import call


def decoded(data: FrameData) -> AnyFrame:
    frame = decode_frame(data)
    assert isinstance(frame, Frame)
    return frame


def test_a_burst_is_one_frame_with_both_epochs() -> None:
    messages: list[AnyMessage] = [call(i, 20) for i in range(64)]
    (data,) = encode_frames("b1", "s1", messages)
    assert decoded(data) == Frame(sender="b1", receiver="s1", messages=messages)


def test_nothing_to_say_is_no_frame() -> None:
    assert encode_frames("b1", "s1", []) == []


def test_a_message_with_more_than_a_frame_of_payload_travels_alone() -> None:
    messages = [call(1, 10), call(2, FRAME_BYTES + 1), call(3, 10), call(4, 10)]
    frames = [decoded(data) for data in encode_frames("b1", "s1", messages, cargo_bytes=FRAME_BYTES + 400)]
    assert [[m.call for m in f.messages if isinstance(m, Call)] for f in frames] == [[1], [2], [3, 4]]


def test_the_body_of_a_long_answer_stands_beside_its_frame_and_is_not_copied() -> None:
    body = RawJson(b'"' + b"x" * FRAME_BYTES + b'"')
    answer = CallAnswered(CallId(2), True, body, ttl_ms=5, urls=(RawJson(b"{}"),))
    small = CallAnswered(CallId(1), False, RawJson(b"{}"))
    first, split, last = encode_frames("s1", "b1", [small, answer, small], cargo_bytes=len(body))
    assert isinstance(split, SplitFrame)
    assert split.body is body
    assert len(split.head) < 100
    assert len(split) == len(split.head) + len(body)
    back = decode_frame(split, "broker")
    assert back == Frame(sender="s1", receiver="b1", messages=[answer])
    assert isinstance(back, Frame)
    assert back.messages[0].body is body  # type: ignore[union-attr]  # an answer, as seen above
    assert decoded(first).messages == decoded(last).messages == [small]


@pytest.mark.parametrize(
    "messages", [[], [CallAnswered(CallId(1), False, RawJson(b"{}"))] * 2, [Heartbeat()], [call(1, 5)]]
)
def test_a_body_beside_anything_but_one_answer_is_no_frame(messages: list[AnyMessage]) -> None:
    head = msgpack.encode(("s1", "b1", messages))
    assert isinstance(decode_frame(SplitFrame(head, b"{}")), BadFrame)


sizes = st.one_of(st.integers(0, 200), st.integers(FRAME_BYTES - 300, FRAME_BYTES + 300), st.just(100_000))


@settings(deadline=None, max_examples=60)
@given(st.lists(sizes, max_size=12), st.booleans())
def test_any_burst_comes_back_in_order_and_in_frames_of_the_right_size(sizes: list[int], hint: bool) -> None:
    messages: list[AnyMessage] = [call(i, size) for i, size in enumerate(sizes)]
    cargo = sum(map(paid_size, messages)) if hint else 0
    frames = encode_frames("b1", "s1", messages, cargo_bytes=cargo)
    back = [decoded(data) for data in frames]
    assert [m for frame in back for m in frame.messages] == messages
    for data, frame in zip(frames, back, strict=True):
        assert len(data) <= FRAME_BYTES or len(frame.messages) == 1
        assert frame.messages


def test_many_small_messages_are_cut_by_their_real_size() -> None:
    messages: list[AnyMessage] = [CancelCall(call=CallId(i), reason="r" * 50) for i in range(20_000)]
    frames = encode_frames("b1", "s1", messages)
    assert len(frames) > 1
    assert all(len(data) <= FRAME_BYTES for data in frames)
    assert [m for data in frames for m in decoded(data).messages] == messages


@behaviour("link:free-messages")
@pytest.mark.parametrize(
    ("message", "size"),
    [
        (call(1, 10, 5), 15 + MESSAGE_BYTES),
        (CallAnswered(call=CallId(1), is_error=False, body=RawJson(b"{}")), 2 + MESSAGE_BYTES),
        (CallProgressed(call=CallId(1), params=RawJson(b"{ }")), 3 + MESSAGE_BYTES),
        (AskWithdrawn(ask=AskId("a"), reason="r"), MESSAGE_BYTES),
        (ElicitationFinished(session=SessionId("s"), params=RawJson(b"{}")), 2 + MESSAGE_BYTES),
        (Heartbeat(), 0),
        (Credit(size_bytes=9), 0),
        (CancelCall(call=CallId(1), reason="r"), 0),
        (CallFailed(call=CallId(1), fault="lost", delivered="maybe", text="t"), 0),
    ],
)
def test_only_messages_with_cargo_need_credit(message: AnyMessage, size: int) -> None:
    assert paid_size(message) == size


def test_a_reader_takes_only_what_is_meant_for_its_side() -> None:
    (data,) = encode_frames("b1", "s1", [call(1, 1)])
    assert isinstance(decode_frame(data, "broker"), BadFrame)
    assert isinstance(decode_frame(data, "supervisor"), Frame)
    greeting = Hello(version=1, epoch=Epoch("b1"), name="broker", pid=1, release="0")
    for reader in ("broker", "supervisor", "any"):
        (data,) = encode_frames("b1", "", [greeting])
        assert isinstance(decode_frame(data, reader), Frame)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=200))
def test_no_bytes_can_make_the_decoder_raise(data: bytes) -> None:
    assert isinstance(decode_frame(data), (Frame, BadFrame))


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_damaged_frame_is_a_value(data: st.DataObject) -> None:
    (whole,) = encode_frames("b1", "s1", [call(1, 30), CancelCall(call=CallId(2), reason="no")])
    assert isinstance(whole, bytes)
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    for piece in (damaged, whole[:at], SplitFrame(damaged, b"body")):
        assert isinstance(decode_frame(piece), (Frame, BadFrame))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93\xa1\xff\xa0\x90",
        b"\x91" * 100_000,
        b"\x93\xa0\xa0\xdd\xff\xff\xff\xff",
        b"\x93\xa0\xa0" + b"\x91" * 100_000,
    ],
)
def test_hostile_bytes_are_bad_frames_that_quote_nothing(data: bytes) -> None:
    frame = decode_frame(data)
    assert isinstance(frame, BadFrame)
    assert "\\x" not in frame.text
