"""Detection of a server's era by its answers, its silence and its end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from carpool_protocol.ids import EMPTY_OBJECT, InstanceId, PoolKey, RawJson
from carpool_protocol.link.messages import (
    Catalog,
    DiscoverCatalog,
    Era,
    EraWish,
    Operate,
    Policy,
    PoolChanged,
    SetPools,
)
from carpool_protocol.wire.json_scan import MAX_PARTS
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import GreetInOtherEra, RecordEra, RereadLists, Spawn, WriteLogLine
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.core.model.well_known import WellKnownServer
from carpool_supervisor.core.pools.eras import SILENCE_S
from carpool_supervisor.era.adapter import EraAdapter
from carpool_supervisor.era.era_detection import EraDetection
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.stateless import StatelessAdapter
from carpool_supervisor.knowledge import era_cache
from carpool_supervisor.knowledge.era_cache import (
    NOTHING_KNOWN,
    EraVerdict,
    EraVerdicts,
    era_of,
    with_observation,
)
from tests.behaviours import behaviour
from tests.kit.effects import of_kind
from tests.kit.supervisor_rig import SupervisorRig, pool_spec

ME: Final = InstanceId(1)
KEY: Final = PoolKey("s:1")
OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"

Json = dict[str, Any]
LOGS: Final[Json] = {"logging": {}}
"""A server that lists nothing, and says so."""


def make(era: Era) -> EraAdapter:
    return StatelessAdapter(ME, KEY, "1.0") if era == "stateless" else HandshakeAdapter(ME, KEY, "1.0")


class Dialogue:
    """A detection and a server on the other end of one pipe."""

    def __init__(self, first: Era, server: Callable[[Json], Json | None]) -> None:
        self.detection = EraDetection(ME, make, first)
        self.server = server
        self.heard: list[str] = []
        self.events: list[Any] = []
        self.write(self.detection.adapter.greeting_line())

    def write(self, *lines: bytes) -> None:
        todo = [each for line in lines for each in line.splitlines()]
        while todo:
            request = json.loads(todo.pop(0))
            self.heard.append(request["method"])
            answer = self.server(request)
            if answer is not None and "id" in request:
                line = json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}).encode()
                events, out = self.detection.feed([line])
                self.events += events
                todo += [each for line in out for each in line.splitlines()]

    def seen(self, *kinds: type) -> list[Any]:
        return [each for each in self.events if isinstance(each, kinds)]


def error(code: int, **data: Any) -> Json:
    return {"error": {"code": code, "message": "no", **({"data": data} if data else {})}}


def old_server(request: Json, refusal: Json | None = None) -> Json | None:
    if request["method"] == "initialize":
        return {"result": {"protocolVersion": OLD, "capabilities": LOGS, "serverInfo": {"name": "x"}}}
    return refusal if refusal is not None else error(-32601)


def new_server(request: Json, refusal: Json | None = None) -> Json | None:
    if request["method"] == "server/discover":
        return {"result": {"resultType": "complete", "supportedVersions": [NEW], "capabilities": LOGS}}
    return refusal if refusal is not None else error(-32601)


def both(request: Json) -> Json | None:
    return (old_server if request["method"] == "initialize" else new_server)(request)


# --- answers ---------------------------------------------------------------------------------------------


@behaviour("eras:found-out")
def test_a_server_that_answers_the_first_greeting_hears_of_no_other() -> None:
    for first, method in (("handshake", "initialize"), ("stateless", "server/discover")):
        talk = Dialogue(first, both)  # type: ignore[arg-type]  # both words are eras
        assert talk.heard[0] == method
        assert not {"initialize", "server/discover"} & set(talk.heard[1:])
        [greeted] = talk.seen(ev.InstanceGreeted)
        assert greeted.catalog.era == first
        assert talk.detection.is_over


@behaviour("eras:found-out")
@pytest.mark.parametrize(
    "refusal",
    [
        error(-32601),
        error(-32600),
        error(-32602),
        error(-32022, supported=[NEW], requested=OLD),
        {"result": {"protocolVersion": NEW, "capabilities": {}, "serverInfo": {}}},
    ],
)
def test_a_server_that_refuses_initialize_as_one_of_the_newer_era_does_is_greeted_in_that(
    refusal: Json,
) -> None:
    talk = Dialogue("handshake", lambda request: new_server(request, refusal))
    assert list(dict.fromkeys(talk.heard))[:2] == ["initialize", "server/discover"]
    refused, greeted = (each for each in talk.events if not isinstance(each, ev.VersionRefused))
    assert isinstance(refused, ev.EraRefused)
    assert isinstance(greeted, ev.InstanceGreeted)
    assert refused.era == "handshake"
    assert "initialize" in refused.text
    assert isinstance(talk.detection.adapter, StatelessAdapter)


@behaviour("eras:found-out")
@pytest.mark.parametrize(
    "refusal",
    [
        error(-32602),  # mcp 1.29
        error(-32601),  # the TypeScript SDK
        error(-32000),
        error(0),
        error(-32022, supported=[OLD]),
        error(-32022),
        {"result": {}},
        {"result": {"supportedVersions": [OLD]}},
        {"result": {"supportedVersions": [NEW] * MAX_PARTS}},
        {"error": 5},
    ],
)
def test_a_server_that_refuses_discover_is_initialized_on_the_same_pipe(refusal: Json) -> None:
    talk = Dialogue("stateless", lambda request: old_server(request, refusal))
    assert talk.heard[:3] == ["server/discover", "initialize", "notifications/initialized"]
    assert [type(each) for each in talk.events] == [ev.EraRefused, ev.InstanceGreeted]
    assert isinstance(talk.detection.adapter, HandshakeAdapter)


def test_a_server_of_an_era_to_come_is_not_taken_for_an_old_one() -> None:
    talk = Dialogue("stateless", lambda _: error(-32022, supported=["2031-01-01"]))
    assert talk.heard == ["server/discover"]
    [failed] = talk.seen(ev.GreetingFailed)
    assert "era" not in failed.text


def test_an_error_of_the_servers_own_says_nothing_about_its_era() -> None:
    talk = Dialogue("handshake", lambda _: error(-32603))
    assert talk.heard == ["initialize"]
    assert len(talk.seen(ev.GreetingFailed)) == 1


def test_a_server_that_refuses_both_is_told_of_with_both_refusals_and_asked_no_more() -> None:
    talk = Dialogue("handshake", lambda _: error(-32601))
    assert talk.heard == ["initialize", "server/discover", "initialize"]
    [failed] = talk.seen(ev.GreetingFailed)
    assert failed.text == "refused initialize: no (-32601); refused server/discover: no (-32601)"


# --- silence ---------------------------------------------------------------------------------------------


@behaviour("eras:found-out")
def test_a_silent_server_gets_the_other_greeting_and_its_late_refusal_says_nothing() -> None:
    talk = Dialogue("stateless", lambda request: None)
    talk.server = old_server
    talk.write(talk.detection.greet_in_other_era())
    assert talk.detection.greet_in_other_era() == b"", "said once"
    talk.events += talk.detection.feed([b'{"jsonrpc":"2.0","id":"carpool-discover-1","error":{"code":-1}}'])[
        0
    ]
    assert [type(each) for each in talk.events] == [ev.InstanceGreeted]
    assert isinstance(talk.detection.adapter, HandshakeAdapter)


@behaviour("eras:found-out")
@pytest.mark.parametrize(
    "second", [both, lambda request: new_server(request, error(-32022, supported=[NEW]))]
)
def test_a_server_that_reads_both_greetings_late_is_of_the_era_of_the_first(
    second: Callable[[Json], Json | None],
) -> None:
    talk = Dialogue("stateless", lambda request: None)
    late = {"jsonrpc": "2.0", "id": "carpool-discover-1", **(both({"method": "server/discover"}) or {})}
    initialize = json.loads(talk.detection.greet_in_other_era())
    talk.server = second
    for line in (late, {"jsonrpc": "2.0", "id": initialize["id"], **(second(initialize) or {})}):
        events, out = talk.detection.feed([json.dumps(line).encode()])
        talk.events += events
        talk.write(*out)
    [greeted] = talk.seen(ev.InstanceGreeted)
    assert greeted.catalog.era == "stateless"
    assert talk.heard == ["server/discover", "tools/list"], "it is not greeted again"
    assert not talk.seen(ev.EraRefused, ev.GreetingFailed)
    assert isinstance(talk.detection.adapter, StatelessAdapter)


def test_a_late_answer_that_comes_after_one_to_the_second_greeting_says_nothing() -> None:
    def slow(request: Json) -> Json | None:
        capable: Json = {"protocolVersion": OLD, "capabilities": {"tools": {}}, "serverInfo": {}}
        return {"result": capable} if request["method"] == "initialize" else None

    talk = Dialogue("stateless", lambda request: None)
    talk.server = slow
    talk.write(talk.detection.greet_in_other_era())
    assert talk.heard[-1] == "tools/list"
    late = {"jsonrpc": "2.0", "id": "carpool-discover-1", **(both({"method": "server/discover"}) or {})}
    _, out = talk.detection.feed([json.dumps(late).encode()])
    assert not out
    assert isinstance(talk.detection.adapter, HandshakeAdapter)


@behaviour("eras:found-out")
def test_a_late_discover_that_locked_the_server_to_its_era_is_asked_once_more() -> None:
    talk = Dialogue("stateless", lambda request: None)
    talk.server = lambda request: new_server(request, error(-32022, supported=[NEW]))
    talk.write(talk.detection.greet_in_other_era())
    assert talk.heard[:3] == ["server/discover", "initialize", "server/discover"]
    assert len(talk.seen(ev.InstanceGreeted)) == 1
    assert isinstance(talk.detection.adapter, StatelessAdapter)


def test_lines_in_one_burst_with_the_greeting_are_read_by_the_adapter_of_the_era_found() -> None:
    detection = EraDetection(ME, make, "stateless")
    detection.adapter.greeting_line()
    refused = b'{"jsonrpc":"2.0","id":"carpool-discover-1","error":{"code":-32601,"message":"no"}}'
    result = {"protocolVersion": OLD, "capabilities": LOGS, "serverInfo": {}}
    greeted = json.dumps({"jsonrpc": "2.0", "id": "carpool-initialize-1", "result": result}).encode()
    no_tools = refused.replace(b"carpool-discover-1", b"carpool-tools-2")
    ping = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
    events, out = detection.feed([refused, greeted, no_tools, ping])
    assert [type(each) for each in events] == [ev.EraRefused, ev.InstanceGreeted]
    assert b'"id":7,"result"' in out[-1]


# --- the core --------------------------------------------------------------------------------------------


class EraRig(SupervisorRig):
    """One server whose era is to be found out."""

    def __init__(self, wish: EraWish = "newest", *, known: Era | None = None, most: int = 0) -> None:
        super().__init__(now=0.0, broker=True)
        policy = Policy(first_delay_s=5.0, probe_s=10_000.0, max_instances=most)
        self.spec = pool_spec(KEY, policy, era=wish)
        effects = [
            *self.feed(SetPools([self.spec])),
            *self.feed(ev.KnowledgeChanged((ev.PoolKnowledge(KEY, None, (), known),))),
        ]
        self.both_eras = [each.both_eras for each in self.told(effects)]
        self.spawns = of_kind(self.feed(DiscoverCatalog(KEY)), Spawn)

    def told(self, effects: list[Any]) -> list[PoolChanged]:
        return of_kind(effects, PoolChanged)

    def tick(self, now: float) -> list[Any]:
        self.now = now
        effects = self.core.tick(now)
        self.core.check()
        return effects

    def greeted(self, number: int, era: Era, **fields: Any) -> list[Any]:
        catalog = Catalog(KEY, [], "", RawJson(b'{"name":"x"}'), EMPTY_OBJECT, OLD, era=era, **fields)
        return self.feed(ev.InstanceGreeted(InstanceId(number), catalog))

    def ended(self, number: int) -> list[Any]:
        return self.exit(InstanceId(number), jitter=0.5)


@pytest.mark.parametrize(
    ("wish", "known", "first"),
    [
        ("auto", None, "handshake"),
        ("auto", "stateless", "stateless"),
        ("auto", "handshake", "handshake"),
        ("newest", None, "stateless"),
        ("stateless", "handshake", "stateless"),
        ("handshake", "stateless", "handshake"),
    ],
)
def test_configuration_and_knowledge_decide_which_greeting_comes_first(
    wish: EraWish, known: Era | None, first: Era
) -> None:
    assert [each.era for each in EraRig(wish, known=known).spawns] == [first]


@behaviour("eras:asked-once")
@pytest.mark.parametrize("known", ["handshake", "stateless"])
def test_no_process_is_started_to_find_out_again_which_one_era_a_server_speaks(known: Era) -> None:
    rig = EraRig("newest", known=known)
    assert not rig.spawns
    assert rig.both_eras == [None, True], "the broker is told that the launch's other pools do for all"
    assert EraRig("newest").spawns
    assert EraRig("newest").both_eras == [None, False]


@behaviour("eras:asked-once")
def test_an_era_that_holds_no_longer_is_found_out_anew() -> None:
    rig = EraRig("newest", known="handshake")
    [told] = rig.told(rig.feed(ev.KnowledgeChanged((ev.PoolKnowledge(KEY, None, (), None),))))
    assert told.both_eras is False
    assert [each.era for each in rig.feed(DiscoverCatalog(KEY)) if isinstance(each, Spawn)] == ["stateless"]


@pytest.mark.parametrize(("most", "configured", "both"), [(1, 0, True), (1, 3, False), (0, 0, False)])
def test_a_program_of_which_few_may_run_beside_each_other_has_no_process_for_another_era(
    most: int, configured: int, both: bool
) -> None:
    rig = EraRig("newest", most=configured)
    entry = WellKnownServer(title="s", mode="concurrent", why="", most=most, source="")
    told = rig.told(rig.feed(ev.KnowledgeChanged((ev.PoolKnowledge(KEY, entry, ()),))))
    assert [each.both_eras for each in told] == ([True] if both else [])


@behaviour("eras:found-out")
def test_an_end_of_the_first_question_is_no_failure_and_the_next_start_comes_at_once() -> None:
    rig = EraRig()
    rig.feed(ev.InstanceSpawned(InstanceId(1), 100))
    effects = rig.ended(1)
    assert [(each.instance, each.era) for each in effects if isinstance(each, Spawn)] == [(2, "handshake")]
    [pool] = rig.core.pool_reports()
    assert (pool.restarts, pool.last_error) == (0, "")
    assert [each.level for each in effects if isinstance(each, WriteLogLine)] == ["info"]
    rig.feed(ev.InstanceSpawned(InstanceId(2), 101))
    effects = rig.greeted(2, "handshake")
    [seen] = [each for each in effects if isinstance(each, RecordEra)]
    assert (seen.era, seen.why) == ("handshake", "ended when it was asked server/discover")


def test_a_server_that_ends_of_the_second_question_too_has_failed() -> None:
    rig = EraRig()
    rig.feed(ev.InstanceSpawned(InstanceId(1), 100))
    effects = rig.ended(1)
    for number in range(2, 2 + len(VERSIONS)):  # each one is offered another version
        rig.feed(ev.InstanceSpawned(InstanceId(number), 100))
        effects = rig.ended(number)
    assert not [each for each in effects if isinstance(each, Spawn)], "there is a pause now"
    assert "before it had greeted" in rig.core.pool_reports()[0].last_error


def test_an_end_after_an_answer_is_a_failure_once_each_version_was_offered() -> None:
    rig = EraRig()
    for number in range(1, 1 + len(VERSIONS)):
        assert not rig.core.pool_reports()[0].last_error
        rig.feed(ev.InstanceSpawned(InstanceId(number), 100))
        rig.feed(ev.EraRefused(InstanceId(number), "stateless", "refused server/discover: no (-1)"))
        rig.ended(number)
    assert "before it had greeted" in rig.core.pool_reports()[0].last_error


@behaviour("eras:found-out")
def test_a_silent_server_is_waited_for_a_while_and_then_greeted_otherwise_once() -> None:
    rig = EraRig()
    rig.feed(ev.InstanceSpawned(ME, 100))
    assert GreetInOtherEra(ME) not in rig.tick(SILENCE_S - 1)
    assert GreetInOtherEra(ME) in rig.tick(SILENCE_S + 1)
    assert GreetInOtherEra(ME) not in rig.tick(3 * SILENCE_S)
    [seen] = [each for each in rig.greeted(1, "handshake") if isinstance(each, RecordEra)]
    assert "did not answer" in seen.why


def test_a_server_that_is_slow_with_its_lists_is_not_taken_for_a_silent_one() -> None:
    def slow(request: Json) -> Json | None:
        capable: Json = {"resultType": "complete", "supportedVersions": [NEW], "capabilities": {"tools": {}}}
        return {"result": capable} if request["method"] == "server/discover" else None

    talk = Dialogue("stateless", slow)
    assert talk.heard == ["server/discover", "tools/list"]
    assert talk.detection.greet_in_other_era() == b""
    assert isinstance(talk.detection.adapter, StatelessAdapter)


def test_a_refusal_of_initialize_after_a_late_discover_says_nothing_about_the_era() -> None:
    rig = EraRig()
    rig.feed(ev.InstanceSpawned(ME, 100))
    rig.tick(SILENCE_S + 1)
    rig.feed(ev.EraRefused(ME, "handshake", "refused initialize: no (-32022)"))
    [seen] = [each for each in rig.greeted(1, "stateless") if isinstance(each, RecordEra)]
    assert (seen.era, seen.why) == ("stateless", "")


def test_a_process_that_we_end_before_it_has_answered_says_nothing_about_its_server() -> None:
    rig = EraRig()
    rig.feed(ev.InstanceSpawned(ME, 100))
    rig.feed(Operate(1, KEY, "stop"))
    rig.ended(1)
    effects = rig.feed(Operate(2, KEY, "start"))
    assert [each.era for each in effects if isinstance(each, Spawn)] == ["stateless"]


@pytest.mark.parametrize("wish", ["auto", "handshake", "stateless"])
def test_only_a_server_greeted_with_the_newest_era_first_gets_a_second_greeting(wish: EraWish) -> None:
    rig = EraRig(wish)
    rig.feed(ev.InstanceSpawned(ME, 100))
    assert GreetInOtherEra(ME) not in rig.tick(SILENCE_S + 1)


def test_the_era_that_was_found_out_is_shown_and_said_with_the_catalog() -> None:
    rig = EraRig("auto")
    rig.feed(ev.InstanceSpawned(ME, 100))
    rig.feed(ev.EraRefused(ME, "handshake", "refused initialize: no (-32022)"))
    effects = rig.greeted(1, "stateless")
    [seen] = [each for each in effects if isinstance(each, RecordEra)]
    assert (seen.era, seen.why) == ("stateless", "refused initialize: no (-32022)")
    assert [each.era for each in effects if isinstance(each, Catalog)] == ["stateless"]
    assert [each.era for each in rig.core.pool_reports()[0].instances] == ["stateless"]


# --- a catalog that is not current any more --------------------------------------------------------------


@behaviour("eras:hints")
def test_lists_are_read_again_by_an_instance_that_runs_and_told_even_if_they_are_the_same() -> None:
    rig = EraRig("auto")
    rig.feed(ev.InstanceSpawned(ME, 100))
    rig.greeted(1, "stateless", ttl_ms=5)
    assert RereadLists(ME) not in rig.feed(DiscoverCatalog(KEY))
    assert RereadLists(ME) in rig.feed(DiscoverCatalog(KEY, again=True))
    assert RereadLists(ME) not in rig.feed(DiscoverCatalog(KEY, again=True)), "they are being read"
    same = Catalog(KEY, [], "", RawJson(b'{"name":"x"}'), EMPTY_OBJECT, OLD, era="stateless", ttl_ms=5)
    assert [each.ttl_ms for each in rig.feed(ev.CatalogRead(ME, same)) if isinstance(each, Catalog)] == [5]
    assert not [each for each in rig.feed(ev.CatalogRead(ME, same)) if isinstance(each, Catalog)]


def test_a_request_to_read_lists_again_starts_no_instance() -> None:
    rig = EraRig("auto")
    rig.feed(ev.InstanceSpawned(ME, 100))
    rig.greeted(1, "handshake")
    rig.core.pools[KEY].target = 0
    rig.ended(1)
    rig.tick(1.0)
    effects = rig.feed(DiscoverCatalog(KEY, again=True))
    assert not [each for each in effects if isinstance(each, (Spawn, RereadLists))]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_each_era_reads_its_lists_again_from_the_first_page(era: Era) -> None:
    adapter = make(era)
    first = json.loads(adapter.greeting_line())
    result: Json = {"protocolVersion": OLD, "supportedVersions": [NEW], "capabilities": {"tools": {}}}
    todo = adapter.feed([json.dumps({"jsonrpc": "2.0", "id": first["id"], "result": result}).encode()])[1]
    for hint in (7000, 3000):
        [asked] = [each for each in map(json.loads, todo) if each["method"] == "tools/list"]
        page: Json = {"resultType": "complete", "tools": [], "ttlMs": hint, "cacheScope": "public"}
        line = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": page}).encode()
        [event] = adapter.feed([line])[0]
        assert isinstance(event, (ev.InstanceGreeted, ev.CatalogRead))
        told = (event.catalog.ttl_ms, event.catalog.public, event.catalog.era)
        assert told == ((hint, True, era) if era == "stateless" else (-1, False, era))
        todo = adapter.relist_line().splitlines()
        assert adapter.relist_line() == b"", "they are being read"


# --- what is remembered ----------------------------------------------------------------------------------

DAY: Final = "2026-11-22T00:00:00.000Z"


def seen(era: Era, why: str = "refused", server: str = "x 1", at: str = DAY) -> EraVerdict:
    return EraVerdict(era, why, server, at)


@behaviour("eras:found-out")
@pytest.mark.parametrize(
    ("era", "now", "known"),
    [
        ("handshake", "2026-11-28T23:00:00.000Z", "handshake"),
        ("handshake", "2026-11-29T01:00:00.000Z", None),
        ("handshake", "2026-11-21T00:00:00.000Z", None),
        ("handshake", "yesterday", None),
        ("stateless", "2027-11-29T00:00:00.000Z", "stateless"),
    ],
)
def test_a_verdict_for_the_handshake_era_holds_for_a_week(era: Era, now: str, known: Era | None) -> None:
    assert era_of(with_observation(NOTHING_KNOWN, "s", seen(era)), "s", now) == known


@behaviour("eras:found-out")
def test_a_verdict_is_gone_with_the_version_that_it_was_about() -> None:
    known = with_observation(NOTHING_KNOWN, "s", seen("handshake"))
    assert with_observation(known, "s", seen("handshake", why="")) is known
    other = with_observation(known, "s", seen("handshake", why="", server="x 2"))
    assert era_of(other, "s", DAY) is None
    assert era_of(with_observation(other, "s", seen("stateless", server="x 2")), "s", DAY) == "stateless"


def test_a_server_that_answered_at_once_leaves_no_verdict() -> None:
    assert with_observation(NOTHING_KNOWN, "s", seen("handshake", why="")) is NOTHING_KNOWN


@behaviour("eras:found-out")
def test_verdicts_survive_on_disk_and_the_later_sighting_wins(tmp_path: Path) -> None:
    path = era_cache.eras_file(str(tmp_path / "state"))
    assert era_cache.load_eras(path) == (NOTHING_KNOWN, "")
    known = with_observation(NOTHING_KNOWN, "s", seen("handshake"))
    assert era_cache.save_eras(path, known) == (known, "")
    later = with_observation(NOTHING_KNOWN, "s", seen("stateless", at="2026-11-23T00:00:00.000Z"))
    assert era_cache.save_eras(path, later) == (later, "")
    assert era_cache.save_eras(path, known) == (later, "")
    assert Path(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [b"", b"{", b'{"version":2}', b"\xff", b"[" * 5000])
def test_a_broken_file_is_set_aside_and_said(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "eras.json"
    path.write_bytes(data)
    found, said = era_cache.load_eras(str(path))
    assert found is NOTHING_KNOWN
    assert "detected again" in said
    assert not path.exists()
    assert (tmp_path / "eras.json.aside-1").read_bytes() == data


def test_the_file_is_bounded() -> None:
    known: EraVerdicts = NOTHING_KNOWN
    for number in range(era_cache.MAX_SERVERS + 1):
        known = with_observation(known, f"s{number}", seen("handshake", at=f"{number:08}"))
    assert len(known.servers) == era_cache.MAX_SERVERS
    assert "s0" not in known.servers
