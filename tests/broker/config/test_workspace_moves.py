"""Sessions that go to another workspace: who may, what is asked before, what is told after, and what ends."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from carpool_broker.config.workspace_moves import WorkspaceMoves
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import Reply, SendListChanged, SendResourceUpdated
from carpool_broker.core.model.events import SessionSourceChanged, SourceId
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION
from carpool_protocol.carrier.attach_line import Attach, ResumeSession, RunCommand, WorkspaceChanged
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import (
    Call,
    CallAnswered,
    OpenSessions,
    Root,
    SessionPoolChanged,
    SetResourceSubscriptions,
)
from tests.behaviours import behaviour
from tests.broker.config.test_workspaces import ONE, TWO, WorkspacesHome
from tests.broker.stateless_rig import ONE as AGENT
from tests.broker.stateless_rig import PLAIN, A, B, StatelessRig
from tests.kit.broker_rig import supervisor_comes


def server(command: str, *variables: str) -> dict[str, Any]:
    return {"command": command, "env": {name: f"${{{name}}}" for name in variables}}


class Trip:
    """A home with workspaces `shop` and `bank`, and carriers that a test plays."""

    def __init__(self, base: Path, *, asks: bool = True) -> None:
        self.house = WorkspacesHome(
            base,
            {"a": server("mine")},
            workspaces={
                "shop": {"root": "~/shop", "mcpServers": {"a": server("shops", "TOKEN")}},
                "bank": {"root": "~/bank", "mcpServers": {"a": server("banks", "PIN")}},
            },
        )
        for name in ("shop/deep", "bank", "free", "other"):
            (base / name).mkdir(parents=True)
        self.asks = asks
        self.count = itertools.count(1)
        self.said: list[object] = []
        """What carriers are told: questions as lists of names, and where they are."""
        self.fed: list[Any] = []
        self.moving = WorkspaceMoves(
            self.house.configuration, self.fed.extend, self, self.house.configuration
        )

    def request_environment(self, session: SessionId, names: list[str]) -> int:
        if not self.asks:
            return 0
        self.said.append(names)
        return next(self.count)

    def announce_workspace(self, session: SessionId, change: WorkspaceChanged) -> None:
        self.said.append(change)

    def where(self, session: SessionId = ONE) -> str:
        place = self.house.configuration.workspace_of(session)
        return place["name"] or place["root"].removeprefix(f"{self.house.base}/")

    def env(self, session: SessionId = ONE) -> dict[str, str]:
        specs = self.house.seen(session).specs
        return {name: value for spec in specs for name, value in spec.env.items() if name in {"TOKEN", "PIN"}}

    def roots(self, *directories: str, changed: bool = True, session: SessionId = ONE) -> None:
        roots = tuple(Root(f"file://{self.house.base}/{each}") for each in directories)
        self.moving.roots_received(session, roots, changed=changed)
        self.moving.check()


@behaviour("workspaces:moved")
def test_a_session_goes_at_once_where_nothing_is_to_be_asked_and_its_carrier_is_told_first(
    tmp_path: Path,
) -> None:
    trip = Trip(tmp_path, asks=False)
    trip.house.come(ONE, "free")
    trip.moving.move(ONE, WorkspaceChanged("shop"), trip.said.append)
    assert trip.said == [WorkspaceChanged("shop"), ""]
    (moved,) = [each for each in trip.fed if isinstance(each, SessionSourceChanged)]
    assert moved.elsewhere
    assert trip.where() == "shop"
    assert "TOKEN" in str(trip.house.seen(ONE).misconfigured), "nobody could be asked for it"


@behaviour("workspaces:moved-variables")
def test_variables_that_are_used_over_there_are_asked_before_it_goes_and_only_once(tmp_path: Path) -> None:
    trip = Trip(tmp_path)
    trip.house.come(ONE, "free")
    trip.moving.move(ONE, WorkspaceChanged("shop"))
    trip.moving.check()
    assert (trip.said, trip.where()) == ([["TOKEN"]], "free")
    trip.moving.environment_received(ONE, 1, {"TOKEN": "t", "HOME": "/not/asked/for"})
    assert (trip.where(), trip.env()) == ("shop", {"TOKEN": "t"})
    trip.moving.move(ONE, WorkspaceChanged(str(tmp_path / "free")))
    trip.moving.move(ONE, WorkspaceChanged("shop"))
    assert [each for each in trip.said if isinstance(each, list)] == [["TOKEN"]]
    assert (trip.where(), trip.env()) == ("shop", {"TOKEN": "t"})


@behaviour("workspaces:moved-variables")
def test_moves_are_made_in_their_order_also_where_one_waits(tmp_path: Path) -> None:
    trip = Trip(tmp_path)
    trip.house.come(ONE, "free")
    done: list[str] = []
    for name in ("shop", "bank", str(tmp_path / "free")):
        trip.moving.move(ONE, WorkspaceChanged(name), lambda _, name=name: done.append(name))  # type: ignore[misc]
    trip.moving.check()
    assert done == []
    trip.moving.environment_received(ONE, 1, {"TOKEN": "t"})
    assert (done, trip.where()) == (["shop"], "shop")
    trip.moving.environment_received(ONE, 2, {})
    assert (done[1:], trip.where()) == (["bank", str(tmp_path / "free")], "free")
    trip.moving.environment_received(ONE, 2, {"PIN": "late"})
    trip.moving.move(ONE, WorkspaceChanged("bank"))
    assert trip.env() == {"PIN": "late"}, "what comes too late counts from then on"


def test_a_session_that_closes_during_a_move_does_not_arrive(tmp_path: Path) -> None:
    trip = Trip(tmp_path)
    trip.house.come(ONE, "free")
    done: list[str] = []
    trip.moving.move(ONE, WorkspaceChanged("shop"), done.append)
    trip.moving.session_closed(ONE)
    trip.house.configuration.session_closed(ONE)
    trip.moving.environment_received(ONE, 1, {"TOKEN": "t"})
    trip.moving.check()
    assert done == ["the session has ended meanwhile"]
    assert trip.fed == []


@behaviour("workspaces:moved-variables")
def test_a_variable_that_the_configuration_uses_since_a_moment_ago_is_asked_of_who_is_there(
    tmp_path: Path,
) -> None:
    trip = Trip(tmp_path)
    trip.house.come(ONE, "free")
    trip.house.file.write_text('{"mcpServers": {"a": {"command": "x", "env": {"PIN": "${PIN}"}}}}')
    trip.house.configuration.read_again()
    trip.moving.configuration_changed([ONE, TWO])
    trip.moving.configuration_changed([ONE])
    assert trip.said == [["PIN"]]
    trip.moving.environment_received(ONE, 1, {"PIN": "1"})
    assert trip.env() == {"PIN": "1"}
    assert [each.session for each in trip.fed if isinstance(each, SessionSourceChanged)] == [ONE]


@behaviour("workspaces:roots-move")
def test_changed_roots_take_a_session_to_the_workspace_of_the_first(tmp_path: Path) -> None:
    trip = Trip(tmp_path, asks=False)
    trip.house.come(ONE, "free")
    trip.roots("shop", changed=False)
    assert trip.where() == "free", "where it began its directory says"
    trip.roots("shop/deep", "bank")
    assert (trip.where(), trip.said) == ("shop", [WorkspaceChanged(f"{tmp_path}/shop/deep", by_roots=True)])
    trip.roots("shop", "free")
    trip.roots("nowhere")
    trip.roots()
    assert (trip.where(), len(trip.said)) == ("shop", 1), "the same workspace, no directory, no roots"
    trip.roots("other")
    assert trip.where() == "other"


@behaviour("workspaces:roots-move")
def test_a_session_with_a_requested_workspace_stays_there_whatever_its_roots(tmp_path: Path) -> None:
    trip = Trip(tmp_path, asks=False)
    trip.house.come(ONE, "free", "shop")
    trip.house.come(TWO, "free")
    trip.moving.move(TWO, WorkspaceChanged("shop"))
    for session in (ONE, TWO):
        trip.roots("bank", session=session)
        assert trip.where(session) == "shop"


@behaviour("workspaces:roots-move")
@pytest.mark.parametrize(
    "attach",
    [
        Attach(version=NAMING_VERSION, carrier="door", streams=True),
        Attach(version=ATTACH_VERSION, carrier="cli", control=True),
        Attach(version=ATTACH_VERSION, carrier="run", run=RunCommand(argv=["x"], env={}, cwd="/")),
    ],
)
def test_roots_move_no_session_over_http_and_no_operator(tmp_path: Path, attach: Attach) -> None:
    trip = Trip(tmp_path, asks=False)
    trip.house.configuration.session_opened(ONE, attach, {})
    trip.roots("bank")
    assert trip.said == []


@behaviour("workspaces:moved-survives", "workspaces:roots-move")
def test_a_resumed_session_that_followed_its_roots_follows_them_still(tmp_path: Path) -> None:
    trip = Trip(tmp_path, asks=False)
    moved = WorkspaceChanged(f"{tmp_path}/shop", by_roots=True)
    resume = ResumeSession(session="s1", secret="x", moved=moved)
    cwd = f"{tmp_path}/free"
    trip.house.configuration.session_opened(
        ONE, Attach(version=ATTACH_VERSION, carrier="shim", cwd=cwd, resume=resume), {}
    )
    assert trip.where() == "shop"
    trip.roots("bank")
    assert trip.where() == "bank"


@behaviour("workspaces:moved")
def test_an_impossible_move_is_refused_with_its_reason(tmp_path: Path) -> None:
    trip = Trip(tmp_path)
    run = RunCommand(argv=["x"], env={}, cwd="/")
    trip.house.configuration.session_opened(ONE, Attach(version=ATTACH_VERSION, carrier="run", run=run), {})
    trip.house.come(TWO, "free")
    obstacle = trip.moving.move_objection
    assert "has only its own server" in obstacle(ONE, "shop")
    assert "no such session" in obstacle(SessionId("s9"), "shop")
    assert "there are: shop, bank" in obstacle(TWO, "x")
    assert obstacle(TWO, "bank") == obstacle(TWO, str(tmp_path)) == ""
    said: list[str] = []
    for place in ("/\0", "/no/such/place", str(tmp_path)):
        trip.moving.move(TWO, WorkspaceChanged(place), said.append)
    assert said == ["there is no such directory", "there is no such directory", ""]


# --- what the core makes of it ----------------------------------------------------------------------------


FILE = "file:///a"


class Core(StatelessRig):
    """An agent on servers `a` and `b`."""

    def __init__(self, *, keeps: bool = False, greets: bool = True) -> None:
        super().__init__()
        self.feed(ev.SessionClosed(AGENT))
        self.feed(
            ev.SessionOpened(
                session=AGENT, source=SourceId("daemon"), agent="", pid=1, carrier="shim", keeps=keeps
            )
        )
        if greets:
            self.feed(ev.InitializeRequested(AGENT, RawJson(b"0"), "2025-11-25", "x"))

    def away(self, *keys: PoolKey, elsewhere: bool = True) -> list[Any]:
        """It moves to where these pools serve."""
        self.configure("there", *keys)
        return self.feed(SessionSourceChanged(AGENT, SourceId("there"), elsewhere))

    def configure(self, source: str, *keys: PoolKey) -> list[Any]:
        """A source comes to these pools."""
        return self.read(*keys, source=SourceId(source))

    def subscribe(self) -> None:
        self.feed(ev.SubscribeRequested(AGENT, RawJson(b"5"), FILE, True))


@behaviour("workspaces:moved")
def test_lists_that_the_agent_holds_are_told_as_changed_and_open_calls_go_on() -> None:
    core = Core()
    core.feed(ev.ListPageRequested(AGENT, RawJson(b"1"), None))
    (call,) = core.feed(ev.CallRequested(AGENT, RawJson(b"2"), "a__x", EMPTY_OBJECT, ABSENT, ABSENT))
    assert isinstance(call, Call)
    effects = core.away(B)
    assert SendListChanged(AGENT, "tools") in effects
    assert SessionPoolChanged(AGENT, A, PoolKey("")) in effects, "its lease is returned"
    assert [tool.qualified for tool in core.core.view_of(AGENT).tools] == ["b__y"]
    answered = core.feed(CallAnswered(call.call, is_error=False, body=EMPTY_OBJECT))
    assert [each.id for each in answered if hasattr(each, "body")] == [b"2"]


@behaviour("workspaces:moved")
def test_a_call_that_has_not_left_does_not_go_to_a_server_that_is_not_there_any_more() -> None:
    core = Core()
    core.core.call_table.bounds = SessionBounds(max_open_calls=1)
    first, second = (
        ev.CallRequested(AGENT, RawJson(it), "a__x", EMPTY_OBJECT, ABSENT, ABSENT) for it in (b"2", b"3")
    )
    (call,) = core.feed(first)
    assert core.feed(second) == [], "it waits in the line of its session"
    (refused,) = [each for each in core.away(B) if isinstance(each, Reply)]
    assert refused.id == b"3"
    assert b'"draining","delivered":"no"' in bytes(refused.body)
    answered = core.feed(CallAnswered(call.call, is_error=False, body=EMPTY_OBJECT))
    assert not [each for each in answered if isinstance(each, Call)], "it would hold a lease there"


@behaviour("workspaces:moved")
def test_a_supervisor_that_was_away_hears_who_has_moved_meanwhile_before_any_call() -> None:
    core, other = used(Core()), PoolKey("a:2")
    core.feed(ev.SupervisorLost())
    assert rekeyed(core.away(other, B)) == [], "what is sent to nobody is lost"
    core.feed(ev.CallRequested(AGENT, RawJson(b"3"), "b__y", EMPTY_OBJECT, ABSENT, ABSENT))
    said = [type(each) for each in supervisor_comes(core.feed)]
    assert said.count(SessionPoolChanged) == 1, said
    assert said.index(OpenSessions) < said.index(SessionPoolChanged) < said.index(Call)
    core.feed(ev.SupervisorLost())
    assert rekeyed(supervisor_comes(core.feed)) == [], "it has heard"


@behaviour("workspaces:moved")
def test_a_session_that_came_back_returns_leases_of_servers_that_it_has_not_called_since() -> None:
    other = PoolKey("a:2")
    assert SessionPoolChanged(AGENT, A, other) in Core(keeps=True).away(other, B)
    assert not [each for each in Core().away(other, B) if isinstance(each, SessionPoolChanged)]


def rekeyed(effects: list[Any]) -> list[SessionPoolChanged]:
    return [each for each in effects if isinstance(each, SessionPoolChanged)]


def used(core: Core) -> Core:
    (call,) = core.feed(ev.CallRequested(AGENT, RawJson(b"2"), "a__x", EMPTY_OBJECT, ABSENT, ABSENT))
    core.feed(CallAnswered(call.call, is_error=False, body=EMPTY_OBJECT))
    return core


@behaviour("workspaces:moved")
def test_a_reload_returns_the_lease_of_a_server_that_goes_here_and_stays_elsewhere() -> None:
    core = used(Core())
    core.configure("elsewhere", A)
    assert rekeyed(core.configure("daemon", B)) == [SessionPoolChanged(AGENT, A, PoolKey(""))]


@behaviour("workspaces:moved")
def test_a_reload_returns_the_lease_of_a_server_that_another_pool_runs_here_and_the_same_elsewhere() -> None:
    core, other = used(Core()), PoolKey("a:2")
    core.configure("elsewhere", A)
    core.mode(A, "session")
    assert rekeyed(core.configure("daemon", other, B)) == [], "the new one has not greeted yet"
    assert rekeyed(core.catalog(other, "x")) == [SessionPoolChanged(AGENT, A, other)]


def test_a_lease_of_a_pool_that_goes_for_everybody_is_the_supervisors_to_end() -> None:
    assert rekeyed(used(Core()).read("daemon", B)) == []
    assert rekeyed(used(Core()).read("daemon", PoolKey("a:2"), B)) == []


@behaviour("workspaces:moved-subscriptions")
def test_a_subscription_ends_with_an_update_if_its_server_is_missing_in_the_new_workspace() -> None:
    core = Core()
    core.subscribe()
    effects = core.away(B)
    assert [(each.uri, bytes(each.params)) for each in effects if isinstance(each, SendResourceUpdated)] == [
        (FILE, b'{"uri":"file:///a"}')
    ]
    assert core.core.requests.subscriptions.subscriptions_of(AGENT) == []


@behaviour("workspaces:moved-subscriptions")
def test_a_subscription_goes_along_to_another_pool_of_its_server_and_is_told_as_changed() -> None:
    core, other = Core(), PoolKey("a:2")
    core.subscribe()
    effects = core.away(other, B)
    assert [each.uri for each in effects if isinstance(each, SendResourceUpdated)] == [FILE]
    assert SetResourceSubscriptions(other, [FILE]) in effects
    quiet = Core()
    quiet.subscribe()
    assert not [each for each in quiet.away(A, B) if isinstance(each, SendResourceUpdated)], "the same pool"


def test_a_new_source_in_the_same_workspace_sends_no_resource_updates() -> None:
    core = Core()
    core.subscribe()
    assert not [each for each in core.away(B, elsewhere=False) if isinstance(each, SendResourceUpdated)]


@behaviour("workspaces:moved-subscriptions")
def test_a_listen_hears_the_same() -> None:
    core = Core(greets=False)
    core.feed(ev.ListenRequested(AGENT, RawJson(b"7"), PLAIN, (), (FILE,)))
    effects = core.away(B)
    assert [(each.uri, each.listen) for each in effects if isinstance(each, SendResourceUpdated)] == [
        (FILE, b"7")
    ]
