"""Limits in bytes on lists and descriptions of servers, in both eras: the rest is left out and reported."""

import json

import pytest

from carpool_protocol.ids import PoolKey, RawJson
from carpool_protocol.link.messages import Catalog
from carpool_protocol.wire.content import mentions
from carpool_supervisor.core.model.events import GreetingFailed, ServerLineRejected
from carpool_supervisor.era import list_pages
from carpool_supervisor.era.list_pages import MAX_CATALOG_BYTES, MAX_ENTRY_BYTES, ListPages
from carpool_supervisor.era.self_description import MAX_INSTRUCTIONS_BYTES, SelfDescription, cut
from tests.behaviours import behaviour
from tests.kit.catalog_reader import CatalogReader, Era
from tests.kit.hostile_catalogs import HOSTILE, HostileCatalog, tool
from tests.supervisor.era.test_list_pages import take

ERAS: tuple[Era, ...] = ("handshake", "stateless")
READABLE = {name: said for name, said in HOSTILE.items() if not said.is_unreadable}


def entries(catalog: Catalog) -> list[bytes]:
    named = [bytes(each.definition) for each in (*catalog.tools, *catalog.prompts)]
    return named + [bytes(each.definition) for each in (*catalog.resources, *catalog.templates)]


@behaviour("catalogs:bounded")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("said", READABLE.values(), ids=list(READABLE))
def test_no_catalog_is_larger_than_the_bounds_and_what_is_left_out_is_told(
    said: HostileCatalog, era: Era
) -> None:
    told = CatalogReader(said, era)
    catalog = told.catalog
    assert all(len(each) <= MAX_ENTRY_BYTES for each in entries(catalog))
    assert sum(map(len, entries(catalog))) <= MAX_CATALOG_BYTES
    assert len(catalog.instructions.encode()) <= MAX_INSTRUCTIONS_BYTES
    over = [each for each in catalog.left_out.split("; ") if "agents cannot" not in each]
    assert any(over) == said.is_large, catalog.left_out
    assert len(catalog.left_out) < 2000
    misspoke = [each.text for each in told.events if isinstance(each, ServerLineRejected)]
    assert all(text in catalog.left_out for text in misspoke)
    assert not [each for each in told.events if isinstance(each, GreetingFailed)], "it serves what is left"


@behaviour("catalogs:bounded")
@pytest.mark.parametrize("era", ERAS)
def test_entries_beside_one_that_is_too_large_are_kept(era: Era) -> None:
    catalog = CatalogReader(HOSTILE["huge entries"], era).catalog
    assert [each.name for each in catalog.tools] == ["small"]
    assert "16 entries of its tools are left out: larger than 256 KiB each" in catalog.left_out
    assert len(json.dumps(catalog.left_out)) < 1000


@behaviour("lists:readable")
def test_output_schemas_that_are_left_out_are_told_by_the_names_of_their_tools() -> None:
    bad = b'{"type":"object","properties":{"a":{"type":"string","pattern":"(?P<x>a)"}}}'
    tools = [b'{"name":"t%d","inputSchema":{"type":"object"},"outputSchema":%b}' % (n, bad) for n in range(7)]
    good = b'{"name":"good","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}'
    one = ListPages()
    one.announce(["tools"])
    one.next_list()
    _, wrong = take(one, RawJson(b'{"tools":[%b]}' % b",".join([*tools, good])))
    assert wrong == (
        "the output schema of t0, t1, t2, t3, t4 and 2 more tools is left out: agents cannot compile it"
    )
    assert [mentions(each.definition, b'"outputSchema"') for each in one.named_offers("tools")] == [
        False
    ] * 7 + [True]
    one.lists_changed(["tools"])
    take(one, RawJson(b'{"tools":[%b]}' % good))
    assert one.left_out == {}


@behaviour("doctor:lists")
def test_members_that_are_left_out_are_told_by_their_entries_and_in_bounds() -> None:
    one = ListPages()
    one.announce(["resources"])
    one.next_list()
    page = b",".join(b'{"uri":"%d%b","name":"n","size":"big"}' % (n, b"x" * 5000) for n in range(7))
    _, wrong = take(one, RawJson(b'{"resources":[%b]}' % page))
    assert wrong.startswith("of its resources, 0xxx")
    assert wrong.endswith("x.size and 2 more are left out: agents cannot read what is there")
    assert len(wrong) < 1000


def test_lists_of_one_server_share_the_bound_of_its_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_pages, "MAX_CATALOG_BYTES", 1000)
    one = ListPages()
    one.announce(["tools", "prompts"])
    one.next_list()
    take(one, RawJson(b'{"tools":[%b]}' % tool("t", "x" * 500)))
    page, wrong = take(
        one, RawJson(b'{"prompts":[%b,%b],"nextCursor":"n"}' % (tool("p"), tool("q", "x" * 500)))
    )
    assert page is None, "no more of it is asked for"
    assert "the rest of its prompts is left out after 1" in wrong
    assert [each.name for each in one.named_offers("prompts")] == ["p"]
    one.lists_changed(["tools"])
    take(one, RawJson(b'{"tools":[%b]}' % tool("t")))
    one.lists_changed(["prompts"])
    assert take(one, RawJson(b'{"prompts":[%b,%b]}' % (tool("p"), tool("q", "x" * 500)))) == (None, "")
    assert one.left_out == {}, "what fits again is not told as left out"


def test_an_entry_left_out_is_told_once_however_often_the_list_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(list_pages, "MAX_ENTRY_BYTES", 100)
    one = ListPages()
    one.announce(["tools"])
    one.next_list()
    page = RawJson(b'{"tools":[%b]}' % tool("t", "x" * 500))
    assert "1 entry of its tools is left out" in take(one, page)[1]
    one.lists_changed(["tools"])
    assert take(one, page) == (None, "")
    assert one.left_out


@pytest.mark.parametrize(
    "text", ["", "short", "é" * MAX_INSTRUCTIONS_BYTES, "\ud83d" * MAX_INSTRUCTIONS_BYTES]
)
def test_instructions_are_cut_at_a_whole_character(text: str) -> None:
    said, over = SelfDescription(text, RawJson(b"{}"), RawJson(b"{}")).bounded()
    assert len(said.instructions.encode("utf-8", "replace")) <= MAX_INSTRUCTIONS_BYTES
    assert text.startswith(said.instructions) or "\ud83d" in text
    assert bool(over) == (len(text) > 100)
    assert cut("éé", 3) == "é"


def test_a_name_and_capabilities_without_end_are_left_out() -> None:
    large = RawJson(json.dumps({"x": "y" * 100_000}).encode())
    said, over = SelfDescription("", large, large).bounded()
    assert (said.server_info, said.capabilities) == (b"{}", b"{}")
    assert "serverInfo" in over
    assert "capabilities" in over


def test_a_greeting_keeps_nothing_of_the_answer_that_is_over_the_bounds() -> None:
    told = CatalogReader(HOSTILE["huge instructions"], "handshake")
    assert "its instructions are" in told.catalog.left_out
    assert told.catalog.key == PoolKey("evil:1")
