"""Acts of operators in the audit: one line for each, with who asked and what came of it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from msgspec import Struct

from carpool_broker.admin.methods import Act, ControlError, Methods
from carpool_broker.admin.operator_acts import MAX_TARGET_CHARS, MAX_TARGETS, MORE, OperatorActs
from carpool_broker.storage.audit_log import AuditLog
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from tests.behaviours import behaviour
from tests.kit.broker_rig import BrokerRig


class Params(Struct):
    names: list[str] = []
    changes: bool = True


class ActsRig:
    """One method that does what a test tells it, asked by a session of an operator."""

    def __init__(self, place: Path, *, on: bool = True) -> None:
        rig = BrokerRig()
        rig.read("a:1")
        rig.attach()
        (self.session,) = rig.core.sessions.values()
        self.session.principal = "ops"
        self.path = place / "log" / "audit.jsonl"
        self.log = AuditLog(str(self.path), run="r1", max_bytes=1 << 20, whereabouts=lambda _: "")
        self.log.set_enabled(on=on)
        self.does: Any = lambda: {"results": []}
        self.methods = Methods(OperatorActs(rig.core, self.log, lambda _: 1000).begin)
        self.methods.add(
            "carpool/do",
            Params,
            lambda _, params: self.does(),
            lambda params: Act("do", params.names, "s7") if params.changes else None,
        )

    async def ask(self, **params: Any) -> Any:
        raw = RawJson(json.dumps(params).encode()) if params else EMPTY_OBJECT
        return msgspec.json.decode(await self.methods.answer(self.session.id, "carpool/do", raw))

    def lines(self) -> list[dict[str, Any]]:
        self.log.flush()
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []


@behaviour("operate:audited")
async def test_an_act_is_a_line_with_the_operator_and_the_targets(tmp_path: Path) -> None:
    rig = ActsRig(tmp_path)
    await rig.ask(names=["git", "time"])
    (line,) = rig.lines()
    assert line.pop("at")
    assert line == {
        "act": "do", "targets": ["git", "time"], "for_session": "s7", "session": rig.session.id,
        "pid": rig.session.pid, "uid": 1000, "via": rig.session.carrier, "principal": "ops",
        "outcome": "done", "failed": [], "run": "r1",
    }  # fmt: skip


@behaviour("operate:audited")
@pytest.mark.parametrize(
    ("answer", "outcome", "failed"),
    [
        ({"results": [{"server": "a", "ok": True}, {"server": "b", "ok": False}]}, "partly", ["b"]),
        ({"results": [{"server": "b", "ok": False}]}, "refused", ["b"]),
        ({"results": []}, "done", []),
        ({"refused": "no"}, "refused", []),
        ({"ok": False, "problems": ["x"]}, "refused", []),
        ({"ok": True, "problems": []}, "done", []),
        ([], "done", []),
    ],
)
async def test_the_outcome_is_that_of_the_answer(
    tmp_path: Path, answer: Any, outcome: str, failed: list[str]
) -> None:
    rig = ActsRig(tmp_path)
    rig.does = lambda: answer
    assert await rig.ask() == answer
    (line,) = rig.lines()
    assert (line["outcome"], line["failed"]) == (outcome, failed)


@behaviour("operate:audited")
async def test_a_refused_act_has_the_code_of_its_error(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ControlError("supervisor_away", "It is away.")

    rig = ActsRig(tmp_path)
    rig.does = refuse
    with pytest.raises(ControlError):
        await rig.ask()
    assert [line["outcome"] for line in rig.lines()] == ["supervisor_away"]


async def two_tasks_without_an_end() -> None:
    """A handler like that of `carpool/operate`: the cancel of its nursery is raised as a group."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.start_soon(trio.sleep_forever)


@behaviour("operate:audited")
@pytest.mark.parametrize("handler", [trio.sleep_forever, two_tasks_without_an_end])
async def test_an_act_whose_operator_leaves_has_an_unknown_outcome(tmp_path: Path, handler: Any) -> None:
    rig = ActsRig(tmp_path)
    rig.does = handler
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.ask)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [line["outcome"] for line in rig.lines()] == ["unknown"]


@behaviour("operate:audited")
async def test_a_request_that_changes_nothing_and_an_audit_that_is_off_write_no_line(tmp_path: Path) -> None:
    rig = ActsRig(tmp_path)
    await rig.ask(changes=False)
    with pytest.raises(ControlError):
        await rig.ask(names=1)
    assert rig.lines() == []
    off = ActsRig(tmp_path / "off", on=False)
    await off.ask()
    assert off.lines() == []
    assert not off.path.exists()


@behaviour("operate:audited")
async def test_targets_are_bounded(tmp_path: Path) -> None:
    rig = ActsRig(tmp_path)
    await rig.ask(names=["x" * 10_000, *["y"] * 500])
    (line,) = rig.lines()
    assert line["targets"][0] == "x" * MAX_TARGET_CHARS + MORE
    assert (len(line["targets"]), line["targets"][-1]) == (MAX_TARGETS + 1, MORE)


@behaviour("operate:audited")
async def test_a_session_that_is_not_open_still_has_a_line(tmp_path: Path) -> None:
    rig = ActsRig(tmp_path)
    await rig.methods.answer(SessionId("s99"), "carpool/do", EMPTY_OBJECT)
    (line,) = rig.lines()
    assert (line["session"], line["pid"], line["principal"]) == ("s99", 0, "")
