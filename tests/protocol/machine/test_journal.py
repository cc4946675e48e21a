"""The journal: keeps no payload and no secret, tells stories, and replays."""

import gc
import math
import sys
import types
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from carpool_protocol import ids
from carpool_protocol.ids import CallId, InstanceId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    AnyMessage,
    Call,
    CallAnswered,
    CancelCall,
    Catalog,
    Document,
    Name,
    Offer,
    Payload,
    Policy,
    PoolSpec,
    Secret,
    SetPools,
)
from carpool_protocol.machine.journal import MAX_DOCUMENT_BYTES, Journal, load_journal, replay
from carpool_protocol.machine.journal_shapes import MAX_NAMES_CHARS, SMALL_BYTES, kept_bytes
from carpool_protocol.machine.machine import Ticked


class ToyEvent(Struct, frozen=True):
    """A toy core's event: the link said something."""

    peer: str
    message: AnyMessage


class Came(Struct, frozen=True, kw_only=True):
    """An event with one of everything a journal must carry."""

    instance: InstanceId
    lines: list[Payload]
    maybe: Payload | None = None
    secret: Secret = {}
    pair: tuple[int, str] = (0, "")
    tags: frozenset[str] = frozenset()
    by_call: dict[CallId, float] = {}
    raw: bytes = b""
    limit_s: float = math.inf
    specs: tuple[PoolSpec, ...] = ()


class Plain(Struct, frozen=True):
    session: SessionId
    number: int


class Opened(Struct, frozen=True):
    calls: list[CallId]


def call(number: int, params: bytes = b"{}") -> Call:
    return Call(
        call=CallId(number),
        key=PoolKey("echo:k"),
        session=SessionId("s1"),
        method="tools/call",
        target="echo",
        params=RawJson(params),
        meta=RawJson(b""),
        wants_progress=False,
    )


def spec(env: dict[str, str], argv: list[str] | None = None) -> PoolSpec:
    return PoolSpec(
        key=PoolKey("echo:k"), server=ServerName("echo"), argv=argv or [], env=env, cwd="/", policy=Policy()
    )


CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType)
"""What leads to the whole process: once a worker of 23 GB was killed for it."""


def reachable(root: object) -> list[object]:
    """All data that `root` keeps alive."""
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen and not isinstance(found, CODE):
            seen[id(found)] = found
            waiting += gc.get_referents(found)
    return list(seen.values())


def test_neither_payloads_nor_secrets_stay_alive_in_the_ring() -> None:
    journal = Journal()
    payload, secret = b"p" * 5000, "hunter2-and-more"
    journal.record(
        1.0,
        ToyEvent("b", call(1, payload)),
        [call(2, payload), CallAnswered(CallId(2), False, RawJson(payload))],
    )
    journal.record(1.0, SetPools([spec({"TOKEN": secret}, ["server", secret])]), [])
    journal.record(
        1.0,
        Came(
            instance=InstanceId(1),
            lines=[RawJson(payload)],
            maybe=RawJson(payload),
            secret={"TOKEN": secret},
            specs=(spec({"TOKEN": secret}),),
        ),
        [],
    )
    kept = reachable(journal._ring)
    assert not any(thing is payload or thing is secret for thing in kept)
    assert b"hunter2" not in journal.dump()
    assert b"ppp" not in journal.dump()


class Write(Struct, frozen=True):
    """An effect that holds a message."""

    wire: int
    call: Call


class Whispered(Struct, frozen=True):
    line: Payload
    secret: Secret


class Light(Struct, frozen=True):
    name: str


class Bringing(Struct, frozen=True):
    """An event that most often brings nothing."""

    body: Payload
    by: Light | None = None
    brought: tuple[Call, ...] = ()


def test_an_event_that_could_bring_payloads_and_brings_none_stays_as_it_is_in_the_ring() -> None:
    journal = Journal()
    bare, by, full = (
        Bringing(RawJson(b"{}")),
        Bringing(RawJson(b"{}"), Light("x")),
        Bringing(RawJson(b"{}"), None, (call(1, b"p" * 9),)),
    )
    for event in (bare, by, full):
        journal.record(1.0, event, [])
    kept = reachable(journal._ring)
    assert all(any(thing is event for thing in kept) for event in (bare, by))
    assert not any(thing is full or thing is full.brought[0] for thing in kept)
    assert b"ppp" not in journal.dump()


def test_only_small_payloads_without_secrets_beside_them_wait_in_the_ring_to_be_stripped() -> None:
    journal = Journal()
    small, large, beside = b"s" * (SMALL_BYTES - 2), b"l" * SMALL_BYTES, b"b" * 4
    secret = "hunter2-and-more"
    journal.record(1.0, CallAnswered(CallId(1), False, RawJson(small)), [Write(1, call(1, small))])
    journal.record(
        2.0, CallAnswered(CallId(2), False, RawJson(large)), [Write(2, call(2, large)), call(3, large)]
    )
    journal.record(3.0, Whispered(RawJson(beside), {"TOKEN": secret}), [])
    kept = reachable(journal._ring)
    assert any(thing is small for thing in kept)
    assert not any(thing is hidden for thing in kept for hidden in (large, beside, secret))
    dump = journal.dump()
    for hidden in (b"ssss", b"llll", b"bbbb", b"hunter2"):
        assert hidden not in dump
    first = journal.entries()[0]
    assert first.event["body"] == first.effects[0]["call"]["params"] == {"bytes": len(small)}
    assert [entry.seq for entry in journal.story(1, ids.CallId)] == [0]


def test_the_ring_keeps_the_last_entries_and_counts_all() -> None:
    journal = Journal(size=3)
    for i in range(5):
        journal.record(float(i), Plain(SessionId("s1"), i), [])
    assert [entry.seq for entry in journal.entries()] == [2, 3, 4]
    assert len(journal) == 3


def test_a_story_holds_the_entries_that_name_the_call() -> None:
    journal = Journal()
    journal.record(1.0, ToyEvent("b", call(5)), [])
    journal.record(2.0, Plain(SessionId("s2"), 5), [])
    journal.record(3.0, Plain(SessionId("s2"), 1), [CancelCall(call=CallId(5), reason="")])
    journal.record(4.0, Came(instance=InstanceId(5), lines=[]), [])
    journal.record(5.0, Opened([CallId(4), CallId(5)]), [])
    assert [e.seq for e in journal.story(5, ids.CallId)] == [0, 2, 4]
    assert [e.seq for e in journal.story(5, ids.InstanceId)] == [3]
    assert [e.seq for e in journal.story(5)] == [0, 2, 3, 4]
    assert [e.seq for e in journal.story("s2")] == [1, 2]
    assert journal.story("5") == []


def test_a_line_is_for_people_and_shows_lengths() -> None:
    journal = Journal()
    journal.record(1.5, ToyEvent("b", call(5, b"x" * 12)), [Plain(SessionId("s1"), 2)])
    (entry,) = journal.entries()
    assert entry.line().startswith("1.500000 #0 ToyEvent(peer='b', message=Call(call=5")
    assert "params=<12 bytes>" in entry.line()
    assert entry.line().endswith("-> Plain(session='s1', number=2)")


def test_events_come_back_with_blanks_of_the_right_length() -> None:
    journal = Journal()
    event = Came(
        instance=InstanceId(3),
        lines=[RawJson(b"abc"), RawJson(b"")],
        maybe=RawJson(b"12345"),
        secret={"TOKEN": "x"},
        pair=(4, "four"),
        tags=frozenset({"a", "b"}),
        by_call={CallId(7): 1.5},
        raw=b"\xff\x00",
        specs=(spec({"A": "b"}),),
    )
    journal.record(1.0, event, [])
    journal.record(2.0, ToyEvent("b", CallAnswered(CallId(1), True, RawJson(b"abc"))), [])
    journal.record(3.0, Ticked(), [])
    assert load_journal(journal.dump(), [Came | ToyEvent]) == [
        (
            1.0,
            Came(
                instance=InstanceId(3),
                lines=[RawJson(b"   "), RawJson(b"")],
                maybe=RawJson(b" " * 5),
                secret={},
                pair=(4, "four"),
                tags=frozenset({"a", "b"}),
                by_call={CallId(7): 1.5},
                raw=b"\xff\x00",
                limit_s=math.inf,
                specs=(spec({}),),
            ),
        ),
        (2.0, ToyEvent("b", CallAnswered(CallId(1), True, RawJson(b"   ")))),
        (3.0, Ticked()),
    ]


def test_every_link_message_with_defaults_survives_the_way_back() -> None:
    journal = Journal()
    wanted = SetPools([spec({})])
    journal.record(1.0, wanted, [])
    assert load_journal(journal.dump(), [AnyMessage]) == [(1.0, wanted)]


def test_what_is_no_dump_is_refused() -> None:
    journal = Journal()
    journal.record(1.0, Plain(SessionId("s1"), 1), [])
    with pytest.raises(ValueError, match="unknown event 'Plain'"):
        load_journal(journal.dump(), [ToyEvent])
    with pytest.raises(ValueError, match="malformed"):
        load_journal(b"half a li", [ToyEvent])


@pytest.mark.parametrize(
    "event",
    [
        '{"type":"CancelCall","call":1}',
        '{"type":"CancelCall","call":"x","reason":"r"}',
        '{"type":["CancelCall"]}',
        '{"type":"CallAnswered","call":1,"is_error":false,"body":5}',
        '{"type":"CallAnswered","call":1,"is_error":false,"body":{"bytes":-1}}',
        '{"type":"CallAnswered","call":1,"is_error":false,"body":{"bytes":1e15}}',
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_an_event_that_is_not_as_its_class_wants_it_is_no_dump(event: str) -> None:
    """A dump is a file: it may have been cut, edited, or made for an older version."""
    line = f'{{"seq":0,"now":1.0,"event":{event},"effects":[]}}'
    with pytest.raises(ValueError, match=r"line 1|Expected|bytes"):
        load_journal(line.encode(), [AnyMessage])


def test_only_structs_are_recorded() -> None:
    with pytest.raises(TypeError, match="Structs"):
        Journal().record(1.0, object(), [])


class Named(Struct, frozen=True):
    """An event with names of any length."""

    name: Name
    cursor: Name | None = None
    uris: tuple[Name, ...] = ()


def test_of_long_names_and_long_lists_of_names_the_beginning_stays_in_the_ring() -> None:
    journal = Journal()
    long = "\N{GRINNING FACE}" + "n" * 100_000
    many = tuple(f"file:///{number}" for number in range(1000))
    journal.record(
        1.0, Named(long), [Named("a", long), Write(1, msgspec.structs.replace(call(1), target=long))]
    )
    journal.record(2.0, Named("a", None, many), [Named("a", None, (long,) * 1000)])
    kept = (thing for thing in reachable(journal._ring) if isinstance(thing, str))
    texts = [text for text in kept if text.startswith((long[0], many[0][:8]))]
    assert max(map(len, texts)) <= SMALL_BYTES
    assert sum(map(sys.getsizeof, texts)) < 8 * MAX_NAMES_CHARS
    first, second = journal.entries()
    assert first.event["name"][:99] == long[:99]
    assert first.event["name"] == first.effects[0]["cursor"] == first.effects[1]["call"]["target"]
    *told, left = second.event["uris"]
    assert told == list(many[: len(told)])
    assert left == f"~{1000 - len(told)} more"


def test_long_names_that_differ_at_their_ends_differ_in_a_dump_and_short_ones_come_back() -> None:
    journal = Journal()
    events = [Named("short", "c", ("a:b", "a:c")), Named("n" * 1000 + "1"), Named("n" * 1000 + "2")]
    for event in (*events, *events):
        journal.record(1.0, event, [])
    found = [event for _, event in load_journal(journal.dump(), [Named])]
    assert found[0] == events[0]
    assert found[1] != found[2]
    assert found[:3] == found[3:]


def test_bytes_of_texts_are_counted_as_memory_holds_them() -> None:
    assert kept_bytes(Named("n" * 1000, "c" * 24, ("a:b",))) == 1027
    for wide, each in (("\N{GREEK CAPITAL LETTER DELTA}", 2), ("\N{GRINNING FACE}", 4)):
        assert each * 1000 <= kept_bytes(Named("n" * 999 + wide)) < each * 1000 + 8


class Described(Struct, frozen=True):
    """An event with documents further down, beside a payload."""

    about: Document
    kept: dict[PoolKey, Catalog] = {}
    params: Payload = RawJson(b"")


def catalog(size_bytes: int) -> Catalog:
    tools = [Offer(f"tool{at}", RawJson(bytes(size_bytes // 8))) for at in range(8)]
    return Catalog(PoolKey("s:1"), tools, "", RawJson(b"{}"), RawJson(b"{}"), "")


def described(size_bytes: int) -> Described:
    return Described(RawJson(b"{}"), {PoolKey("s:1"): catalog(size_bytes)}, RawJson(bytes(SMALL_BYTES)))


@pytest.mark.parametrize(
    "entry",
    [
        lambda size: (catalog(size), []),
        lambda size: (Plain(SessionId("s"), 1), [catalog(size)]),
        lambda size: (Plain(SessionId("s"), 1), [CancelCall(CallId(1), "x" * SMALL_BYTES), catalog(size)]),
        lambda size: (described(size), []),
    ],
    ids=["an event", "an effect", "an effect beside a long text", "further down in an event"],
)
def test_the_oldest_entries_leave_the_ring_for_documents_over_its_limit(entry: Any) -> None:
    journal = Journal()
    journal.record(0.0, Plain(SessionId("first"), 0), [])
    for now in range(1, 9):
        journal.record(float(now), *entry(MAX_DOCUMENT_BYTES // 4))
    assert 6 <= journal.entries()[0].seq <= 7, "four with a little more each are too many"
    journal.record(9.0, *entry(2 * MAX_DOCUMENT_BYTES))
    assert [each.seq for each in journal.entries()] == [9], "the newest one stays"
    journal.record(10.0, *entry(MAX_DOCUMENT_BYTES // 4))
    journal.record(11.0, Plain(SessionId("last"), 0), [])
    assert [each.seq for each in journal.entries()] == [10, 11]


def test_documents_that_have_left_the_ring_take_no_room_of_others() -> None:
    journal = Journal(2)
    for now in range(9):
        journal.record(float(now), catalog(MAX_DOCUMENT_BYTES // 4), [])
    assert [each.seq for each in journal.entries()] == [7, 8]
    for now in range(9, 99):
        journal.record(float(now), catalog(80), [])
    assert len(journal._documents) == 3, "the ring's, and one that has left it with the newest"


def test_small_documents_stay_in_a_dump() -> None:
    journal = Journal()
    journal.record(0.0, catalog(800), [])
    assert load_journal(journal.dump(), [Catalog]) == [(0.0, catalog(800))]


class Spoke(Struct, frozen=True):
    line: Payload


class Total(Struct, frozen=True):
    size_bytes: int


class Counter:
    """A toy core: sums lengths, forgets a tenth of it at each tick."""

    def __init__(self) -> None:
        self.total = 0
        self.last = 0.0

    def handle(self, event: Spoke, now: float) -> list[Total]:
        self.total += len(event.line)
        self.last = now
        return [Total(self.total)] if self.total % 2 else []

    def tick(self, now: float) -> list[Total]:
        self.total -= self.total // 10
        self.last = now
        return [Total(self.total)]

    def next_deadline(self) -> float | None:
        return None

    def check(self) -> None:
        assert self.total >= 0

    def check_touched(self, event: Spoke | Ticked, effects: Sequence[Total]) -> None:
        self.check()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=30)), max_size=30))
def test_a_dumped_journal_replays_to_the_same_place(lines: list[bytes | None]) -> None:
    journal, machine, now = Journal(), Counter(), 0.0
    effects: list[list[Total]] = []
    for line in lines:
        now += 0.1
        event: Any = Ticked() if line is None else Spoke(RawJson(line))
        out = machine.tick(now) if line is None else machine.handle(event, now)
        journal.record(now, event, out)
        effects.append(out)
    again = Counter()
    assert replay(again, load_journal(journal.dump(), [Spoke])) == effects
    assert (again.total, again.last) == (machine.total, machine.last)
