"""Where lines end, whatever the chunks."""

import itertools
from binascii import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import RawJson
from carpool_protocol.wire.lines import LineBuffer, OverlongLine
from tests.behaviours import behaviour

quick = settings(deadline=None, max_examples=150)


def fed(chunks: list[bytes], cap_bytes: int = 1000) -> list[bytes | OverlongLine]:
    buffer = LineBuffer(cap_bytes)
    return [line for chunk in chunks for line in buffer.feed(chunk)]


def test_whole_lines_come_in_order_and_the_rest_waits() -> None:
    buffer = LineBuffer(100)
    assert buffer.feed(b"one\ntwo\nthr") == [b"one", b"two"]
    assert buffer.pending_bytes == 3
    assert buffer.feed(b"ee") == []
    assert buffer.pending_bytes == 5
    assert buffer.feed(b"\n") == [b"three"]
    assert buffer.pending_bytes == 0


def test_empty_lines_are_left_out_and_one_carriage_return_is_stripped() -> None:
    assert fed([b"\n\r\na\r\n\nb\r\r\n", b"c\r", b"\n", b"\r", b"\n"]) == [b"a", b"b\r", b"c"]


def test_only_a_line_feed_ends_a_line() -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\rg".encode()
    assert fed([text + b"\n"]) == [text]


def test_a_line_of_exactly_the_cap_is_a_line() -> None:
    assert fed([b"x" * 10 + b"\n"], cap_bytes=10) == [b"x" * 10]
    assert fed([b"x" * 4, b"x" * 6, b"\n"], cap_bytes=10) == [b"x" * 10]


@behaviour("lines:over-the-cap")
def test_a_line_over_the_cap_says_whose_it_was_and_its_neighbours_are_unharmed() -> None:
    long = b'{"result":"' + b"x" * 100 + b'","jsonrpc":"2.0","id":"z"}'
    expected = [b"before", OverlongLine(RawJson(b'"z"'), True, len(long), crc32(long)), b"after"]
    whole = b"before\n" + long + b"\nafter\n"
    for size in (1, 2, 7, 50, 1000):
        assert fed([whole[at : at + size] for at in range(0, len(whole), size)], cap_bytes=64) == expected


def test_a_long_call_and_long_junk_are_told_apart() -> None:
    call = b'{"method":"m","id":4,"params":{"a":"' + b"x" * 100 + b'"}}'
    assert fed([call + b"\n", b"y" * 100 + b"\n"], cap_bytes=64) == [
        OverlongLine(RawJson(b"4"), False, len(call), crc32(call)),
        OverlongLine(None, None, 100, crc32(b"y" * 100)),
    ]


def test_nothing_of_a_line_over_the_cap_is_kept() -> None:
    buffer = LineBuffer(64)
    assert buffer.feed(b"x" * 64) == []
    assert buffer.pending_bytes == 64
    for _ in range(10):
        assert buffer.feed(b"x" * 64) == []
        assert buffer.pending_bytes == 0
    assert buffer.feed(b"\nok\n") == [OverlongLine(None, None, 64 * 11, crc32(b"x" * 64 * 11)), b"ok"]


def test_a_long_line_in_many_chunks_comes_out_whole() -> None:
    # A copy of all that came before for each chunk would move half a terabyte here and never end.
    buffer = LineBuffer(64 * 1024 * 1024)
    chunk = b"a" * 64
    for _ in range(128 * 1024):
        assert buffer.feed(chunk) == []
    [line] = buffer.feed(b"\n")
    assert line == chunk * (128 * 1024)


@quick
@given(
    st.lists(
        st.sampled_from(
            [
                b"\n",
                b"\r",
                b"\r\n",
                b'{"id":1,',
                b'"result":"',
                b'"}',
                b"\\",
                b'"',
                b"[",
                b"]",
                b"xyz",
                b"\xff",
                b"",
            ]
        ),
        max_size=40,
    ).map(b"".join),
    st.lists(st.integers(0, 120), max_size=12),
    st.integers(1, 40),
)
def test_chunking_never_matters(stream: bytes, cuts: list[int], cap_bytes: int) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert fed([*chunks, b"\n"], cap_bytes) == fed([stream + b"\n"], cap_bytes)


@quick
@given(st.binary(max_size=200), st.integers(1, 50))
def test_every_byte_comes_out_or_is_counted(stream: bytes, cap_bytes: int) -> None:
    expected = [line for line in stream.split(b"\n") if line not in {b"", b"\r"}]
    found = fed([stream, b"\n"], cap_bytes)
    assert len(found) == len(expected)
    for got, sent in zip(found, expected, strict=True):
        if isinstance(got, OverlongLine):
            assert got.size_bytes == len(sent) > cap_bytes
        else:
            assert got == sent.removesuffix(b"\r")
            assert len(sent) <= cap_bytes


def fed_by_kind(chunks: list[bytes]) -> list[bytes | OverlongLine]:
    buffer = LineBuffer(1000, 64)
    found = [line for chunk in chunks for line in buffer.feed(chunk)]
    assert buffer.pending_bytes == 0
    return found


@behaviour("lines:no-result-no-room")
def test_a_line_that_holds_no_result_has_a_cap_of_its_own() -> None:
    text = b"x" * 100
    result = b'{"id":1,"result":"%b"}' % text
    notice = b'{"method":"n","params":{"result":"%b"}}' % text
    error = b'{"error":"%b","id":"z"}' % text
    lines = [b"before", result, notice, error, b'{"id":2,"result":0}', text, result]
    expected: list[bytes | OverlongLine] = [
        b"before",
        result,
        OverlongLine(None, False, len(notice), crc32(notice)),
        OverlongLine(RawJson(b'"z"'), True, len(error), crc32(error)),
        b'{"id":2,"result":0}',
        OverlongLine(None, None, len(text), crc32(text)),
        result,
    ]
    whole = b"\n".join(lines) + b"\n"
    for size in (1, 7, 50, 1000):
        assert fed_by_kind([whole[at : at + size] for at in range(0, len(whole), size)]) == expected


@behaviour("lines:no-result-no-room")
def test_a_result_may_have_the_cap_of_all_lines_and_no_more() -> None:
    result = b'{"result":"' + b"x" * 1000 + b'"}'
    assert fed_by_kind([result[:500], result[500:], b"\n"]) == [
        OverlongLine(None, True, len(result), crc32(result))
    ]
