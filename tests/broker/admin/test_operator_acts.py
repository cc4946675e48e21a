"""Lines of acts in the audit: those on nodes, which the node's process reports."""

import json
from pathlib import Path

import pytest

from carpool_broker.admin.methods import ControlError, Methods
from carpool_broker.admin.operator_acts import OperatorActs
from carpool_broker.storage.audit_log import AuditLog
from carpool_protocol.ids import RawJson, SessionId
from tests.behaviours import behaviour
from tests.kit.broker_rig import broker_core

ME = SessionId("s1")


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def audit(tmp_path: Path) -> AuditLog:
    audit = AuditLog(str(tmp_path / "audit.jsonl"), run="r", max_bytes=1 << 20, whereabouts=lambda _: "")
    audit.set_enabled(on=True)
    return audit


def methods_with(audit: AuditLog | None) -> Methods:
    methods = Methods()
    OperatorActs(broker_core(), audit, lambda _: 1000).register(methods)
    return methods


@behaviour("cluster:acts")
async def test_a_drain_that_another_node_asked_for_names_it(audit: AuditLog) -> None:
    act = RawJson(b'{"act": "drain", "node": "alpha", "outcome": "refused", "by": "beta"}')
    await methods_with(audit).answer(ME, "carpool/node_act", act)
    audit.flush()
    [line] = lines_of(Path(audit.path))
    found = {key: line[key] for key in ("act", "targets", "via", "principal", "outcome", "uid")}
    assert found == {
        "act": "drain", "targets": ["alpha"], "via": "node", "principal": "beta", "outcome": "refused",
        "uid": None,
    }  # fmt: skip
    assert "times" not in line


@behaviour("cluster:acts")
async def test_drains_that_came_too_often_are_one_line_with_their_number(audit: AuditLog) -> None:
    act = RawJson(b'{"act": "drain", "node": "alpha", "outcome": "refused", "by": "beta", "times": 7}')
    await methods_with(audit).answer(ME, "carpool/node_act", act)
    audit.flush()
    [line] = lines_of(Path(audit.path))
    assert (line["outcome"], line["times"]) == ("refused", 7)


@behaviour("cluster:acts")
async def test_a_drain_by_a_command_names_its_process_and_the_user_at_the_socket(audit: AuditLog) -> None:
    act = RawJson(b'{"act": "leave", "node": "alpha", "outcome": "done", "pid": 41, "uid": 66}')
    await methods_with(audit).answer(ME, "carpool/node_act", act)
    audit.flush()
    [line] = lines_of(Path(audit.path))
    assert (line["act"], line["via"], line["pid"], line["uid"], line["principal"]) == (
        "leave",
        "cli",
        41,
        1000,
        "",
    )


async def test_an_act_without_an_audit_is_no_fault_and_an_unknown_one_is_refused() -> None:
    methods = methods_with(None)
    drained = RawJson(b'{"act": "drain", "node": "a", "outcome": "done"}')
    await methods.answer(ME, "carpool/node_act", drained)
    with pytest.raises(ControlError):
        await methods.answer(ME, "carpool/node_act", RawJson(drained.replace(b"drain", b"eat")))
