"""Pages of lists: order, changes while reading, unreadable entries."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import InstanceId, PoolKey, RawJson
from carpool_protocol.wire.content import MAX_COMMAS
from carpool_protocol.wire.list_repair import Family
from carpool_supervisor.core.model.events import (
    CatalogRead,
    GreetingFailed,
    InstanceGreeted,
    ListsChanged,
    ServerLineRejected,
)
from carpool_supervisor.era import list_pages
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.list_pages import (
    CHANGED,
    FAMILIES,
    MAX_CURSOR_CHARS,
    ListPages,
    PageRequest,
    PageResult,
)
from tests.behaviours import behaviour

MEMBERS: dict[Family, tuple[str, str]] = {
    "tools": ("tools", "name"),
    "prompts": ("prompts", "name"),
    "resources": ("resources", "uri"),
    "templates": ("resourceTemplates", "uriTemplate"),
}
EVERYTHING: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
TOOLS_CHANGED = "notifications/tools/list_changed"


def page(family: Family, *names: str, cursor: object = None) -> RawJson:
    member, key = MEMBERS[family]
    fields: dict[str, Any] = {member: [{key: name} for name in names]}
    return RawJson(json.dumps(fields if cursor is None else fields | {"nextCursor": cursor}).encode())


def take(one: ListPages, result: RawJson) -> PageResult:
    """A page came: what follows from all of it."""
    taken = one.page_received(result)
    while taken is None:
        taken = one.read_on()
    return taken


def begun(*features: Any) -> tuple[ListPages, PageRequest | None]:
    one = ListPages()
    one.announce(features)
    return one, one.next_list()


def tools_of(one: ListPages) -> list[str]:
    return [offer.name for offer in one.named_offers("tools")]


# --- order and pages -------------------------------------------------------------------------------------


def test_every_announced_list_is_read_and_no_other() -> None:
    one, asked = begun("resources", "completions", "prompts")
    order = []
    while asked is not None:
        assert asked.family == one.family
        order.append(asked.family)
        asked, wrong = take(one, page(asked.family, f"x:{asked.family}"))
        assert not wrong
    assert order == ["prompts", "resources", "templates"]
    assert one.family is None
    assert [offer.name for offer in one.named_offers("prompts")] == ["x:prompts"]
    assert [offer.uri for offer in one.uri_offers("resources")] == ["x:resources"]
    assert [offer.uri for offer in one.uri_offers("templates")] == ["x:templates"]
    assert tools_of(one) == []


def test_a_server_that_announces_nothing_is_asked_nothing() -> None:
    one, asked = begun()
    assert asked is None
    assert one.lists_changed(FAMILIES) is None


@behaviour("pages:servers-drained")
def test_pages_are_put_together_in_their_order() -> None:
    one, asked = begun("tools")
    assert asked == PageRequest("tools", None)
    assert take(one, page("tools", "b", cursor="2")) == (PageRequest("tools", "2"), "")
    assert take(one, page("tools", "a", cursor="3")) == (PageRequest("tools", "3"), "")
    assert tools_of(one) == [], "half a list is nobody's business"
    assert take(one, page("tools", "c")) == (None, "")
    assert tools_of(one) == ["b", "a", "c"]


def test_a_name_offered_twice_counts_once_the_first_time() -> None:
    one, _ = begun("prompts")
    take(one, RawJson(b'{"prompts":[{"name":"a","v":1},{"name":"a","v":2}],"nextCursor":"n"}'))
    take(one, RawJson(b'{"prompts":[{"name":"a","v":3},{"name":"b"}]}'))
    assert [(it.name, bytes(it.definition)) for it in one.named_offers("prompts")] == [
        ("a", b'{"name":"a","v":1}'),
        ("b", b'{"name":"b"}'),
    ]


@behaviour("pages:servers-drained")
def test_pages_that_do_not_end_are_cut_off_and_the_next_list_is_read() -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "a", cursor="x"))
    asked, wrong = take(one, page("tools", "b", cursor="x"))
    assert asked == PageRequest("prompts", None)
    assert "do not end" in wrong
    assert tools_of(one) == ["a", "b"]


@behaviour("pages:servers-drained")
@pytest.mark.parametrize("limit", ["MAX_PAGES", "MAX_OFFERS"])
def test_pages_with_ever_new_cursors_are_cut_off_too(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_pages, limit, 5)
    one, asked = begun("tools")
    count, wrong = 0, ""
    while asked is not None:
        asked, wrong = take(one, page("tools", f"t{count}", cursor=f"c{count}"))
        count += 1
        assert count < 10
    assert "do not end" in wrong
    assert len(tools_of(one)) == 6


@behaviour("pages:servers-drained")
def test_a_list_ends_at_a_cursor_that_is_too_long_and_keeps_the_pages_before_it() -> None:
    one, _ = begun("tools", "prompts")
    longest = "x" * MAX_CURSOR_CHARS
    assert take(one, page("tools", "a", cursor=longest)) == (PageRequest("tools", longest), "")
    asked, wrong = take(one, page("tools", "b", cursor=longest + "x"))
    assert asked == PageRequest("prompts", None)
    assert wrong == "a cursor of its tools is longer than 8,192 characters; the rest is left out"
    assert tools_of(one) == ["a", "b"]


def test_the_cursors_of_many_pages_take_little_memory() -> None:
    """The server chooses how long they are, and each is remembered until the list ends."""
    one, _ = begun("tools")
    tracemalloc.start()
    try:
        for number in range(1000):
            take(one, page("tools", "a", cursor=f"{number}{'x' * 8000}"))
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@behaviour("pages:servers-drained")
def test_entries_without_a_name_count_for_the_limit_of_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_pages, "MAX_OFFERS", 5)
    one, _ = begun("tools")
    asked, wrong = take(one, RawJson(b'{"tools":[{},{},{},{},{}],"nextCursor":"a"}'))
    assert (asked, wrong) == (PageRequest("tools", "a"), "")
    asked, wrong = take(one, RawJson(b'{"tools":[{"name":"t"}],"nextCursor":"b"}'))
    assert asked is None
    assert "do not end" in wrong
    assert tools_of(one) == ["t"]


@behaviour("catalogs:pages-refused")
@pytest.mark.parametrize("entry", [b"{}", rb'{"title":"\ud800"}', b'{"name":"t"}'])
def test_a_page_with_too_many_commas_is_refused_before_anything_of_it_is_read(
    entry: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "known"))
    take(one, page("prompts", "p"))
    assert one.lists_changed(["tools", "prompts"]) == PageRequest("tools", None)
    monkeypatch.setattr(list_pages, "_read", lambda *_: pytest.fail("the page is read"))
    many = RawJson(b'{"tools":[%b]}' % b",".join([entry] * (MAX_COMMAS + 2)))
    asked, wrong = take(one, many)
    assert asked == PageRequest("prompts", None), "the next list is read"
    assert wrong == "answered tools/list with more than 1,000,000 commas"
    assert tools_of(one) == ["known"]


def test_the_cursors_of_one_list_do_not_count_for_the_next() -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "a", cursor="1"))
    take(one, page("tools", "b"))
    assert take(one, page("prompts", "p", cursor="1")) == (PageRequest("prompts", "1"), "")
    assert take(one, page("prompts", "q")) == (None, "")


# --- a list that changes ---------------------------------------------------------------------------------


def test_a_list_that_changed_is_read_anew_and_the_others_stay() -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "a"))
    take(one, page("prompts", "p"))
    assert one.lists_changed(CHANGED["notifications/prompts/list_changed"]) == PageRequest("prompts", None)
    take(one, page("prompts", "q"))
    assert [it.name for it in one.named_offers("prompts")] == ["q"]
    assert tools_of(one) == ["a"]


def test_resources_that_changed_are_read_with_their_templates() -> None:
    one, asked = begun("resources")
    take(one, page("resources"))
    assert take(one, page("templates")) == (None, "")
    asked = one.lists_changed(CHANGED["notifications/resources/list_changed"])
    assert asked == PageRequest("resources", None)
    assert take(one, page("resources", "a:b")) == (PageRequest("templates", None), "")
    assert take(one, page("templates", "a:{b}")) == (None, "")
    assert [it.uri for it in one.uri_offers("templates")] == ["a:{b}"]


def test_a_list_that_changes_while_it_is_read_is_begun_anew() -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "old", cursor="2"))
    assert one.lists_changed(["tools"]) is None, "one request at a time"
    assert one.lists_changed(["tools"]) is None
    assert take(one, page("tools", "old too", cursor="3")) == (PageRequest("tools", None), "")
    assert take(one, page("tools", "new")) == (PageRequest("prompts", None), "")
    assert take(one, page("prompts")) == (None, "")
    assert tools_of(one) == ["new"]


def test_a_list_that_changes_while_another_is_read_waits_for_its_turn() -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "a"))
    assert one.lists_changed(["tools"]) is None
    assert take(one, page("prompts", "p")) == (PageRequest("tools", None), "")
    take(one, page("tools", "b"))
    assert tools_of(one) == ["b"]


def test_a_list_that_nobody_announced_cannot_change() -> None:
    one, _ = begun("tools")
    take(one, page("tools"))
    assert one.lists_changed(["prompts", "resources", "templates"]) is None


def test_a_list_that_changes_whenever_it_is_read_is_taken_and_read_again_after_it_was_told() -> None:
    one, asked = begun("tools")
    times = 0
    while asked is not None:
        assert one.lists_changed(["tools"]) is None
        asked, wrong = take(one, page("tools", f"t{times}"))
        assert not wrong
        times += 1
        assert times < 20, "it is never told"
    assert tools_of(one) == [f"t{times - 1}"]
    assert one.changed_meanwhile() == ["tools"], "the last change is not forgotten"
    assert one.lists_changed(["tools"]) == PageRequest("tools", None)
    assert take(one, page("tools", "last")) == (None, "")
    assert tools_of(one) == ["last"]
    assert one.changed_meanwhile() == []


# --- refusals and nonsense -------------------------------------------------------------------------------


def test_a_refused_list_keeps_what_was_known_and_the_rest_is_read() -> None:
    one, _ = begun("tools", "prompts")
    take(one, page("tools", "a"))
    take(one, page("prompts"))
    one.lists_changed(["tools", "prompts"])
    take(one, page("tools", "half", cursor="2"))
    assert one.list_refused() == PageRequest("prompts", None)
    take(one, page("prompts", "p"))
    assert tools_of(one) == ["a"]


@pytest.mark.parametrize(
    "body", ['"x"', "[]", '{"tools":7}', '{"tools":null}', '{"tools":{"name":"a"}}', "null"]
)
def test_an_answer_without_a_list_keeps_what_was_known_and_says_so(body: str) -> None:
    one, _ = begun("tools")
    take(one, page("tools", "a"))
    one.lists_changed(["tools"])
    asked, wrong = take(one, RawJson(body.encode()))
    assert asked is None
    assert "without a list" in wrong
    assert tools_of(one) == ["a"]


@pytest.mark.parametrize("surrogate", ["", '{"name":"s","description":"cut \\ud83d"},'])
def test_entries_without_a_name_are_left_out(surrogate: str) -> None:
    one, _ = begun("prompts")
    rest = '7,null,[],{},{"name":7},{"name":""},{"uri":"u"},{"name":"good"}]}'
    body = '{"prompts":[' + surrogate + rest
    assert take(one, RawJson(body.encode())) == (None, "")
    assert [it.name for it in one.named_offers("prompts")] == (["s", "good"] if surrogate else ["good"])


def test_a_page_with_half_a_surrogate_pair_is_read_and_every_byte_stays() -> None:
    one, _ = begun("resources")
    entry = b'{"uri":"a:\\u00e9","name":"cut \\ud83d","size":1e999,"x":1.0,"y":12345678901234567890123}'
    broken = b'{"uri":"b:\\ud83d","name":"b"}'
    asked, wrong = take(one, RawJson(b'{"resources":[%b,%b],"nextCursor":"n"}' % (entry, broken)))
    assert (asked, wrong) == (PageRequest("resources", "n"), "")
    take(one, page("resources"))
    assert [(it.uri, bytes(it.definition)) for it in one.uri_offers("resources")] == [
        ("a:é", entry),
        ("b:?", broken),
    ]


def test_half_a_surrogate_pair_in_one_entry_leaves_the_other_entries_repaired() -> None:
    one, _ = begun("tools")
    cut = b'{"name":"cut","description":"\\ud83d","inputSchema":{"type":"object"}}'
    loose = (
        b'{"name":"loose","title":null,"inputSchema":{"type":"object"},"outputSchema":{"type":"object",'
        b'"properties":{"a":{"$ref":"#/$defs/none"}}}}'
    )
    _, said = take(one, RawJson(b'{"tools":[%b,%b]}' % (cut, loose)))
    found = {each.name: bytes(each.definition) for each in one.named_offers("tools")}
    assert found == {"cut": cut, "loose": b'{"name":"loose","inputSchema":{"type":"object"}}'}
    assert said == "the output schema of loose is left out: agents cannot compile it"


def test_a_cursor_that_is_no_string_ends_the_list() -> None:
    one, _ = begun("tools")
    assert take(one, page("tools", "a", cursor=7)) == (None, "")
    assert tools_of(one) == ["a"]


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(FAMILIES),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud83d"),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["tools", "prompts", "resources", "resourceTemplates", "name", "uri", "nextCursor"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
)
def test_no_legal_answer_breaks_the_list_pages(family: Family, value: Any) -> None:
    try:
        body = json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return
    one = ListPages()
    one.announce(["resources" if family == "templates" else family])
    asked = one.next_list()
    while asked is not None and asked.family != family:
        asked, _ = take(one, page(asked.family))
    asked, wrong = take(one, RawJson(body))
    assert wrong == "" or isinstance(wrong, str)
    for offer in (*one.named_offers("tools"), *one.named_offers("prompts")):
        assert offer.name.encode()
        assert json.loads(offer.definition)
    for located in (*one.uri_offers("resources"), *one.uri_offers("templates")):
        assert located.uri.encode()


def test_an_entry_as_deep_as_a_parser_goes_is_no_bug() -> None:
    for depth in range(850, 1010, 7):
        one, _ = begun("tools")
        body = b'{"tools":[{"name":"\\ud83d","x":%b%b}]}' % (b"[" * depth, b"]" * depth)
        asked, _ = take(one, RawJson(body))
        assert asked is None


# --- in a conversation -----------------------------------------------------------------------------------


class ListPagesRig:
    """A greeted adapter, and the requests that are out."""

    def __init__(self, **capabilities: Any) -> None:
        self.adapter = HandshakeAdapter(InstanceId(1), PoolKey("s:1"), "1.0")
        hello = json.loads(self.adapter.greeting_line())
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "x"}}
        self.events, self.out = self.say(id=hello["id"], result=result)

    def say(self, **message: Any) -> tuple[list[Any], list[dict[str, Any]]]:
        events, out = self.adapter.feed([json.dumps({"jsonrpc": "2.0", **message}).encode()])
        self.events, self.out = list(events), [json.loads(each) for each in out if b'"id"' in each]
        return self.events, self.out

    def answer(self, *names: str, error: int = 0) -> tuple[list[Any], list[dict[str, Any]]]:
        """Answer the list request that is out; with these names, or an error."""
        [asked] = self.out
        family = next(it for it in FAMILIES if list_pages.METHODS[it] == asked["method"])
        if error:
            return self.say(id=asked["id"], error={"code": error, "message": "no"})
        return self.say(id=asked["id"], result=json.loads(page(family, *names)))


def test_a_catalog_is_told_once_with_all_four_lists() -> None:
    talk = ListPagesRig(**EVERYTHING)
    for family in FAMILIES[:-1]:
        assert talk.answer(f"x:{family}")[0] == []
    [greeted], out = talk.answer("x:templates")
    assert out == []
    assert isinstance(greeted, InstanceGreeted)
    catalog = greeted.catalog
    assert [it.name for it in (*catalog.tools, *catalog.prompts)] == ["x:tools", "x:prompts"]
    assert [it.uri for it in (*catalog.resources, *catalog.templates)] == ["x:resources", "x:templates"]
    assert catalog.features == ["tools", "prompts", "resources"]


def test_templates_may_be_refused_without_a_word() -> None:
    talk = ListPagesRig(tools={}, resources={})
    talk.answer()
    talk.answer("a:b")
    [greeted], _ = talk.answer(error=-32601)
    assert isinstance(greeted, InstanceGreeted)
    assert [it.uri for it in greeted.catalog.resources] == ["a:b"]


@pytest.mark.parametrize(("refused", "code"), [(1, -32601), (2, -32603), (3, -32603)])
def test_another_refused_list_is_noted_and_the_server_serves_the_rest(refused: int, code: int) -> None:
    talk = ListPagesRig(**EVERYTHING)
    said: list[Any] = []
    for at in range(4):
        events, _ = talk.answer("a:b", error=code if at == refused else 0)
        said += events
    noted, greeted = said
    assert isinstance(noted, ServerLineRejected)
    assert f"refused {FAMILIES[refused]}/list" in noted.text
    assert isinstance(greeted, InstanceGreeted)


def test_a_server_that_refuses_its_tools_does_not_greet() -> None:
    talk = ListPagesRig(**EVERYTHING)
    events, out = talk.answer(error=-32603)
    assert isinstance(events[-1], GreetingFailed)
    assert out == []


def test_changes_are_told_after_all_that_changed_was_read() -> None:
    talk = ListPagesRig(**EVERYTHING)
    for _ in FAMILIES:
        talk.answer("a:b")
    talk.say(method="notifications/resources/list_changed")
    out = talk.out
    talk.say(method="notifications/prompts/list_changed")
    assert talk.out == [], "one request at a time"
    talk.out = out
    assert talk.answer("c:d")[0] == []
    assert talk.answer("c:{d}")[0] == []
    [told], _ = talk.answer("p")
    assert isinstance(told, CatalogRead)
    assert [it.name for it in (*told.catalog.tools, *told.catalog.prompts)] == ["a:b", "p"]
    assert [it.uri for it in told.catalog.resources] == ["c:d"]


def test_a_server_whose_list_changes_whenever_it_is_asked_greets_all_the_same() -> None:
    talk = ListPagesRig(tools={})
    events: list[Any] = []
    for times in range(20):
        out = talk.out
        talk.say(method=TOOLS_CHANGED)
        talk.out = out
        events, _ = talk.answer(f"t{times}")
        if events:
            break
    [greeted] = events
    assert isinstance(greeted, InstanceGreeted)
    assert [asked["method"] for asked in talk.out] == ["tools/list"], "what changed last is read as well"
    [told], out = talk.answer("last")
    assert isinstance(told, CatalogRead)
    assert [it.name for it in told.catalog.tools] == ["last"]
    assert out == []


@behaviour("lists:changes-without-end")
def test_a_server_that_says_a_change_after_every_list_is_read_a_few_times_and_then_when_told_to() -> None:
    talk = ListPagesRig(tools={})
    events, _ = talk.answer("t")
    assert isinstance(events[-1], InstanceGreeted)
    times = 0
    while True:
        events, out = talk.say(method=TOOLS_CHANGED)
        if not out:
            break
        talk.answer("t")
        times += 1
        assert times < 100
    assert events == [ListsChanged(InstanceId(1))]
    assert talk.say(method=TOOLS_CHANGED) == ([], []), "that is known"
    for _ in range(3):
        talk.out = [json.loads(line) for line in talk.adapter.relist_line().splitlines()]
        assert [asked["method"] for asked in talk.out] == ["tools/list"]
        asked_for = talk.out
        assert talk.say(method=TOOLS_CHANGED) == ([ListsChanged(InstanceId(1))], [])
        talk.out = asked_for
        events, out = talk.answer("t")
        assert [type(event) for event in events] == [CatalogRead]
        assert out == [], "one reading each time that it is told to"
    talk.out = [json.loads(line) for line in talk.adapter.relist_line(is_calm=True).splitlines()]
    talk.answer("t")
    assert talk.say(method=TOOLS_CHANGED)[1], "at once again"
