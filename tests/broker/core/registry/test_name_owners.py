"""What reads as a name of one server is never a name of another, whatever state that server is in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct

from carpool_broker.config.configuration import DEFAULT_SOURCE
from carpool_broker.core.limits.guess_budget import GUESSES_OF_ONE
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import Reply
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import Call, Catalog, Offer, PoolChanged, PoolState
from carpool_protocol.wire.tool_name_resolver import legalise, spellings
from tests.behaviours import behaviour
from tests.kit.broker_rig import broker_core, supervisor_comes
from tests.kit.synchronous_configuration import SynchronousConfiguration

ONE, TWO = SessionId("s1"), SessionId("s2")
METHODS = ["tools/call", "prompts/get", "completion/complete"]


class NameOwnersRig:
    """A core whose servers are those of a file, and one agent."""

    def __init__(
        self,
        directory: Path,
        servers: dict[str, Any],
        *,
        separator: str = "__",
        tool_name_length: int = 64,
        **profile: Any,
    ) -> None:
        self.file = directory / "carpool.json"
        self.profile = profile
        self.names = {"separator": separator, "tool_name_length": tool_name_length}
        self.write(servers)
        self.configuration = SynchronousConfiguration(
            ConfigFile(str(self.file), asked_for=True), {"HOME": "/h"}
        )
        self.core = broker_core(self.configuration.bounds(), secret=b"x")
        self.now = 100.0
        self.requests = 0
        self.said: list[Any] = []
        """Calls that left and answers, since the last request."""
        self.feed(self.configuration.resolve_source(DEFAULT_SOURCE))
        supervisor_comes(self.feed)
        name = "p" if profile else ""
        self.come(Attach(version=ATTACH_VERSION, carrier="shim", profile=name))

    def come(self, attach: Attach, session: SessionId = ONE) -> None:
        source, followed = self.configuration.session_opened(session, attach, {})
        for event in followed:
            self.feed(event)
        came = ev.SessionOpened(
            session=session, source=source, agent="", pid=1, carrier="shim", profile=attach.profile
        )
        self.feed(came)
        self.feed(ev.InitializeRequested(session, RawJson(b"0"), "2025-11-25", "x"))

    def write(self, servers: dict[str, Any]) -> None:
        said = {"mcpServers": servers, "profiles": {"p": self.profile}, **self.names}
        self.file.write_text(json.dumps(said), encoding="utf-8")

    def reload(self, servers: dict[str, Any]) -> None:
        self.write(servers)
        for event in self.configuration.read_again():
            self.feed(event)

    def feed(self, event: ev.AnyEvent) -> None:
        effects = self.core.handle(event, self.now)
        self.said += [each for each in effects if isinstance(each, (Call, Reply))]
        self.core.check()

    def key(self, server: str) -> PoolKey:
        (key,) = [it.key for it in self.core.view_of(ONE).scope.servers if it.server == server]
        return key

    def tell(self, server: str, *names: str) -> None:
        """The server has tools and prompts of these names."""
        offers = [Offer(name, RawJson(json.dumps({"name": name}).encode())) for name in names]
        self.feed(PoolChanged(self.key(server), "serving", ""))
        told = Catalog(self.key(server), offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", offers)
        told.features.extend(["tools", "prompts", "completions"])
        self.feed(told)

    def pool(self, server: str, state: PoolState) -> None:
        self.feed(PoolChanged(self.key(server), state, ""))

    def ask(self, method: str, name: str, session: SessionId = ONE) -> Call | dict[str, Any]:
        """The call that leaves, or the error; what waits for a server waits in vain."""
        self.begin(method, name, session)
        if not self.said:
            self.now += 11.0
            self.said = self.core.tick(self.now)
        return self.answer(session)

    def begin(self, method: str, name: str, session: SessionId = ONE) -> None:
        self.requests += 1
        said = json.dumps({"type": "ref/prompt", "name": name}) if method == METHODS[2] else name
        request = RawJson(b"%d" % self.requests)
        self.said = []
        self.feed(ev.CallRequested(session, request, said, EMPTY_OBJECT, ABSENT, ABSENT, method=method))

    def answer(self, session: SessionId = ONE) -> Call | dict[str, Any]:
        (found,) = [each for each in self.said if isinstance(each, (Call, Reply))]
        if isinstance(found, Call):
            self.feed(ev.RequestCancelled(session, RawJson(b"%d" % self.requests), ""))
            return found
        body = msgspec.json.decode(found.body)
        error: dict[str, Any] = body["data"] if found.is_error else body["_meta"]["carpool/error"]
        return {**error, "text": json.dumps(body)}


class Case(Struct, frozen=True):
    """Two servers: `vault`, whose names are said, and another one, which has tools that are called so."""

    state: str
    other: str = "evil"
    other_says: dict[str, Any] = {}
    vault_says: dict[str, Any] = {}
    separator: str = "__"

    @property
    def servers(self) -> dict[str, Any]:
        said = STATES[self.state].server
        return {
            self.other: {"command": "x", **self.other_says},
            "vault": {"command": "v", **self.vault_says, **said},
        }

    @property
    def ways(self) -> list[str]:
        """What an agent may say that means the tool `read` of `vault`."""
        return [
            *spellings("vault", "read", self.vault_says.get("tools_prefix"))[:-1],
            f"vault{self.separator}read",
        ]

    def set_up(self, directory: Path, names: list[str]) -> NameOwnersRig:
        """`other` offers all these names, and `vault` is in its state."""
        rig = NameOwnersRig(directory, self.servers, separator=self.separator, **STATES[self.state].profile)
        rig.tell(self.other, *names)
        match self.state:
            case "kept back":
                rig.tell("vault", "read")
            case "without it":
                rig.tell("vault", "write")
            case "given up":
                rig.pool("vault", "given_up")
            case "backing off":
                rig.pool("vault", "backing_off")
            case "taken out":
                rig.tell("vault", "read")
                rig.reload({self.other: self.servers[self.other]})
            case _:
                pass
        return rig


class State(Struct, frozen=True):
    """A state of the server that is named."""

    fault: str
    """How the error begins that its callers get."""
    server: dict[str, Any] = {}
    """What its file says."""
    profile: dict[str, Any] = {}


NONE_OF_IT = {"deny": ["mcp:vault", "prompt:vault:*", "resource:vault:*"]}
STATES = {
    "disabled": State("disabled", {"disabled": True}),
    "unset": State("unset", {"args": ["${NOT_SET_ANYWHERE}"]}),
    "misconfigured": State("misconfigured", {"command": "${NOT_SET:- }"}),
    "without its file": State("misconfigured", {"tools_file": "nowhere.json"}),
    "barred": State("not_permitted", profile=NONE_OF_IT),
    "barred and disabled": State("not_permitted", {"disabled": True}, NONE_OF_IT),
    "barred and unset": State("not_permitted", {"args": ["${NOT_SET_ANYWHERE}"]}, NONE_OF_IT),
    "kept back": State("not_permitted", profile={"deny": ["mcp:vault:read", "prompt:vault:read"]}),
    "starting": State("unavailable"),
    "given up": State("given_up"),
    "backing off": State("backing_off"),
    "without it": State("unknown_"),
    "taken out": State("unknown_"),
}


def cases() -> Iterator[Case]:
    for state in STATES:
        yield Case(state)
        if state != "without its file":  # then no more is known of it than its name
            yield Case(state, vault_says={"tools_prefix": "pw"})
            yield Case(state, "evil", {"tools_prefix": ""}, {"tools_prefix": "pw"}, "_")
        yield Case(state, vault_says={"tools_prefix": ""})
        yield Case(state, "evil", {"tools_prefix": ""})
        if state != "taken out":  # then the file says that `evil` has its name
            yield Case(state, "evil", {"tools_prefix": "vault"})
        yield Case(state, "mcp")
        yield Case(state, separator="-")


@behaviour("names:owner")
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_a_name_of_one_server_never_means_a_tool_of_another_whatever_state_that_server_is_in(
    case: Case, tmp_path: Path
) -> None:
    ways = case.ways
    rig = case.set_up(tmp_path, sorted({*ways, "vault:read", *map(legalise, ways)}))
    assert not {*ways} & {it.qualified for it in rig.core.view_of(ONE).tools if it.server == case.other}
    for method in METHODS:
        assert not isinstance(rig.ask(method, "vault:read"), Call)
        for way in ways:
            found = rig.ask(method, way)
            assert not isinstance(found, Call), f"{method} of {way} went to {found.key}"
            assert found["code"].startswith(STATES[case.state].fault), (method, way, found)
            assert "vault" in found["text"] or case.state == "without it", (method, way, found)
            assert "evil" not in found["text"], "nobody is led to the other server"


@behaviour("names:owner")
@pytest.mark.parametrize("method", METHODS)
def test_the_tools_of_the_other_server_can_be_called_under_its_own_name(method: str, tmp_path: Path) -> None:
    rig = Case("disabled").set_up(tmp_path, ["vault__read", "read"])
    for name, own in (
        ("evil__vault__read", "vault__read"),
        ("mcp__evil__vault__read", "vault__read"),
        ("mcp:evil:vault__read", "vault__read"),
        ("read", "read"),
    ):
        found = rig.ask(method, name)
        assert isinstance(found, Call), found
        assert own in found.target


def test_a_bare_name_waits_for_a_server_that_may_have_it_too_and_a_name_of_its_server_does_not(
    tmp_path: Path,
) -> None:
    rig = Case("starting").set_up(tmp_path, ["read"])
    for name in ("evil__read", "mcp__evil__read", "evil.read"):
        began = rig.now
        assert isinstance(rig.ask("tools/call", name), Call)
        assert rig.now == began
    rig.begin("tools/call", "read")
    rig.tell("vault", "read")
    found = rig.answer()
    assert isinstance(found, dict)
    assert found["code"] == "unknown_tool"
    assert "evil__read, vault__read" in found["text"]


@behaviour("names:prefix")
@pytest.mark.parametrize("method", METHODS)
def test_a_prefix_is_read_in_all_the_ways_in_which_a_name_is(method: str, tmp_path: Path) -> None:
    servers = {"playwright": {"command": "x", "tools_prefix": "pw"}}
    rig = NameOwnersRig(tmp_path, servers)
    rig.tell("playwright", "navigate")
    for head in ("pw", "playwright"):
        for form in ("{}__navigate", "{}_navigate", "mcp__{}__navigate", "mcp:{}:navigate"):
            assert isinstance(rig.ask(method, form.format(head)), Call), form
        for form in ("mcp:{}.navigate", "mcp_{}_navigate", "{}.navigate"):
            assert isinstance(rig.ask(method, form.format(head)), Call), form


@behaviour("names:length")
@pytest.mark.parametrize("method", METHODS)
def test_an_agent_with_a_bound_of_its_own_reads_shorter_names_and_may_say_the_longer_ones(
    method: str, tmp_path: Path
) -> None:
    rig = NameOwnersRig(tmp_path, {"github": {"command": "x"}})
    tools = ["add_pull_request_review_comment_to_pending_review", "x" * 80, "search"]
    rig.tell("github", *tools)
    rig.come(Attach(version=ATTACH_VERSION, carrier="shim", tool_name_length=50), TWO)
    names = {
        session: {it.tool: it.qualified for it in rig.core.view_of(session).tools} for session in (ONE, TWO)
    }
    assert [max(map(len, names[session].values())) for session in (ONE, TWO)] == [64, 50]
    assert names[ONE]["search"] == names[TWO]["search"]
    for tool in tools:
        for way in (names[TWO][tool], names[ONE][tool], f"github__{tool}", f"mcp__github__{tool}"):
            found = rig.ask(method, way, TWO)
            assert isinstance(found, Call), way
            assert tool in found.target


@behaviour("names:length")
def test_the_bound_of_the_file_is_for_every_agent_that_brings_none(tmp_path: Path) -> None:
    rig = NameOwnersRig(tmp_path, {"github": {"command": "x"}}, tool_name_length=40)
    rig.tell("github", "x" * 80)
    rig.come(Attach(version=ATTACH_VERSION, carrier="shim", tool_name_length=50), TWO)
    assert [len(rig.core.view_of(session).tools[0].qualified) for session in (ONE, TWO)] == [40, 50]


@behaviour("names:guesses")
@pytest.mark.parametrize("method", METHODS)
def test_hundreds_of_unknown_names_at_once_are_refused_mostly_without_a_search(
    method: str, tmp_path: Path
) -> None:
    rig = NameOwnersRig(tmp_path, {"hub": {"command": "x"}})
    rig.tell("hub", "open_issue", "close_issue")
    answers = [rig.ask(method, f"hub__open_isue{number}") for number in range(100)]
    similar = ["Did you mean hub__open_issue" in str(each) for each in answers]
    assert similar == [True] * GUESSES_OF_ONE + [False] * (100 - GUESSES_OF_ONE)
    assert all("unknown" in str(each) for each in answers), "each of them gets the error itself"
    rig.now += 1.0
    assert "Did you mean hub__open_issue" in str(rig.ask(method, "hub__open_isue"))
