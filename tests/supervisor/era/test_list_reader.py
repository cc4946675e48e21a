"""A long list is read in slices: other messages meanwhile, and lists that are only partly read."""

import json
from typing import Any

import pytest

from carpool_protocol.ids import InstanceId, PoolKey, RawJson, WireId
from carpool_protocol.machine import slices
from carpool_supervisor.core.model.events import CatalogRead, InstanceGreeted, OwnEvent
from carpool_supervisor.era import list_pages
from carpool_supervisor.era.era_detection import EraDetection
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.behaviours import behaviour
from tests.supervisor.core.test_supervisor import call

ME = InstanceId(1)
MANY = 20_000
CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
GREETINGS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "x"},
    },
    "server/discover": {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
    },
}
"""By method: what a server of that era says of itself."""


class Many:
    """A server with many tools, and the adapter that speaks with it."""

    def __init__(self, adapter: Any, tools: int = MANY) -> None:
        self.adapter = adapter
        self.events: list[OwnEvent] = []
        self.out = self.adapter.greeting_line().splitlines()
        request = self.request()
        self.take(self.answer(request, GREETINGS[request["method"]]))
        self.tell("a", tools)

    def take(self, *lines: bytes) -> None:
        events, out = self.adapter.feed(list(lines))
        self.events += events
        self.out += b"".join(out).splitlines()

    def read_on(self) -> None:
        events, out = self.adapter.read_on()
        self.events += events
        self.out += b"".join(out).splitlines()

    def request(self, method: str = "") -> dict[str, Any]:
        """The last request that was written, of this method."""
        said = [json.loads(line) for line in self.out]
        found: dict[str, Any] = [it for it in said if "id" in it and method in ("", it["method"])][-1]
        return found

    def answer(self, request: dict[str, Any], result: dict[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()

    def tell(self, words: str, tools: int = MANY) -> None:
        """Answer the list request that is out."""
        every = [
            {"name": f"t{at}", "description": words, "inputSchema": {"type": "object"}} for at in range(tools)
        ]
        self.take(self.answer(self.request("tools/list"), {"tools": every}))

    def read_all(self) -> int:
        """In so many further slices."""
        turns = 0
        while self.adapter.is_reading:
            self.read_on()
            turns += 1
        return turns

    def catalogs(self) -> list[set[str]]:
        """The descriptions in each catalog that was told, and so many tools."""
        told = [it.catalog for it in self.events if isinstance(it, InstanceGreeted | CatalogRead)]
        return [{json.loads(tool.definition)["description"] for tool in each.tools} for each in told]


def handshake() -> HandshakeAdapter:
    return HandshakeAdapter(ME, PoolKey("many:1"), "1.0")


@behaviour("lists:in-slices")
@pytest.mark.parametrize("maker", [HandshakeAdapter, StatelessAdapter])
def test_an_answer_to_a_call_passes_while_a_long_list_is_read(maker: Any) -> None:
    many = Many(maker(ME, PoolKey("many:1"), "1.0"))
    assert many.adapter.is_reading
    assert many.catalogs() == []
    many.read_all()
    assert many.catalogs() == [{"a"}]
    line = many.adapter.call_line(WireId(7), call(7))
    many.out.append(line.rstrip(b"\n"))
    many.take(CHANGED) if maker is HandshakeAdapter else many.out.extend(
        many.adapter.relist_line().splitlines()
    )
    many.events.clear()
    many.tell("b")
    many.take(many.answer(json.loads(line), {"content": [], "resultType": "complete"}))
    assert many.adapter.is_reading
    assert len(many.events) == 1
    assert not many.catalogs()
    many.read_all()
    assert many.catalogs() == [{"b"}]


@behaviour("lists:in-slices")
@pytest.mark.parametrize(("tools", "size_bytes"), [(20_000, 10), (60_000, 10), (100, 200_000)])
def test_no_slice_is_longer_than_a_turn(tools: int, size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the number of entries nor for their bytes."""
    read: list[int] = []
    count = 0

    def repair_entry(definition: RawJson, _family: object) -> RawJson:
        nonlocal count
        count += list_pages._ENTRY_UNITS + len(definition) // list_pages._BYTES_OF_UNIT
        return definition

    monkeypatch.setattr(list_pages, "repair_entry", repair_entry)
    many = Many(handshake(), 1)
    many.take(CHANGED)
    count = 0
    many.tell("x" * size_bytes, tools)
    while many.adapter.is_reading:
        read.append(count)
        count = 0
        many.read_on()
    assert len(read) > 1
    largest = list_pages._STEP_UNITS + list_pages.MAX_ENTRY_BYTES // list_pages._BYTES_OF_UNIT
    assert max(read) <= slices.SLICE_UNITS + largest


def test_a_short_list_is_read_at_once() -> None:
    many = Many(handshake(), 1_000)
    assert not many.adapter.is_reading
    assert many.catalogs() == [{"a"}]


@behaviour("lists:in-slices")
def test_a_list_that_changes_while_it_is_read_is_asked_for_again_and_no_part_of_it_is_told() -> None:
    many = Many(handshake())
    many.read_all()
    many.take(CHANGED)
    many.events.clear()
    many.tell("b")
    many.take(CHANGED)
    asked = len(many.out)
    many.read_all()
    assert not many.events
    assert len(many.out) == asked + 1
    many.tell("c")
    many.read_all()
    assert many.catalogs() == [{"c"}]


def test_all_lists_are_read_again_after_the_one_that_is_being_read() -> None:
    """`relist` asks for nothing while a long answer is read: it is as new as one to that request."""
    many = Many(handshake())
    many.read_all()
    many.take(CHANGED)
    many.tell("b")
    assert many.adapter.relist_line() == b""
    many.read_all()
    assert many.catalogs() == [{"a"}, {"b"}]


def test_a_page_that_only_the_lenient_reader_reads_counts_once() -> None:
    many = Many(handshake(), 1)
    many.take(CHANGED)
    every = [
        {"name": f"t{at}", "description": "b", "inputSchema": {"type": "object"}} for at in range(20_000)
    ]
    every[-1]["description"] = "\ud800"
    many.take(many.answer(many.request("tools/list"), {"tools": every}))
    assert many.adapter.is_reading
    many.read_all()
    [told] = [it.catalog for it in many.events if isinstance(it, CatalogRead)]
    assert [tool.name for tool in told.tools] == [f"t{at}" for at in range(20_000)]


def test_a_server_that_ends_while_its_list_is_read_tells_nothing_more() -> None:
    many = Many(handshake())
    many.read_all()
    many.take(CHANGED)
    many.tell("b")
    many.adapter.close()
    assert not many.adapter.is_reading
    assert many.catalogs() == [{"a"}]


def test_the_era_is_found_out_where_the_first_list_is_long() -> None:
    found = EraDetection(ME, lambda _era: handshake(), "handshake")
    out = found.adapter.greeting_line()
    request = json.loads(out)
    greeting = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": GREETINGS["initialize"]}).encode()
    _, out_lines = found.feed([greeting])
    asked = json.loads(b"".join(out_lines).splitlines()[-1])
    every = [{"name": f"t{at}", "inputSchema": {"type": "object"}} for at in range(MANY)]
    found.feed([json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": every}}).encode()])
    was_over = found.is_over
    told: list[OwnEvent] = []
    while found.adapter.is_reading:
        told += found.read_on()[0]
    assert (was_over, found.is_over) == (False, True)
    assert [type(each) for each in told] == [InstanceGreeted]
