"""The end of a session, as operators ask for it."""

import json
from typing import Any

import pytest

from carpool_broker.admin.methods import ControlError, Methods
from carpool_broker.admin.session_commands import SessionCommands
from carpool_protocol.ids import RawJson, SessionId
from tests.kit.broker_rig import BrokerRig

ME = SessionId("s9")


async def disconnect(
    rig: BrokerRig, session: str, *, connected: bool = True
) -> tuple[dict[str, Any], list[str]]:
    told: list[str] = []

    def end(target: SessionId, why: str) -> bool:
        told.append(f"{target}: {why}")
        return connected

    methods = Methods()
    SessionCommands(rig.core, end).register(methods)
    body = await methods.answer(ME, "carpool/disconnect", RawJson(json.dumps({"session": session}).encode()))
    return json.loads(bytes(body)), told


def attached_rig() -> BrokerRig:
    rig = BrokerRig()
    rig.read("a:1")
    rig.attach()
    rig.greet()
    return rig


async def test_a_session_is_ended_with_the_reason_and_described() -> None:
    rig = attached_rig()
    (session,) = rig.core.sessions.values()
    answer, told = await disconnect(rig, session.id)
    assert answer["session"] == session.id
    assert answer["open_calls"] == 0
    assert told == [f"{session.id}: an operator has disconnected this session (`carpool disconnect`)"]


async def test_sessions_of_operators_and_unknown_ones_are_refused() -> None:
    rig = attached_rig()
    (session,) = rig.core.sessions.values()
    with pytest.raises(ControlError, match="carpool status"):
        await disconnect(rig, "s99")
    with pytest.raises(ControlError, match="carpool status"):
        await disconnect(rig, session.id, connected=False)
    session.control = True
    with pytest.raises(ControlError, match="carpool status"):
        await disconnect(rig, session.id)
