"""What the command line may ask of a broker about sharing modes: `carpool/why` and `carpool/testify`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from msgspec import structs

from carpool_broker.admin import status_query
from carpool_broker.admin.control import ControlMethods, OperatorEvent
from carpool_broker.admin.methods import ControlError
from carpool_broker.admin.status import StatusFacts, freshness_by_pool
from carpool_broker.admin.status_query import Process
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.config.configuration import DEFAULT_SOURCE
from carpool_broker.core.model.events import SessionClosed, SessionOpened
from carpool_broker.core.model.supervisors import ONLY
from carpool_broker.storage.approval_store import ApprovalStore
from carpool_broker.storage.audit_log import AuditLog
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link import messages
from carpool_protocol.link.messages import (
    AnyMessage,
    Catalog,
    DiscoverCatalog,
    ExplainSharing,
    Operate,
    OperationEnded,
    PoolChanged,
    PoolReport,
    PoolState,
    ResourceOffer,
    SetPools,
    SharingExplained,
    Survey,
    Surveyed,
    ToolOffer,
)
from tests.behaviours import behaviour
from tests.kit.broker_rig import broker_core
from tests.kit.synchronous_configuration import SynchronousConfiguration

ME = SessionId("s1")
ONE, TWO = SessionId("s2"), SessionId("s3")


class ControlRig:
    """A control with a supervisor that answers as it is told, and three servers of which one is disabled.

    `more`: servers beside them, `others`: what else the file says.
    """

    def __init__(
        self,
        place: Path,
        *,
        linked: bool = True,
        more: dict[str, Any] | None = None,
        audit: AuditLog | None = None,
        **others: Any,
    ) -> None:
        file = place / "carpool.json"
        servers = {"git": {"command": "git", "tags": ["code"]}, "time": {"command": "time"}}
        file.write_text(
            json.dumps(
                {
                    "mcpServers": {**servers, "old": {"command": "old", "disabled": True}, **(more or {})},
                    **others,
                }
            ),
            "utf-8",
        )
        configuration = SynchronousConfiguration(
            ConfigFile(str(file), asked_for=True), {"PATH": "/bin", "HOME": "/h"}
        )
        self.configuration = configuration
        core = broker_core(configuration.bounds())
        core.handle(configuration.resolve_source(DEFAULT_SOURCE), 1.0)
        self.core, self.linked = core, linked
        self.sent: list[AnyMessage] = []
        self.now = 2.0
        self.answer: Callable[[AnyMessage], None] = lambda message: None
        self.doors: list[int] = []
        self.hooks: list[dict[str, Any]] = []
        self.inquiries = SupervisorQueries(self.send, lambda: {"sup1": 20} if self.linked else {})
        self.control = ControlMethods(
            core,
            configuration,
            self.inquiries,
            Process(release="1", hooks=lambda: self.hooks, carriers=lambda: self.doors, audit=audit),
            reload=self.reload,
            follow=self.follow,
            approvals=ApprovalStore(""),
            story=lambda _subject, _kind: [],
            disconnect=lambda _session, _why: False,
            clock=lambda: self.now,
        )

    async def reload(self) -> list[str]:
        self.follow(self.configuration.read_again())
        return self.configuration.problem.splitlines()

    def follow(self, events: Sequence[OperatorEvent]) -> None:
        for event in events:
            self.core.handle(event, 2.0)

    def send(self, message: AnyMessage) -> None:
        self.sent.append(message)
        self.answer(message)

    def explain(self, message: AnyMessage) -> None:
        assert isinstance(message, ExplainSharing)
        lines = [f"{message.key} is shared."]
        self.inquiries.answer_received(
            "sup1", SharingExplained(message.token, lines, "serial", verified=False, source="evidence")
        )

    async def ask(self, method: str, asker: SessionId = ME, **params: Any) -> dict[str, Any]:
        with trio.fail_after(5):
            body = await self.control.answer(asker, method, RawJson(json.dumps(params).encode()))
        answer: dict[str, Any] = msgspec.json.decode(body)
        return answer

    async def refused(self, method: str, **params: Any) -> ControlError:
        with pytest.raises(ControlError) as caught:
            await self.ask(method, **params)
        return caught.value


@behaviour("modes:why")
async def test_why_gives_what_the_supervisor_says_of_each_pool(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    rig.answer = rig.explain
    said = await rig.ask("carpool/why", server="git")
    assert said["server"] == "git"
    (pool,) = said["pools"]
    (sent,) = rig.sent
    assert isinstance(sent, ExplainSharing)
    assert pool == {
        "key": sent.key,
        "mode": "serial",
        "verified": False,
        "source": "evidence",
        "lines": [f"{sent.key} is shared."],
    }


async def test_a_supervisor_that_goes_while_it_is_asked_ends_the_wait(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    rig.answer = lambda _: rig.inquiries.supervisor_lost("sup1")
    assert (await rig.refused("carpool/why", server="git")).slug == "supervisor_away"


async def test_an_agent_that_leaves_while_the_supervisor_is_asked_is_not_in_the_status(
    tmp_path: Path,
) -> None:
    rig = ControlRig(tmp_path)
    for session in (ONE, TWO):
        rig.core.handle(
            SessionOpened(session=session, source=DEFAULT_SOURCE, agent="", pid=1, carrier="shim"), 1.0
        )

    def answer(message: AnyMessage) -> None:
        rig.core.handle(SessionClosed(ONE), 2.0)
        rig.inquiries.supervisor_lost("sup1")

    rig.answer = answer
    assert [each["id"] for each in (await rig.ask("carpool/status"))["sessions"]] == [TWO]


async def test_the_supervisor_is_asked_for_the_door_the_hooks_that_run_and_the_shims(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    rig.core.handle(SessionOpened(session=ONE, source=DEFAULT_SOURCE, agent="", pid=33, carrier="shim"), 1.0)
    rig.doors, rig.hooks = [30], [{"pid": 40}, {"pid": 0}]
    rig.answer = lambda _: rig.inquiries.supervisor_lost("sup1")
    await rig.ask("carpool/status")
    (asked,) = rig.sent
    assert isinstance(asked, Survey)
    assert asked.pids[2:] == [30, 40, 33]


@pytest.mark.parametrize("method", ["carpool/why", "carpool/testify"])
async def test_an_unknown_or_disabled_server_is_refused_with_the_reason(tmp_path: Path, method: str) -> None:
    more = {"kind": "probe_agreed"} if method == "carpool/testify" else {}
    rig = ControlRig(tmp_path)
    unknown = await rig.refused(method, server="gti", **more)
    assert (unknown.slug, "did you mean 'git'?" in unknown.detail) == ("not_found", True)
    far = await rig.refused(method, server="zzz", **more)
    assert "git, old, time" in far.detail
    disabled = await rig.refused(method, server="old", **more)
    assert (disabled.slug, disabled.detail) == ("disabled", f"{tmp_path}/carpool.json says so.")
    assert rig.sent == []
    away = await ControlRig(tmp_path, linked=False).refused(method, server="git", **more)
    assert away.slug == "supervisor_away"


async def test_a_server_without_a_pool_names_the_values_it_lacks_and_where_to_set_them(
    tmp_path: Path,
) -> None:
    more = {"keyed": {"command": "x", "env": {"K": "${UKEY}"}}, "module": {"python": "no module"}}
    rig = ControlRig(tmp_path, more=more, workspaces={"shop": {"mcpServers": {"till": {"command": "till"}}}})
    for server, slug, words in (
        ("keyed", "unset", "env.K: the environment variable UKEY is not set; set it where the agent starts"),
        ("module", "misconfigured", "mcpServers.module.python"),
        ("till", "unavailable", "in which no agent is connected"),
    ):
        why = await rig.refused("carpool/why", server=server)
        assert (why.slug, why.server) == (slug, server)
        assert words in why.detail
        (done,) = (await rig.ask("carpool/operate", verb="start", servers=[server]))["results"]
        assert done == {"server": server, "ok": False, "text": f"{slug}: {why.detail}"}
    (off,) = (await rig.ask("carpool/operate", verb="start", servers=["old"]))["results"]
    assert off["text"].endswith("says so. `carpool enable old` enables it.")


async def test_start_of_all_names_servers_that_are_unset_or_misconfigured(
    tmp_path: Path,
) -> None:
    more = {"keyed": {"command": "x", "env": {"K": "${UKEY}"}}, "module": {"python": "no module"}}
    rig = ControlRig(tmp_path, more=more)

    def answer(message: AnyMessage) -> None:
        assert isinstance(message, messages.Operate)
        rig.inquiries.answer_received("sup1", messages.OperationEnded(message.token, ok=True, text="done"))

    rig.answer = answer
    started = (await rig.ask("carpool/operate", verb="start"))["results"]
    assert {each["server"]: each["ok"] for each in started} == {
        "git": True,
        "keyed": False,
        "module": False,
        "time": True,
    }
    (keyed,) = (each for each in started if each["server"] == "keyed")
    assert keyed["text"].startswith("unset: ")
    assert "env.K: the environment variable UKEY is not set" in keyed["text"]
    stopped = (await rig.ask("carpool/operate", verb="stop"))["results"]
    assert {each["server"]: each["ok"] for each in stopped} == {"git": True, "time": True}


async def test_a_verb_runs_on_all_pools_of_a_server_at_once_and_fails_if_one_does(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    (pool,) = [spec for spec in rig.core.sources.wanted_pools().pools if spec.server == "git"]
    both = SetPools([pool, structs.replace(pool, key=PoolKey("git:two"))])
    rig.core.sources.wanted_pools = lambda: both  # type: ignore[method-assign]

    def answer(_: AnyMessage) -> None:
        if len(rig.sent) == 2:  # neither pool waits for the answer of the other
            for each in rig.sent:
                assert isinstance(each, Operate)
                rig.inquiries.answer_received(
                    "sup1", OperationEnded(each.token, ok=each.key == pool.key, text=f"about {each.key}")
                )

    rig.answer = answer
    (row,) = (await rig.ask("carpool/operate", verb="stop", servers=["git"]))["results"]
    assert row == {"server": "git", "ok": False, "text": f"about {pool.key}; about git:two"}


async def test_a_verb_ends_for_all_servers_when_the_supervisor_dies_and_says_so(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)

    def die(_: AnyMessage) -> None:
        rig.linked = False
        rig.inquiries.supervisor_lost("sup1")

    rig.answer = die
    rows = (await rig.ask("carpool/operate", verb="stop"))["results"]
    assert [(row["server"], row["ok"]) for row in rows] == [("git", False), ("time", False)]
    texts = sorted(row["text"] for row in rows)
    assert "the supervisor died before it answered" in texts[0]
    assert "the supervisor that runs it is not connected" in texts[1]
    assert len(rig.sent) == 1, "nothing is asked of a supervisor that is gone"


async def test_an_operator_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    (row,) = (await rig.ask("carpool/operate", verb="start", servers=["git"], within_s=0))["results"]
    assert (row["ok"], row["text"]) == (False, "it has not started after 0 s; see `carpool status`")


@behaviour("modes:probe")
async def test_a_probe_result_is_sent_to_the_supervisor(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    said = await rig.ask("carpool/testify", server="git", kind="probe_diverged", detail="x" * 9000)
    assert said == {}
    (sent,) = rig.sent
    assert isinstance(sent, messages.ReportProbe)
    assert (sent.kind, sent.key.startswith("git")) == ("probe_diverged", True)
    assert len(sent.detail) <= 500
    assert (await rig.refused("carpool/testify", server="git", kind="hearsay")).slug == "bad_params"


@behaviour("operate:audited")
async def test_a_probe_result_is_an_act_in_the_audit_because_it_changes_how_a_server_is_shared(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log" / "audit.jsonl"
    audit = AuditLog(str(path), run="r1", max_bytes=1 << 20, whereabouts=lambda _: "")
    audit.set_enabled(on=True)
    rig = ControlRig(tmp_path, audit=audit)
    await rig.ask("carpool/testify", server="git", kind="probe_diverged")
    assert (await rig.refused("carpool/testify", server="x", kind="probe_agreed")).slug == "not_found"
    audit.flush()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(each["act"], each["targets"], each["outcome"]) for each in lines] == [
        ("probe", ["git"], "done"),
        ("probe", ["x"], "not_found"),
    ]


@behaviour("call:dry-run", "switch:live")
async def test_a_tool_of_a_disabled_server_is_refused_as_a_call_of_it(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    rig.core.handle(SessionOpened(session=ME, source=DEFAULT_SOURCE, agent="", pid=1, carrier="cli"), 1.0)
    refused = await rig.refused("carpool/tools", name="old__gone", offline=True)
    assert (refused.slug, refused.server) == ("disabled", "old")
    assert str(tmp_path) in refused.detail
    assert (await rig.refused("carpool/tools", name="odd__gone", offline=True)).slug == "unknown_tool"


async def test_tools_are_asked_for_once_a_supervisor_is_there_to_hear_it(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rig = ControlRig(tmp_path, linked=False)
    rig.core.handle(SessionOpened(session=ME, source=DEFAULT_SOURCE, agent="", pid=1, carrier="cli"), 1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.control.answer, ME, "carpool/tools", RawJson(b"{}"))
        await trio.sleep(1)
        assert rig.sent == []
        rig.linked = True
        rig.core.links.supervisor_ready(ONLY, 1000)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert [type(each) for each in rig.sent] == [DiscoverCatalog, DiscoverCatalog]


@behaviour("supervisors:several")
async def test_status_names_the_servers_of_a_supervisor_that_is_not_connected(tmp_path: Path) -> None:
    away = (await ControlRig(tmp_path, linked=False).ask("carpool/status"))["supervisors_away"]
    assert [(each["id"], {*each["servers"]} >= {"git", "time"}) for each in away] == [("sup1", True)]
    rig = ControlRig(tmp_path)
    assert (await rig.ask("carpool/status", within_s=0))["supervisors_away"] == []


@behaviour("supervisors:several")
@pytest.mark.parametrize(("linked", "state"), [(True, "cold"), (False, "away")])
async def test_a_session_is_told_that_the_supervisor_of_a_server_is_away(
    tmp_path: Path, state: str, *, linked: bool
) -> None:
    rig = ControlRig(tmp_path, linked=linked)
    rig.core.handle(SessionOpened(session=ME, source=DEFAULT_SOURCE, agent="", pid=1, carrier="client"), 1.0)
    said = {each["name"]: each["state"] for each in (await rig.ask("carpool/servers"))["servers"]}
    assert (said["git"], said["old"]) == (state, "disabled")


@behaviour("client:looks")
async def test_a_session_is_told_of_all_its_servers_and_why_one_cannot_be_used(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path)
    rig.core.handle(SessionOpened(session=ME, source=DEFAULT_SOURCE, agent="", pid=1, carrier="client"), 1.0)
    said = (await rig.ask("carpool/servers"))["servers"]
    assert [(each["name"], each["state"]) for each in said] == [
        ("git", "cold"),
        ("old", "disabled"),
        ("time", "cold"),
    ]
    assert str(tmp_path) in said[1]["why"]
    assert said[0] == {"name": "git", "state": "cold", "why": "", "tags": ["code"], "tools": []}


HALF_DEFINITION = b'{"name":"%b","description":"cut \\ud83d","_meta":{"carpool/tags":["own",1]}}'
"""Of a tool whose description was cut within an emoji."""


@behaviour("client:looks")
async def test_a_name_is_resolved_to_a_tool_to_candidates_or_to_the_reason_why_not(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rig = ControlRig(tmp_path)
    rig.core.handle(SessionOpened(session=ME, source=DEFAULT_SOURCE, agent="", pid=1, carrier="client"), 1.0)
    for spec in rig.core.sources.wanted_pools().pools:
        offers = [ToolOffer(name, RawJson(HALF_DEFINITION % name.encode())) for name in ("now", spec.server)]
        rig.core.handle(Catalog(spec.key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"), 1.0)
    (tool,) = (await rig.ask("carpool/tools", name="git__git"))["tools"]
    assert tool["tags"] == ["code", "own"]
    assert tool["description"] == "cut \ufffd"
    assert tool["definition"]["description"] == "cut \ufffd"
    found = await rig.ask("carpool/resolve", name="mcp:git.now")
    assert found == {"server": "git", "tool": "now", "name": "git__now"}
    found = await rig.ask("carpool/resolve", name="now")
    assert found == {"candidates": ["git__now", "time__now"], "ambiguous": True}
    found = await rig.ask("carpool/resolve", name="git__nov")
    assert (found["candidates"][0], found["ambiguous"]) == ("git__now", False)
    refused = await rig.refused("carpool/resolve", name="old__now")
    assert (refused.slug, refused.server) == ("disabled", "old")


@behaviour("http:health:frozen")
async def test_a_silent_supervisor_leaves_the_last_survey_and_the_time_limit_of_the_asker(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rig = ControlRig(tmp_path)
    key = next(spec.key for spec in rig.core.sources.wanted_pools().pools if spec.server == "git")
    report = PoolReport(
        key=key, server=ServerName("git"), state="serving", sharing="concurrent", waiting=0, restarts=2,
        last_error="", stderr_tail=[], instances=[],
    )  # fmt: skip

    def answer(message: AnyMessage) -> None:
        assert isinstance(message, Survey)
        rig.inquiries.answer_received("sup1", Surveyed(message.token, [report], []))

    rig.answer = answer
    before = await rig.ask("carpool/status", within_s=0.5)
    assert (before["reason"], before["silent"]) == ("ok", None)
    rig.answer = lambda _: None
    for times in (1, 2):
        began = trio.current_time()
        said = await rig.ask("carpool/status", within_s=0.5)
        assert trio.current_time() - began == pytest.approx(0.5), "virtual time"
        assert (said["healthy"], said["reason"]) == (False, "supervisor_silent")
        assert said["silent"] == {"process": "supervisor", "for_s": 0.5 * times}
        assert said["servers"] == before["servers"], "as it was last known"
    rig.answer = answer
    assert (await rig.ask("carpool/status"))["silent"] is None


@behaviour("status:asked-once")
async def test_a_hundred_who_read_the_status_at_once_share_two_surveys_and_two_pages(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ControlRig(tmp_path)
    made: list[StatusFacts] = []

    def page(facts: StatusFacts) -> dict[str, Any]:
        made.append(facts)
        return {"number": len(made)}

    monkeypatch.setattr(status_query, "status_page", page)
    told: list[int] = []

    async def ask() -> None:
        told.append((await rig.ask("carpool/status", within_s=1.0))["number"])

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
        for number in (1, 2):
            await trio.testing.wait_all_tasks_blocked()
            assert len(rig.sent) == number
            survey = rig.sent[-1]
            assert isinstance(survey, Survey)
            rig.inquiries.answer_received("sup1", Surveyed(survey.token, [], []))
    assert sorted(told) == [1] + [2] * 99
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask)
    assert len(made) == 3, "one page for all to whom the supervisor does not answer in time"


@behaviour("http:health:frozen")
async def test_a_supervisor_that_answers_others_meanwhile_is_busy_and_not_silent(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rig = ControlRig(tmp_path)

    said: list[dict[str, Any]] = []

    async def ask(within_s: float) -> None:
        said.append(await rig.ask("carpool/status", within_s=within_s))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, 0.5)
        await trio.sleep(0.3)
        (survey,) = rig.sent
        assert isinstance(survey, Survey)
        rig.inquiries.answer_received("sup1", Surveyed(survey.token, [], []))
    assert len(rig.sent) == 2, "the second asker's own survey is not answered in time"
    assert [(each["silent"], each["reason"]) for each in said] == [(None, "ok")] * 2


@behaviour("http:health:frozen")
async def test_an_answer_after_everybody_has_given_up_ends_the_silence(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rig = ControlRig(tmp_path)
    assert (await rig.ask("carpool/status", within_s=0.5))["reason"] == "supervisor_silent"
    (survey,) = rig.sent
    assert isinstance(survey, Survey)
    rig.inquiries.answer_received("sup1", Surveyed(survey.token, [], []))
    await trio.sleep(10)
    said = await rig.ask("carpool/status", within_s=0.5)
    assert said["silent"] == {"process": "supervisor", "for_s": 0.5}, "it is silent anew"


@behaviour("http:health:frozen")
async def test_a_supervisor_that_was_silent_from_the_first_survey_on_makes_no_server_cold(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    rig = ControlRig(tmp_path)
    key = next(spec.key for spec in rig.core.sources.wanted_pools().pools if spec.server == "git")
    rig.core.handle(PoolChanged(key, "serving", ""), 2.0)
    said = await rig.ask("carpool/status", within_s=0.5)
    assert (said["servers"]["git"]["state"], said["servers"]["time"]["state"]) == ("serving", "cold")


async def test_tools_that_the_configuration_keeps_back_are_not_counted(tmp_path: Path) -> None:
    rig = ControlRig(tmp_path, more={"few": {"command": "few", "tools": {"deny": ["rm*"]}}})
    key = next(spec.key for spec in rig.core.sources.wanted_pools().pools if spec.server == "few")
    offers = [ToolOffer(name, RawJson(b'{"name":"%b"}' % name.encode())) for name in ("ls", "rm", "rmdir")]
    rig.core.handle(Catalog(key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"), 2.0)
    assert freshness_by_pool(rig.core, lambda _: "")[key].tools == 1


@behaviour("status:operators", "looking:own-view")
@pytest.mark.parametrize("lacks", [{"roots": "agent"}, {"env": {"TOKEN": "${TOKEN}"}}])
async def test_an_operators_roots_and_variables_change_the_state_of_a_server_for_that_operator_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, lacks: dict[str, Any]
) -> None:
    rig = ControlRig(tmp_path, more={"mine": {"command": "mine", **lacks}})
    states: dict[str, PoolState] = {}

    def answer(message: AnyMessage) -> None:
        assert isinstance(message, Survey)
        pools = [
            PoolReport(
                key=spec.key, server=spec.server, state=states.get(spec.server, "cold"),
                sharing="concurrent", waiting=0, restarts=0, last_error="", stderr_tail=[], instances=[],
            )
            for spec in rig.core.sources.wanted_pools().pools
        ]  # fmt: skip
        rig.inquiries.answer_received("sup1", Surveyed(message.token, pools, []))

    async def mine(asker: SessionId = ONE) -> tuple[str, int]:
        said = (await rig.ask("carpool/status", asker, within_s=0.5))["servers"]
        assert said["git"]["state"] == "cold"
        return said["mine"]["state"], said["mine"]["tools"]

    def come(session: SessionId) -> None:
        attach = Attach(version=ATTACH_VERSION, carrier="cli", cwd=str(tmp_path))
        source, events = rig.configuration.session_opened(session, attach, {"TOKEN": "t"})
        rig.follow(events)
        came = SessionOpened(
            session=session, source=source, agent="", pid=1, carrier="cli", control=session == ME
        )
        rig.core.handle(came, 1.0)

    rig.answer = answer
    before = await mine()
    assert before == ("unset", 0), "as a session hears it that brings nothing"
    come(ME)
    (key,) = [spec.key for spec in rig.core.sources.wanted_pools().pools if spec.server == "mine"]
    offers = [ToolOffer("now", RawJson(b'{"name":"now"}'))]
    rig.core.handle(Catalog(key, offers, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25"), 2.0)
    assert await mine() == before
    assert await mine(ME) == ("cold", 0), "it could be started from there"
    rig.answer = lambda _: None
    assert await mine() == before, "also of a survey that is not of now"
    rig.answer = answer
    states["mine"] = "serving"
    assert await mine() == ("serving", 1), "it runs, whoever started it"
    states.clear()
    come(ONE)
    assert await mine() == ("cold", 1), "an agent has what it needs"


async def test_a_project_that_only_an_operator_is_in_is_on_the_page_with_its_servers(
    tmp_path: Path,
) -> None:
    project = tmp_path / "p"
    project.mkdir()
    (project / ".git").mkdir()
    (project / ".mcp.json").write_text('{"mcpServers": {"its": {"command": "its"}}}', "utf-8")
    rig = ControlRig(tmp_path, linked=False)
    attach = Attach(version=ATTACH_VERSION, carrier="cli", cwd=str(project))
    source, events = rig.configuration.session_opened(ME, attach, {})
    rig.follow(events)
    rig.core.handle(SessionOpened(session=ME, source=source, agent="", pid=1, carrier="cli"), 1.0)
    assert (await rig.ask("carpool/status"))["servers"]["its"]["state"] == "untrusted"


@behaviour("lists:in-slices")
@pytest.mark.parametrize("method", ["carpool/tools", "carpool/resources"])
async def test_others_are_served_while_a_long_list_is_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, method: str
) -> None:
    rig = ControlRig(tmp_path)
    rig.core.handle(SessionOpened(session=ME, source=DEFAULT_SOURCE, agent="", pid=1, carrier="client"), 1.0)
    for spec in rig.core.sources.wanted_pools().pools:
        tools = [ToolOffer(f"t{at}", RawJson(b"{}")) for at in range(500)]
        resources = [ResourceOffer(f"x://{spec.server}/{at}", RawJson(b"{}")) for at in range(500)]
        told = Catalog(spec.key, tools, "", EMPTY_OBJECT, EMPTY_OBJECT, "2025-11-25", [], resources)
        rig.core.handle(told, 1.0)
    while (due := rig.core.next_deadline()) is not None and len(rig.core.view_of(ME).tools) < 1000:
        rig.core.tick(due)
    turns, is_told = 0, False

    async def others() -> None:
        nonlocal turns
        while not is_told:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        said = await rig.ask(method)
        is_told = True
    assert len(said[method.removeprefix("carpool/")]) == 1000
    assert turns > 10
