"""What agents with a profile see, and what every spelling of what is kept back comes to."""

import json
from pathlib import Path
from typing import Any

from carpool_broker.config.configuration import DEFAULT_SOURCE
from carpool_broker.core.configuration.profiles import profile_scope
from carpool_broker.core.model.bounds import ProfileLimits
from carpool_broker.core.model.compiled_profile import NO_RIGHTS
from carpool_broker.core.model.events import SessionSourceChanged, SourceRead
from carpool_broker.core.model.scope import Scope, ScopeEntry
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import NoTarget, Target, find_target, with_similar_names
from carpool_broker.core.registry.uris import UriRoute
from carpool_broker.core.registry.view import DeniedName, View
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Catalog, Offer, ResourceOffer
from carpool_protocol.wire.tool_name_resolver import AmbiguousName, NoSuchName, spellings
from tests.behaviours import behaviour
from tests.kit.broker_rig import no_effect
from tests.kit.synchronous_configuration import SynchronousConfiguration

GIT, HUB, OFF = ServerName("git"), ServerName("hub"), ServerName("off")
SERVERS: dict[str, Any] = {
    "git": {"command": "x", "tags": ["code"]},
    "hub": {"command": "y"},
    "off": {"command": "z", "disabled": True},
}


def catalog(server: str, tools: str, prompts: str = "", uris: str = "", templates: str = "") -> Catalog:
    def of(names: str) -> list[Offer]:
        return [Offer(name, RawJson(json.dumps({"name": name}).encode())) for name in names.split()]

    def at(names: str, member: str) -> list[ResourceOffer]:
        return [ResourceOffer(uri, RawJson(json.dumps({member: uri}).encode())) for uri in names.split()]

    return Catalog(
        PoolKey(server), of(tools), f"Use {server}.", EMPTY_OBJECT, EMPTY_OBJECT, "",
        of(prompts), at(uris, "uri"), at(templates, "uriTemplate"),
    )  # fmt: skip


def frame(servers: dict[str, Any] | None = None, **profile: Any) -> Scope:
    """The scope of the profile `p`, with all servers that it sees."""
    text = json.dumps({"mcpServers": servers or SERVERS, "profiles": {"p": profile}})
    config = read_config(text, "f").config
    assert config is not None
    found = profile_scope(config, "p")
    entries = tuple(
        ScopeEntry(
            server=name, key=PoolKey(name), prefix=each.tools_prefix, tags=each.tags, max_tools=each.max_tools
        )
        for name, each in config.servers.items()
        if found.rights.sees_server(name, each.tags) and not each.disabled
    )
    return Scope(entries, **{name: getattr(found, name) for name in found.__struct_fields__[1:]})


def view(servers: dict[str, Any] | None = None, **profile: Any) -> View:
    registry = Registry(no_effect)
    registry.catalog_received(
        catalog("git", "log push status", "ask tell", "file:///a file:///b", "file:///t/{x}")
    )
    registry.catalog_received(catalog("hub", "search status", "ask", "file:///b hub://x"))
    found = registry.retain_scope(frame(servers, **profile))
    registry.check()
    return found


def listed(found: View) -> list[str]:
    return [tool.qualified for tool in found.tools]


# --- lists --------------------------------------------------------------------------------------------------


@behaviour("profiles:lists")
def test_only_what_is_permitted_is_listed_whatever_its_kind() -> None:
    found = view(
        allow=["mcp:git:*", "prompt:*:ask", "resource:git:file:///*"], deny=["mcp:*:push", "resource:*:*b"]
    )
    assert listed(found) == ["git__log", "git__status"]
    assert [it.qualified for it in found.prompts] == ["git__ask", "hub__ask"]
    assert [it.shown for it in found.resources] == ["file:///a"]
    assert [it.shown for it in found.templates] == ["file:///t/{x}"]
    whole = view(allow=["mcp:hub"])
    assert listed(whole) == ["hub__search", "hub__status"]
    assert [it.shown for it in whole.resources] == ["file:///b", "hub://x"], "as if nobody else had it"
    assert view(allow=["tag:code"]).instructions == "Use git.", "a server that is not seen says nothing"
    assert (listed(view(allow=[])), view(allow=[]).instructions) == ([], "")


@behaviour("profiles:call")
def test_every_spelling_of_what_is_kept_back_is_refused_and_says_by_which_profile() -> None:
    found = view(allow=["mcp:git", "mcp:hub:status"], deny=["mcp:git:push"])
    for spelling in ("git__push", *spellings("git", "push"), "push"):
        assert found.resolve(spelling) == DeniedName(GIT, "push", "p"), spelling
    assert found.resolve("hub__search") == DeniedName(HUB, "search", "p")
    assert isinstance(found.resolve("git__pull"), NoSuchName)
    assert isinstance(found.resolve("status"), AmbiguousName)
    refused = find_target(found, "tools/call", "git__push")
    assert isinstance(refused, NoTarget)
    assert (refused.fault, refused.server, refused.subject) == ("not_permitted", "git", "push")
    assert refused.detail == "The profile p keeps it back."


@behaviour("profiles:leak")
def test_suggestions_hold_only_permitted_names() -> None:
    found = view(allow=["*"], deny=["mcp:hub:status", "mcp:git:log"])
    missed = find_target(found, "tools/call", "git__lag")
    assert isinstance(missed, NoTarget)
    assert "log" not in with_similar_names(found, "tools/call", missed)
    status = found.resolve("status")
    assert not isinstance(status, AmbiguousName), "only one of the two is there for it"
    assert isinstance(find_target(found, "tools/call", "status"), Target)


@behaviour("profiles:call")
def test_prompts_and_their_completions_are_refused_like_tools() -> None:
    found = view(allow=["mcp:git", "mcp:hub"], deny=["prompt:git:tell"])
    assert found.resolve_prompt("git__tell") == DeniedName(GIT, "tell", "p")
    for method, subject in (
        ("prompts/get", "mcp:git:tell"),
        ("completion/complete", '{"type":"ref/prompt","name":"git__tell"}'),
    ):
        refused = find_target(found, method, subject)
        assert isinstance(refused, NoTarget)
        assert refused.fault == "not_permitted"


@behaviour("profiles:call")
def test_a_uri_is_judged_by_what_it_leads_to_however_it_is_written() -> None:
    found = view(deny=["resource:git:file:///t/secret*", "resource:git:file:///a", "resource:hub:*"])
    assert isinstance(found.route("file:///t/open"), UriRoute)
    for uri in ("file:///t/secret", "file:///a", "carpool+git+file:///a", "carpool+git+file:///t/secret"):
        kept = found.route(uri)
        assert isinstance(kept, DeniedName), uri
        assert (kept.server, kept.profile) == ("git", "p")
    assert found.route("file:///b") == UriRoute(PoolKey("git"), GIT, "file:///b", "listed")
    assert found.route("hub://x") == DeniedName(HUB, "hub://x", "p")
    refused = find_target(found, "resources/read", "file:///a")
    assert isinstance(refused, NoTarget)
    assert (refused.fault, refused.subject) == ("not_permitted", "file:///a")
    ref = '{"type":"ref/resource","uri":"file:///t/{x}"}'
    refused = find_target(found, "completion/complete", ref)
    assert isinstance(refused, NoTarget), "its values would name what is kept back"
    named = '{"type":"ref/resource","uri":"carpool+git+file:///t/{x}"}'
    assert isinstance(
        find_target(view(deny=["resource:git:file:///a"]), "completion/complete", named), Target
    )
    closed = find_target(view(deny=["resource:git:file:///t/*"]), "completion/complete", ref)
    assert isinstance(closed, NoTarget)
    assert closed.fault == "not_permitted"


# --- configurations -----------------------------------------------------------------------------------------

ONE, TWO = SessionId("s1"), SessionId("s2")


class ProfilesFile:
    """A configuration file with profiles."""

    def __init__(self, directory: Path, **profiles: Any) -> None:
        self.file = directory / "carpool.json"
        self.write(**profiles)
        self.configuration = SynchronousConfiguration(
            ConfigFile(str(self.file), asked_for=True), {"HOME": "/h"}
        )

    def write(self, **profiles: Any) -> None:
        self.file.write_text(json.dumps({"mcpServers": SERVERS, "profiles": profiles}), encoding="utf-8")

    def come(self, session: SessionId, profile: str) -> SourceRead:
        source, _ = self.configuration.session_opened(session, attach(profile), {})
        return self.configuration.resolve_source(source)


def attach(profile: str, *, resumes: bool = False) -> Attach:
    back = ResumeSession(session="s9", secret="x") if resumes else None
    return Attach(version=ATTACH_VERSION, carrier="shim", profile=profile, resume=back)


@behaviour("profiles:servers")
def test_a_server_of_which_nothing_is_permitted_is_neither_run_nor_named(tmp_path: Path) -> None:
    house = ProfilesFile(tmp_path, coder={"allow": ["tag:code"]}, none={"allow": []}, all={})
    coder = house.come(ONE, "coder")
    assert [spec.server for spec in coder.specs] == ["git"]
    assert [entry.server for entry in coder.scope.servers] == ["git"]
    assert (coder.disabled, coder.misconfigured) == ({}, {})
    assert (coder.scope.profile, coder.scope.barred) == ("coder", (("hub", None), ("off", None)))
    assert house.come(TWO, "none").specs == ()
    everything = house.come(SessionId("s3"), "all")
    assert [spec.server for spec in everything.specs] == ["git", "hub"]
    assert everything.scope == house.configuration.resolve_source(DEFAULT_SOURCE).scope, (
        "it shares the view of everybody"
    )


@behaviour("profiles:reload")
def test_a_profile_that_changes_changes_the_scope_and_one_that_goes_grants_nothing(tmp_path: Path) -> None:
    house = ProfilesFile(tmp_path, p={"allow": ["mcp:git"]})
    source = house.come(ONE, "p").source
    assert house.come(TWO, "p").source == source, "sessions of one profile share"
    house.write(p={"allow": ["mcp:hub"], "max_in_flight": 2})
    events = [
        event for event in house.configuration.read_again() if not isinstance(event, SessionSourceChanged)
    ]
    (read,) = [event for event in events if isinstance(event, SourceRead) and event.source == source]
    assert [entry.server for entry in read.scope.servers] == ["hub"]
    assert house.configuration.bounds().profiles == {"p": ProfileLimits(max_in_flight=2)}
    house.write()
    house.configuration.read_again()
    gone = house.configuration.resolve_source(source)
    assert (gone.scope.servers, gone.scope.rights, gone.scope.profile) == ((), NO_RIGHTS, "p")
    assert house.configuration.missing_profiles() == ["p"]


@behaviour("profiles:chosen")
def test_a_profile_that_is_not_there_is_refused_and_one_that_was_meant_is_named(tmp_path: Path) -> None:
    house = ProfilesFile(tmp_path, reader={})
    objection = house.configuration.attach_objection(attach("raeder"))
    assert objection is not None
    assert (objection.why, objection.text) == (
        "unknown_profile",
        "the configuration has no profile 'raeder' (there are: reader); did you mean reader?",
    )
    assert house.configuration.attach_objection(attach("reader")) is None
    assert house.configuration.attach_objection(attach("gone", resumes=True)) is None, (
        "it sees nothing, and may stay"
    )
    assert house.come(ONE, "gone").scope.servers == ()
