"""Profiles in the core: what is refused, what changes with the rights, and that lists and calls agree."""

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import ProfileLimits, SessionBounds
from carpool_broker.core.model.effects import (
    AnswerInitialize,
    BeginHook,
    LogLine,
    Reply,
    SendListChanged,
    SendResourceUpdated,
)
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.registry.request_target import Target, find_target
from carpool_protocol.config.schema.capability import Kind
from carpool_protocol.ids import CallId, Epoch, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallsRecorded,
    OpenSessions,
    Policy,
    PoolChanged,
    PoolSpec,
    ResourceChanged,
    SetPools,
    SetResourceSubscriptions,
)
from carpool_protocol.wire.tool_name_resolver import spellings
from tests.behaviours import behaviour
from tests.broker.core.configuration.test_profiles import catalog, frame
from tests.kit.broker_rig import BrokerRig, source_read

ONE, TWO = SessionId("s1"), SessionId("s2")
SOURCE = SourceId("p")
CATALOGS = [
    catalog("git", "log push status", "ask tell", "file:///a file:///b", "file:///t/{x}"),
    catalog("hub", "search status", "ask", "file:///b hub://x"),
]
for each in CATALOGS:
    each.features.extend(["tools", "prompts", "resources", "resources.subscribe"])
SERVERS: dict[str, Any] = {"git": {"command": "x", "tags": ["code"]}, "hub": {"command": "y"}}


class ProfileRig(BrokerRig):
    """A core with a supervisor and the servers `git` and `hub`; sessions with the profile `p`."""

    def __init__(self, bounds: SessionBounds | None = None, **profile: Any) -> None:
        super().__init__(bounds, secret=b"x")
        self.requests = 0
        self.configure(**profile)
        self.supervisor_comes()

    def configure(self, servers: dict[str, Any] | None = None, **profile: Any) -> list[Any]:
        scope = frame(servers or SERVERS, **profile)
        specs = tuple(
            PoolSpec(key=e.key, server=e.server, argv=[], env={}, cwd="/", policy=Policy())
            for e in scope.servers
        )
        effects = self.feed(source_read(scope, specs, SOURCE))
        for told in CATALOGS:
            if told.key in {spec.key for spec in specs}:
                effects += self.feed(PoolChanged(told.key, "serving", ""))
                effects += self.feed(told)
        return effects

    def come(self, session: SessionId = ONE, **more: Any) -> list[Any]:
        self.attach(session, source=SOURCE, profile="p", **more)
        return self.greet(session)

    def ask(self, name: str, method: str = "tools/call", session: SessionId = ONE) -> list[Any]:
        self.requests += 1
        effects: list[Any] = self.request(name, str(self.requests), session, method=method)
        return effects


def refused(effects: list[Any]) -> dict[str, Any]:
    (reply,) = [each for each in effects if isinstance(each, Reply)]
    assert reply.is_error
    data: dict[str, Any] = json.loads(reply.body)["data"]
    return {**data, "text": json.loads(reply.body)["message"]}


def ref(kind: str, **more: str) -> str:
    return json.dumps({"type": kind, **more})


@behaviour("profiles:call")
def test_a_denied_entry_is_refused_for_every_method_and_the_profile_is_named() -> None:
    rig = ProfileRig(allow=["mcp:git"], deny=["mcp:git:push", "prompt:git:tell", "resource:git:file:///a"])
    rig.come()
    for name, method in (
        ("git__push", "tools/call"),
        ("push", "tools/call"),
        ("hub__search", "tools/call"),
        ("git__tell", "prompts/get"),
        ("file:///a", "resources/read"),
        ("carpool+git+file:///unlisted", "resources/read"),
        ("carpool+git+file://x/a", "resources/read"),
        (ref("ref/prompt", name="git__tell"), "completion/complete"),
        (ref("ref/resource", uri="file:///a"), "completion/complete"),
    ):
        found = refused(rig.ask(name, method))
        assert found["code"] == "not_permitted", name
        assert "The profile p keeps it back." in found["text"]
    for uri in ("file:///a", "carpool+git+file:///unlisted", "carpool+git+file://x/a"):
        (watched,) = rig.feed(ev.SubscribeRequested(ONE, RawJson(b'"w"'), uri, on=True))
        assert refused([watched])["code"] == "not_permitted"
    for name, method in (
        ("git__log", "tools/call"),
        ("git__ask", "prompts/get"),
        ("file:///b", "resources/read"),
    ):
        (call,) = [each for each in rig.ask(name, method) if isinstance(each, Call)]
        assert call.key == "git"


@behaviour("profiles:call")
def test_a_call_to_a_wholly_denied_server_by_its_name_is_told_so() -> None:
    rig = ProfileRig(allow=["mcp:git"])
    rig.come()
    for name in ("hub__anything", "mcp:hub:search"):
        assert refused(rig.ask(name))["code"] == "not_permitted"
    assert refused(rig.ask("search"))["code"] == "unknown_tool", "its tools are not known here"
    rig.configure({**SERVERS, "hub": {"command": "y", "tools_prefix": ""}}, allow=["mcp:git"])
    assert refused(rig.ask("search"))["code"] == "unknown_tool", "any name could be meant"


@behaviour("hooks:after")
def test_a_hook_hears_what_was_asked_of_a_wholly_denied_server() -> None:
    rig = ProfileRig(allow=["mcp:git"])
    rig.feed(ev.HooksRead((ev.HookRule(name="look", before=False, after=True),)))
    rig.come()
    for name in ("hub__search", "mcp:hub:search", "hub__no_such_tool"):
        (run,) = [each for each in rig.ask(name) if isinstance(each, BeginHook)]
        assert (run.server, run.target, run.outcome) == ("hub", name, "refused")


@behaviour("profiles:leak")
def test_no_message_to_an_agent_names_a_denied_server() -> None:
    rig = ProfileRig(allow=["mcp:git"])
    (greet,) = [each for each in rig.come() if isinstance(each, AnswerInitialize)]
    assert "Use git." in greet.instructions
    said = [greet.instructions]
    for name, method in (
        ("gti__log", "tools/call"),
        ("searsh", "tools/call"),
        ("asc", "prompts/get"),
    ):
        said.append(refused(rig.ask(name, method))["text"])
    assert not [text for text in said if "hub" in text]


@behaviour("profiles:reload", "profiles:lists")
def test_an_agent_hears_of_a_changed_profile_exactly_if_its_own_lists_changed() -> None:
    rig = ProfileRig(allow=["mcp:git:log", "prompt:git:*"])
    rig.come()
    rig.come(TWO)
    for family in ("tools", "prompts"):
        rig.feed(ev.ListPageRequested(ONE, RawJson(b"%r" % len(family)), None, family))
    assert not [
        e for e in rig.configure(allow=["mcp:git:l*", "prompt:git:*"]) if isinstance(e, SendListChanged)
    ]
    told = [e for e in rig.configure(allow=["mcp:git:*", "prompt:git:*"]) if isinstance(e, SendListChanged)]
    assert told == [SendListChanged(ONE, "tools")], "and whoever holds no list hears nothing"


@behaviour("profiles:reload", "profiles:call")
def test_a_server_that_changes_what_is_kept_back_changes_nothing_for_the_agent() -> None:
    rig = ProfileRig(allow=["mcp:git:log"])
    rig.come()
    rig.feed(ev.ListPageRequested(ONE, RawJson(b"7"), None, "tools"))
    more = catalog("git", "log push status secret", "ask", "file:///z")
    assert not [e for e in rig.feed(more) if isinstance(e, SendListChanged)]
    shown = catalog("git", "log", "ask")
    assert not [e for e in rig.feed(shown) if isinstance(e, SendListChanged)]
    other = catalog("git", "status")
    assert [e for e in rig.feed(other) if isinstance(e, SendListChanged)] == [SendListChanged(ONE, "tools")]


@behaviour("profiles:reload")
def test_a_name_that_was_listed_before_the_profile_changed_is_refused_after_it() -> None:
    rig = ProfileRig()
    rig.come()
    (call,) = [each for each in rig.ask("git__push") if isinstance(each, Call)]
    rig.configure(deny=["mcp:git:push"])
    for name in ("git__push", *spellings("git", "push")):
        assert refused(rig.ask(name))["code"] == "not_permitted", name
    (reply,) = rig.answer(call.call)
    assert not getattr(reply, "is_error", False), "what was let through is answered"


@behaviour("profiles:reload")
def test_a_call_that_waits_when_its_right_is_taken_does_not_go() -> None:
    rig = ProfileRig(SessionBounds(max_open_calls=1))
    rig.come()
    (first,) = [each for each in rig.ask("git__log") if isinstance(each, Call)]
    for name, method in (
        ("git__push", "tools/call"),
        ("hub__search", "tools/call"),
        ("git__tell", "prompts/get"),
        ("file:///a", "resources/read"),
        (ref("ref/prompt", name="git__tell"), "completion/complete"),
        (ref("ref/resource", uri="carpool+git+file:///t/{x}"), "completion/complete"),
        ("git__status", "tools/call"),
    ):
        assert rig.ask(name, method) == []
    effects = rig.configure(allow=["mcp:git"], deny=["mcp:git:push", "prompt:*:tell", "resource:git:*"])
    ended = [json.loads(each.body)["data"]["code"] for each in effects if isinstance(each, Reply)]
    assert ended == ["not_permitted"] * 6
    (last,) = [each for each in rig.answer(first.call) if isinstance(each, Call)]
    assert last.target == "status"


@behaviour("profiles:reload")
def test_changes_of_a_resource_are_told_only_while_it_may_be_read() -> None:
    rig = ProfileRig()
    rig.come()
    rig.feed(ev.SubscribeRequested(ONE, RawJson(b'"w"'), "file:///a", on=True))
    update = ResourceChanged(PoolKey("git"), "file:///a", RawJson(b'{"uri":"file:///a"}'))
    assert [type(each) for each in rig.feed(update)] == [SendResourceUpdated]
    effects = rig.configure(deny=["resource:git:file:///a"])
    assert [each.uris for each in effects if isinstance(each, SetResourceSubscriptions)] == [[]]
    assert rig.feed(update) == []
    rig.configure()
    assert [type(each) for each in rig.feed(update)] == [SendResourceUpdated]


@behaviour("profiles:servers")
def test_a_server_that_no_profile_permits_is_not_wanted() -> None:
    rig = ProfileRig(allow=["mcp:git"])
    effects = rig.configure(allow=["mcp:hub"])
    (wanted,) = [each for each in effects if isinstance(each, SetPools)]
    assert [spec.server for spec in wanted.pools] == ["hub"]


@behaviour("profiles:max-tools")
def test_tools_past_the_bound_are_left_out_in_order_and_can_be_called() -> None:
    rig = ProfileRig(max_tools=4)
    rig.come()
    effects = rig.feed(ev.ListPageRequested(ONE, RawJson(b"7"), None, "tools"))
    (reply,) = [each for each in effects if isinstance(each, Reply)]
    listed = [tool["name"] for tool in json.loads(reply.body)["tools"]]
    assert listed == ["git__log", "git__push", "git__status", "hub__search"]
    (note,) = [each for each in effects if isinstance(each, LogLine)]
    assert note.text == "max_tools leaves 1 tools out of the list of agents with the profile p"
    again = rig.feed(ev.ListPageRequested(ONE, RawJson(b"8"), None, "tools"))
    assert not [each for each in again if isinstance(each, LogLine)], "said once"
    assert [each for each in rig.ask("hub__status") if isinstance(each, Call)]
    limited = {**SERVERS, "git": {**SERVERS["git"], "max_tools": 1}}
    rig.configure(limited, max_tools=2)
    view = rig.core.view_of(ONE)
    assert [tool.qualified for tool in view.tools] == ["git__log", "hub__search"]
    assert view.dropped_tools == 3
    rig.configure(SERVERS, max_tools=0)
    assert rig.core.view_of(ONE).tools == ()


@behaviour("profiles:bounds")
def test_bounds_of_a_profile_come_with_its_sessions_and_change_with_the_file() -> None:
    rig = ProfileRig(SessionBounds(profiles={"p": ProfileLimits(max_in_flight=1)}))
    rig.come()
    assert [each for each in rig.ask("git__log") if isinstance(each, Call)]
    assert rig.ask("git__log") == []
    effects = rig.feed(ev.LimitsRead(SessionBounds(), 10.0))
    assert [type(each) for each in effects] == [Call]


@behaviour("profiles:reload", "lease:never-silently")
def test_state_that_dies_while_its_server_is_kept_back_is_told_as_lost() -> None:
    rig = ProfileRig()
    rig.come()
    rig.feed(PoolChanged(PoolKey("git"), "serving", "", mode="session"))
    (call,) = [each for each in rig.ask("git__log") if isinstance(each, Call)]
    rig.answer(call.call)
    rig.configure(allow=["mcp:hub"])
    rig.feed(ev.SupervisorLost())
    rig.feed(ev.SupervisorConnected(1_000_000, Epoch("e2")))
    (told,) = [
        each for each in rig.feed(ev.RecordReceived(CallsRecorded([], []))) if isinstance(each, OpenSessions)
    ]
    assert [note.bereft for note in told.live] == [["git"]]


# --- lists and calls agree ----------------------------------------------------------------------------------

OFFERED: list[tuple[str, Kind, str, str]] = [
    *(("tools/call", "tool", c.key, each.name) for c in CATALOGS for each in c.tools),
    *(("prompts/get", "prompt", c.key, each.name) for c in CATALOGS for each in c.prompts),
    *(("resources/read", "resource", c.key, each.uri) for c in CATALOGS for each in c.resources),
    ("resources/read", "resource", "git", "file:///t/open"),
    ("resources/read", "resource", "git", "file:///t/secret"),
    ("resources/read", "resource", "git", "file:///unlisted"),
    ("resources/read", "resource", "git", "file://x/t/open"),
    ("resources/read", "resource", "hub", "hub://y"),
]
"""Method, kind, server, and the server's own name or URI."""
LISTED = {str(c.key): {each.uri for each in c.resources} for c in CATALOGS}

PARTS = {
    "tool": ("log", "push", "s*", "*"),
    "prompt": ("ask", "*"),
    "resource": ("file:///*", "*secret", "*"),
}
SOME = st.sampled_from(["git", "hub", "*"])
PATTERNS = st.one_of(
    st.sampled_from(["*", "mcp:git", "mcp:hub", "tag:code"]),
    *(
        st.builds(
            f"{head}:{{}}:{{}}".format, st.sampled_from(["git", "hub", "*"]), st.sampled_from(PARTS[kind])
        )
        for head, kind in (("mcp", "tool"), ("prompt", "prompt"), ("resource", "resource"))
    ),
)
PROFILES = st.fixed_dictionaries(
    {}, optional={"allow": st.lists(PATTERNS, max_size=3), "deny": st.lists(PATTERNS, max_size=2)}
)


def spelled(method: str, server: str, name: str) -> list[str]:
    if method == "resources/read":
        return [name, f"carpool+{server}+{name}"]
    return [f"{server}__{name}", name, *spellings(server, name)]


class ProfileRights(RuleBasedStateMachine):
    """Sessions with a profile that changes under them."""

    @initialize(profile=PROFILES)
    def begin(self, profile: dict[str, Any]) -> None:
        self.rig = ProfileRig(SessionBounds(max_open_calls=2), **profile)
        self.rig.come()
        self.open: list[CallId] = []

    def look(self, effects: list[Any]) -> None:
        scope = self.rig.core.sessions[ONE].scope
        for call in [each for each in effects if isinstance(each, Call)]:
            kind: Kind = {"tools/call": "tool", "prompts/get": "prompt"}.get(call.method, "resource")  # type: ignore[assignment]
            entry = scope.entry_of(scope.server_of(call.key) or "")  # type: ignore[arg-type]
            assert entry is not None
            assert scope.permits(kind, entry, call.target), f"{call.target} is kept back"
            if kind == "resource" and not scope.reads_all(entry):
                named = call.target in LISTED[entry.server] or call.target.startswith("file:///t/")
                assert named, f"{call.target} is not listed"
            self.open.append(call.call)

    @rule(profile=PROFILES)
    def change(self, profile: dict[str, Any]) -> None:
        self.look(self.rig.configure(**profile))

    @rule(offered=st.sampled_from(OFFERED), pick=st.integers(0, 20))
    def ask(self, offered: tuple[str, Kind, str, str], pick: int) -> None:
        method, _, server, name = offered
        ways = spelled(method, server, name)
        self.look(self.rig.ask(ways[pick % len(ways)], method))

    @rule()
    def answer(self) -> None:
        if self.open:
            self.look(self.rig.answer(self.open.pop(0)))

    @invariant()
    def lists_hold_what_calls_may_have_and_nothing_else(self) -> None:
        view = self.rig.core.view_of(ONE)
        scope = view.scope
        listed = {
            *(("tools/call", str(it.server), it.tool) for it in view.tools),
            *(("prompts/get", str(it.server), it.prompt) for it in view.prompts),
            *(("resources/read", str(it.server), it.uri) for it in view.resources),
        }
        for method, kind, server, name in OFFERED:
            entry = scope.entry_of(server)  # type: ignore[arg-type]
            permitted = entry is not None and scope.permits(kind, entry, name)
            if method != "resources/read" or name in LISTED[server]:
                assert ((method, server, name) in listed) == permitted
            for way in spelled(method, server, name):
                found = find_target(view, method, way)
                reached = isinstance(found, Target) and (found.server, found.subject) == (server, name)
                assert permitted or not reached, f"{way} leads to what is kept back"
            shown = [it for it in view.resources if (it.server, it.uri) == (server, name)]
            names = [it.shown for it in shown] if method == "resources/read" else [f"{server}__{name}"]
            for way in names if permitted else ():
                found = find_target(view, method, way)
                assert isinstance(found, Target), f"{way} is listed and refused"
                assert (found.server, found.subject) == (server, name)


TestRights = behaviour("profiles:lists", "profiles:call", "profiles:reload")(ProfileRights.TestCase)
TestRights.settings = settings(deadline=None, max_examples=40, stateful_step_count=15)
