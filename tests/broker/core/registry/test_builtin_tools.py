"""carpool's own tools: their names, which request a call of one stands for, when one is answered."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from carpool_broker.builtin_tools.results import builtin_result
from carpool_broker.builtin_tools.search import ToolSearch
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.capabilities import StatelessAgent
from carpool_broker.core.model.effects import AnswerBuiltin, Reply, ReplyRewritten, ReplyStateless
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.builtin_tools import RESOURCE_TOOLS, SEARCH_TOOLS, SPELLINGS, builtin_tools
from carpool_broker.era import handshake
from carpool_broker.era.builtin_tools import read_builtin_call
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    CallFailed,
    CallProgressed,
    CancelCall,
    Catalog,
    DiscoverCatalog,
    Policy,
    PoolSpec,
    ResourceOffer,
    ToolOffer,
)
from tests.behaviours import behaviour
from tests.kit.broker_rig import EPOCH, BrokerRig, source_read

ONE = SessionId("s1")
DAEMON = SourceId("daemon")
A, B = PoolKey("a:1"), PoolKey("b:1")


class BuiltinToolsRig(BrokerRig):
    """A core with servers `a` and `b`, and one session whose profile shows tools of ours."""

    def __init__(
        self,
        *,
        a: tuple[str, ...] | None = ("x", "log"),
        b: tuple[str, ...] | None = ("y",),
        deny: tuple[str, ...] = (),
        prefix: str | None = None,
        search: bool = True,
        resources: bool = False,
        stateless: bool = False,
    ) -> None:
        super().__init__(secret=b"of the tests")
        entries = (
            ScopeEntry(server=ServerName("a"), key=A, tools_deny=deny, tags=("first",)),
            ScopeEntry(server=ServerName("b"), key=B, prefix=prefix),
        )
        specs = (
            PoolSpec(key=e.key, server=e.server, argv=[], env={}, cwd="/", policy=Policy()) for e in entries
        )
        self.feed(source_read(Scope(entries, search=search, resource_tools=resources), specs))
        self.supervisor_comes()
        for key, tools in ((A, a), (B, b)):
            if tools is not None:
                self.catalog(key, *tools)
        self.attach()
        if not stateless:
            self.greet()

    def catalog(self, key: str, *tools: str, **more: Any) -> list[Any]:
        offers = [
            ToolOffer(tool, RawJson(json.dumps({"name": tool, "description": f"Does {tool}."}).encode()))
            for tool in tools
        ]
        uris = [ResourceOffer("file:///a", RawJson(b'{"uri":"file:///a"}'))] if key == A else []
        return self.feed(
            Catalog(PoolKey(key), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", resources=uris)
        )

    def event(self, line: bytes) -> Any:
        return handshake.read_line(ONE, line)

    def call(self, name: str, arguments: bytes = b"{}", id_: int = 1) -> list[Any]:
        line = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%b,"arguments":%b}}' % (
            id_, msgspec.json.encode(name), arguments,
        )  # fmt: skip
        event = self.event(line)
        assert isinstance(event, ev.CallRequested)
        return self.feed(event)

    def through(self, name: str, arguments: bytes = b"{}", id_: int = 1) -> list[Any]:
        inner = b'{"name":%b,"arguments":%b}' % (msgspec.json.encode(name), arguments)
        return self.call("call_tool", inner, id_)

    def found(self, query: str) -> list[str]:
        [effect] = self.call("find_tools", json.dumps({"query": query, "limit": 50}).encode(), 99)
        assert isinstance(effect, AnswerBuiltin)
        view = self.core.view_of(ONE)
        result = json.loads(builtin_result(view, effect.kind, effect.rest, ToolSearch(), effect.version))
        lines = result["content"][0]["text"].splitlines()
        return [line.partition("(")[0] for line in lines if "(" in line]


def listed(rig: BuiltinToolsRig) -> list[str]:
    [reply] = rig.feed(ev.ListPageRequested(ONE, RawJson(b"9"), None))
    return [tool["name"] for tool in json.loads(reply.body)["tools"]]


# --- what is listed, under which names ----------------------------------------------------------------------


@behaviour("search:list")
def test_builtin_tools_are_listed_in_place_of_others_or_before_them() -> None:
    assert listed(BuiltinToolsRig()) == list(SEARCH_TOOLS)
    assert listed(BuiltinToolsRig(search=False, resources=True)) == [
        *RESOURCE_TOOLS,
        "a__log",
        "a__x",
        "b__y",
    ]
    assert listed(BuiltinToolsRig(resources=True)) == [*SEARCH_TOOLS, *RESOURCE_TOOLS]
    assert listed(BuiltinToolsRig(search=False)) == ["a__log", "a__x", "b__y"]


@behaviour("search:news")
def test_no_agent_hears_of_servers_that_change_while_its_list_stays() -> None:
    rig = BuiltinToolsRig()
    listed(rig)
    assert rig.catalog(A, "x", "more") == []
    assert rig.found("more") == ["a__more"]


@behaviour("search:names")
def test_a_builtin_tool_gets_a_hash_if_a_server_has_its_name() -> None:
    rig = BuiltinToolsRig(b=("find_tools", "other"), prefix="")
    names = listed(rig)
    assert names[1:] == ["describe_tool", "call_tool"]
    assert SPELLINGS[names[0]] == "find_tools"
    assert names[0].startswith("find_tools_")
    [sent] = [each for each in rig.call("find_tools") if isinstance(each, Call)]
    assert (sent.key, sent.target) == (B, "find_tools")
    [answer] = rig.call(names[0], b'{"query":"x"}', 2)
    assert isinstance(answer, AnswerBuiltin)
    assert rig.call("call_tool", b'{"name":"a__x"}', 3)


@given(taken=st.sets(st.sampled_from(sorted(SPELLINGS)), max_size=28))
def test_names_of_builtin_tools_are_distinct_and_never_taken(taken: set[str]) -> None:
    own = builtin_tools(taken, search=True, resources=True)
    assert not own.keys() & taken
    assert len({tool.kind for tool in own.values()}) == len(own)
    for name, tool in own.items():
        assert SPELLINGS[name] == tool.kind
        definition = json.loads(tool.definition)
        assert definition["name"] == name
        assert "{" not in definition["description"], "a name was not filled in"


# --- call_tool ---------------------------------------------------------------------------------------------

TOOLS = st.lists(
    st.sampled_from(["x", "y", "log", "find_tools", "call_tool", "a__x", "find", "x-1"]),
    unique=True,
    max_size=5,
).map(tuple)
PREFIX = st.sampled_from([None, ""])
DENY = st.sampled_from([(), ("x",), ("*",)])
SPELLED = st.sampled_from(
    [
        "a__x",
        "a.x",
        "mcp:a:x",
        "x",
        "b__y",
        "y",
        "log",
        "find",
        "nobody",
        "find_tools",
        "b__call_tool",
        "a__x_",
    ]
)


@behaviour("search:call", "search:rights")
@settings(max_examples=60)
@given(
    a=TOOLS,
    b=TOOLS,
    prefix=st.sampled_from([None, ""]),
    deny=st.sampled_from([(), ("x",), ("*",)]),
    name=SPELLED,
)
def test_calling_through_call_tool_is_calling(
    a: tuple[str, ...], b: tuple[str, ...], prefix: str | None, deny: tuple[str, ...], name: str
) -> None:
    direct, through = (BuiltinToolsRig(a=a, b=b, prefix=prefix, deny=deny) for _ in range(2))
    own = direct.core.view_of(ONE).builtin_tools
    if "call_tool" not in own or name in own:
        return  # a server has the name; or one of ours is called, which has other arguments
    arguments = b'{"k":[1,1e999,"\\ud83d"],"k":2}'
    through_it, it = [
        [replace(each, digest="") if isinstance(each, Call) else each for each in effects]
        for effects in (through.through(name, arguments), direct.call(name, arguments))
    ]
    assert through_it == it, "but for what each has said"


@behaviour("search:rights")
@settings(max_examples=60)
@given(a=TOOLS, b=TOOLS, prefix=PREFIX, deny=DENY)
def test_whatever_is_found_can_be_called_and_all_that_can_be_is_found(
    a: tuple[str, ...], b: tuple[str, ...], prefix: str | None, deny: tuple[str, ...]
) -> None:
    rig = BuiltinToolsRig(a=a, b=b, prefix=prefix, deny=deny)
    view = rig.core.view_of(ONE)
    if "find_tools" not in view.builtin_tools or "call_tool" not in view.builtin_tools:
        return
    found = rig.found("")
    assert found == [tool.qualified for tool in view.tools]
    assert set(rig.found("x y log find tools call")) <= set(found)
    for number, name in enumerate(found, 200):
        [sent] = [each for each in rig.through(name, id_=number) if isinstance(each, Call)]
        assert view.resolve(name) in view.tools
        assert not (sent.key == A and sent.target in deny)


def test_arguments_of_call_tool_reach_the_server_byte_for_byte() -> None:
    rig = BuiltinToolsRig()
    raw = b'{"a": 12345678901234567890, "s":"\\ud83d \\u0041", "n" :[ 1.0,1E2 ]}'
    [sent] = [each for each in rig.through("a__x", raw) if isinstance(each, Call)]
    assert sent.params == b'{"arguments":%b}' % raw
    assert sent.request == b"1"


def test_a_call_that_comes_back_after_a_broker_died_is_the_one_that_is_meant() -> None:
    rig = BuiltinToolsRig()
    line = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"call_tool","arguments":%b}}'
    event = rig.event(line % b'{"name":"a__x"}')
    effects = rig.feed(ev.SessionResumed(ONE, EPOCH, (event,), ()))
    effects += rig.wait(60)
    [sent] = [each for each in effects if isinstance(each, Call)]
    assert (sent.key, sent.target) == (A, "x")


def test_progress_answer_failure_and_cancel_of_a_call_through_call_tool_are_its_own() -> None:
    rig = BuiltinToolsRig()
    line = (
        b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"call_tool",'
        b'"arguments":{"name":"a__x"},"_meta":{"progressToken":"mine"}}}'
    )
    [sent] = [each for each in rig.feed(rig.event(line)) if isinstance(each, Call)]
    [told] = rig.feed(CallProgressed(sent.call, RawJson(b'{"progress":1}')))
    assert (told.token, told.request) == (b'"mine"', b"5")
    body = RawJson(b'{"content":[],"x":1.0}')
    assert rig.feed(CallAnswered(sent.call, False, body)) == [
        Reply(ONE, RawJson(b"5"), False, body, sent.call)
    ]
    [sent] = [each for each in rig.through("a__x", id_=6) if isinstance(each, Call)]
    [reply] = rig.feed(CallFailed(sent.call, "crashed", "maybe", "It died."))
    assert json.loads(reply.body)["_meta"]["carpool/error"]["tool"] == "x"
    [sent] = [each for each in rig.through("a__x", id_=7) if isinstance(each, Call)]
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"7"), "enough")) == [CancelCall(sent.call, "enough")]


def test_wrong_arguments_of_call_tool_are_told_without_any_server() -> None:
    rig = BuiltinToolsRig()
    wrong = [
        b"{}",
        b'{"name":1}',
        b'{"name":"a__x","k":1}',
        b'{"name":"a__x","arguments":"{}"}',
        b'{"name":"call_tool"}',
    ]
    for number, arguments in enumerate(wrong, 20):
        [reply] = rig.call("call_tool", arguments, number)
        assert isinstance(reply, Reply)
        told = json.loads(reply.body)
        assert told["isError"]
        assert told["_meta"]["carpool/error"]["code"] == "bad_params"
    [reply] = rig.through("a__y", id_=40)
    assert "find_tools" in json.loads(reply.body)["message"]


# --- waiting -----------------------------------------------------------------------------------------------


@behaviour("search:find")
def test_a_search_waits_for_catalogs_that_are_on_their_way_as_a_list_does() -> None:
    rig = BuiltinToolsRig(b=None)
    query = b'{"query":"y"}'
    assert rig.call("find_tools", query, 1) == [DiscoverCatalog(B)]
    assert rig.call("find_tools", query, 2) == [DiscoverCatalog(B)]
    assert rig.feed(ev.RequestCancelled(ONE, RawJson(b"2"), "")) == []
    assert [type(each) for each in rig.catalog(B, "y")] == [AnswerBuiltin]
    rig = BuiltinToolsRig(b=None)
    assert rig.call("find_tools", query) == [DiscoverCatalog(B)]
    assert [type(each) for each in rig.wait(11)] == [AnswerBuiltin], "it has waited long enough"
    assert [type(each) for each in rig.call("find_tools", query, 3)] == [AnswerBuiltin], "nothing waits twice"


# --- resources and prompts ---------------------------------------------------------------------------------


@behaviour("search:resources")
def test_a_read_by_tool_is_a_read_and_its_answer_a_tools() -> None:
    rig = BuiltinToolsRig(search=False, resources=True)
    [sent] = [each for each in rig.call("read_resource", b'{"uri":"file:///a"}') if isinstance(each, Call)]
    assert (sent.method, sent.target, sent.params) == ("resources/read", "file:///a", b"{}")
    body = RawJson(b'{"contents":[]}')
    [reply] = rig.feed(CallAnswered(sent.call, False, body))
    assert isinstance(reply, ReplyRewritten)
    assert (reply.method, reply.as_tool, reply.body) == ("tools/call", "resources/read", body)
    [sent] = [each for each in rig.call("read_resource", b'{"uri":"file:///a"}', 2) if isinstance(each, Call)]
    [reply] = rig.feed(CallFailed(sent.call, "crashed", "maybe", "It died."))
    assert json.loads(reply.body)["isError"], "an error of ours is a tool's, too"


@behaviour("search:eras")
def test_a_stateless_read_by_tool_has_no_hints_of_a_read() -> None:
    rig = BuiltinToolsRig(search=False, resources=True, stateless=True)
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "n", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "read_resource", "arguments": {"uri": "file:///a"}, "_meta": meta}
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    event = rig.event(line)
    assert isinstance(event.by, StatelessAgent)
    [sent] = [each for each in rig.feed(event) if isinstance(each, Call)]
    [reply] = rig.feed(CallAnswered(sent.call, False, RawJson(b'{"contents":[]}'), ttl_ms=1000, public=True))
    assert isinstance(reply, ReplyStateless)
    assert (reply.method, reply.as_tool, reply.ttl_ms, reply.public) == (
        "tools/call", "resources/read", 0, False,
    )  # fmt: skip
    [again] = rig.feed(msgspec.structs.replace(event, id=RawJson(b"2")))
    assert isinstance(again, ReplyStateless), "what is current still is not read again"
    assert again.as_tool == "resources/read"


def test_names_of_builtin_tools_are_ordinary_in_a_view_without_them() -> None:
    rig = BuiltinToolsRig(search=False, b=("call_tool",))
    [sent] = [each for each in rig.call("call_tool", b'{"name":"a__x"}') if isinstance(each, Call)]
    assert (sent.key, sent.target, sent.params) == (B, "call_tool", b'{"arguments":{"name":"a__x"}}')


@pytest.mark.parametrize(("given", "said"), [('"{}"', "text"), ("[{}]", "an array"), ("7", "a single value")])
def test_a_model_that_gives_no_object_is_told_what_it_gave(given: str, said: str) -> None:
    (own,) = read_builtin_call(
        "call_tool", RawJson(b'{"arguments":{"name":"a__x","arguments":%b}}' % given.encode())
    )
    assert f"must be an object, not {said}." in own.problem
