"""Knowledge about programs: from the list and the disk to the core, and from the core to the disk."""

import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace

from carpool_protocol.bootstrap import paths
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from carpool_protocol.link import messages
from carpool_protocol.link.messages import (
    ExplainSharing,
    NodeTarget,
    Policy,
    PoolSpec,
    SetPools,
    SharingExplained,
)
from carpool_supervisor.core.model import effects
from carpool_supervisor.core.model.events import PoolKnowledge
from carpool_supervisor.knowledge import knowledge, sharing_evidence
from carpool_supervisor.knowledge.knowledge import Knowledge
from carpool_supervisor.knowledge.sharing_evidence import (
    NO_EVIDENCE,
    EvidenceFile,
    evidence_of,
    load_evidence,
    save_evidence,
    with_evidence,
)
from tests.behaviours import behaviour
from tests.kit.in_process_supervisor import FakeBrokerLink, supervised
from tests.kit.waits import until

T1 = "2026-11-21T10:00:00.000Z"


def spec(key: str, *argv: str, server: str = "web", sharing: str = "auto", cwd: str = "/") -> PoolSpec:
    return PoolSpec(
        key=PoolKey(key),
        server=ServerName(server),
        argv=list(argv) or ["web-server"],
        env={},
        cwd=cwd,
        policy=Policy(sharing=sharing),  # type: ignore[arg-type]  # one of the four
    )


def kinds(known: PoolKnowledge) -> list[str]:
    return [each.kind for each in known.evidence]


@asynccontextmanager
async def serving(path: str) -> AsyncIterator[Knowledge]:
    one = Knowledge(path)
    await one.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run)
        yield one
        nursery.cancel_scope.cancel()


# --- by itself -------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> str:
    return sharing_evidence.verdicts_file(str(tmp_path / "state"))


@behaviour("modes:verdicts-kept")
async def test_an_observation_is_soon_on_disk_and_known_after_a_restart(path: str) -> None:
    web = spec("web:1")
    async with serving(path) as one:
        one.observe(web, "asks", "sampling/createMessage", [web])
        await until(lambda: kinds_on_disk(path) == ["asks"], "it is written")
    async with serving(path) as one:
        assert kinds(one.pool_knowledge(web)) == ["asks"]


def kinds_on_disk(path: str) -> list[str]:
    return [each.kind for each in evidence_of(load_evidence(path)[0], "web command:web-server")]


async def test_evidence_is_told_to_every_pool_of_the_same_program_and_to_no_other(path: str) -> None:
    one = Knowledge(path)
    pools = [
        spec("web:1", "web-server", "--port", "1"),
        spec("web:2", "web-server", "--port", "2"),
        spec("web:3", "other-server"),
        spec("web2:1", "web-server", server="web2"),
    ]
    told = one.observe(pools[0], "asked_ambiguously", "d", pools)
    assert [(each.key, kinds(each)) for each in told] == [
        ("web:1", ["asked_ambiguously"]),
        ("web:2", ["asked_ambiguously"]),
    ]
    assert kinds(one.pool_knowledge(pools[2])) == []


@behaviour("modes:evidence-of-its-own")
async def test_nothing_that_is_seen_in_one_project_is_told_to_the_same_words_in_another(path: str) -> None:
    one = Knowledge(path)
    pools = [spec(f"web:{project}", "python", "server.py", cwd=f"/{project}") for project in "ab"]
    told = one.observe(pools[0], "asked_ambiguously", "d", pools)
    assert [each.key for each in told] == ["web:a"]
    seen = effects.RecordEra(PoolKey("web:a"), "stateless", "refused initialize", RawJson(b"{}"))
    assert [each.key for each in one.observe_era(pools[0], seen, pools)] == ["web:a"]
    other = one.pool_knowledge(pools[1])
    assert (kinds(other), other.era) == ([], None)


async def test_the_list_is_known_without_a_file(path: str) -> None:
    one = Knowledge(path)
    entry = one.pool_knowledge(spec("b:1", "npx", "-y", "@playwright/mcp@latest", server="b")).entry
    assert entry is not None
    assert entry.mode == "session"


async def test_an_unusable_file_is_logged_once_and_work_continues(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    await trio.Path(path).parent.mkdir()
    await trio.Path(path).write_text("{")
    with caplog.at_level(logging.WARNING):
        async with serving(path) as one:
            assert kinds(one.pool_knowledge(spec("web:1"))) == []
    assert len(caplog.records) == 1
    assert "aside" in caplog.text


async def test_writes_come_one_at_a_time_and_the_last_holds_everything(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, writing, most = threading.Semaphore(0), [0], [0]

    def slow(where: str, what: EvidenceFile) -> tuple[EvidenceFile, str]:
        writing[0] += 1
        most[0] = max(most[0], writing[0])
        gate.acquire(timeout=10)
        writing[0] -= 1
        return save_evidence(where, what)

    monkeypatch.setattr(knowledge, "save_evidence", slow)
    web = spec("web:1")
    async with serving(path) as one:
        one.observe(web, "asks", "", [web])
        await until(lambda: writing[0], "the first write began")
        one.observe(web, "asked_ambiguously", "", [web])
        [told] = one.observe(web, "asks", "", [web])
        assert [(each.kind, each.times) for each in told.evidence] == [("asks", 2), ("asked_ambiguously", 1)]
        gate.release(2)
        await until(lambda: kinds_on_disk(path) == ["asks", "asked_ambiguously"], "all is written")
        assert most == [1]
        [told] = [one.pool_knowledge(web)]
        assert [each.times for each in told.evidence] == [2, 1], "what was read back takes nothing away"


async def test_unwritten_knowledge_is_written_at_the_end(path: str) -> None:
    one, web = Knowledge(path), spec("web:1")
    one.observe(web, "asks", "", [web])
    await one.flush()
    assert kinds_on_disk(path) == ["asks"]
    await trio.Path(path).unlink()
    await one.flush()
    assert not await trio.Path(path).exists(), "nothing new, nothing written"


async def test_the_end_does_not_wait_for_a_disk_that_hangs(
    path: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock
) -> None:
    gate = threading.Event()

    def hangs(_where: str, what: EvidenceFile) -> tuple[EvidenceFile, str]:
        gate.wait(10)
        return what, ""

    monkeypatch.setattr(knowledge, "save_evidence", hangs)
    one, web = Knowledge(path), spec("web:1")
    one.observe(web, "asks", "", [web])
    await one.flush()
    gate.set()


# --- in a supervisor -------------------------------------------------------------------------------------


async def explained(broker: FakeBrokerLink, key: str, token: int) -> SharingExplained:
    broker.say(ExplainSharing(token, PoolKey(key)))
    return await broker.heard(SharingExplained, lambda it: it.token == token)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.RUNTIME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))


@behaviour("modes:verdicts-kept")
async def test_evidence_from_disk_holds_from_the_first_placement_on(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    seen = with_evidence(
        NO_EVIDENCE, "web command:web-server", "asked_ambiguously", T1, "sampling/createMessage"
    )
    save_evidence(sharing_evidence.verdicts_file(state), seen)
    async with supervised(tmp_path) as (shell, broker):
        broker.say(SetPools([spec("web:1"), spec("web:2", sharing="concurrent"), spec("web:3", "other")]))
        why = await explained(broker, "web:1", 1)
        assert (why.mode, why.verified, why.source) == ("serial", True, "evidence")
        assert T1 in " ".join(why.lines)
        assert (await explained(broker, "web:2", 2)).source == "config"
        assert (await explained(broker, "web:3", 3)).mode == "concurrent"
        broker.say(SetPools([spec("web:3", "other")]))
        broker.say(SetPools([spec("web:3", "other"), spec("web:1")]))
        assert (await explained(broker, "web:1", 4)).mode == "serial", "a pool that came back is known again"
        assert shell.core.pools[PoolKey("web:1")].evidence


@behaviour("modes:why")
async def test_a_pool_that_is_not_there_is_explained_as_that(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (_, broker):
        why = await explained(broker, "gone:1", 1)
        assert "no pool" in why.lines[0]


async def test_a_probe_result_is_kept_and_holds_for_every_pool_of_the_program(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (_, broker):
        broker.say(SetPools([spec("web:1"), spec("web:2")]))
        broker.say(messages.ReportProbe(PoolKey("web:1"), "probe_diverged", "add, get: 2 sessions"))
        broker.say(messages.ReportProbe(PoolKey("web:1"), "asked_ambiguously", "not the broker's to say"))
        broker.say(messages.ReportProbe(PoolKey("gone:1"), "probe_diverged", "of nobody"))
        for number, key in enumerate(("web:1", "web:2")):
            why = await explained(broker, key, number)
            assert (why.mode, why.source) == ("session", "evidence")
    file = trio.Path(tmp_path, "state", "verdicts.json")
    [(identity, known)] = json.loads(await file.read_text())["servers"].items()
    assert identity == "web command:web-server"
    assert [each["kind"] for each in known["evidence"]] == ["probe_diverged"]


async def test_evidence_that_the_core_records_comes_back_to_it(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (shell, broker):
        broker.say(SetPools([spec("web:1"), spec("web:2")]))
        await explained(broker, "web:1", 1)
        shell._perform([effects.RecordEvidence(PoolKey("web:2"), "asked_ambiguously", "elicitation/create")])
        assert [pool.mode for pool in shell.core.pools.values()] == ["serial", "serial"]


@pytest.mark.parametrize("node", ["alpha", "*"])
async def test_a_server_of_another_node_is_explained_by_where_it_runs(tmp_path: Path, node: str) -> None:
    there = replace(spec("web:1", sharing="session"), target=NodeTarget(node, "www"))
    async with supervised(tmp_path) as (_, broker):
        broker.say(SetPools([there]))
        found = await explained(broker, "web:1", 1)
    text = "\n".join(found.lines)
    assert found.source == "node"
    assert ("node alpha" in text) == (node == "alpha")
    assert "`carpool why www` there" in text
    assert '"sharing"' not in text
    assert "config" not in text
