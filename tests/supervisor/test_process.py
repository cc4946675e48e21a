"""What a server asks and what it is told, through a whole supervisor and a real process."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from carpool_protocol.bootstrap import paths
from carpool_protocol.ids import ABSENT, CallId, PoolKey, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import (
    AnswerAsk,
    AskOpened,
    Call,
    CallAnswered,
    Policy,
    PoolSpec,
    SetPools,
    Survey,
    Surveyed,
)
from carpool_protocol.link.peer import BROKER, PeerDown, PeerRefused
from carpool_protocol.runtime.lifeline import Lifeline
from tests.behaviours import behaviour
from tests.kit.in_process_supervisor import FakeBrokerLink, supervised
from tests.kit.spawner_rig import server_argv

KEY = PoolKey("s:1")


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paths.RUNTIME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))


def call(number: int, tool: str, **arguments: Any) -> Call:
    params = RawJson(json.dumps({"arguments": arguments}).encode())
    return Call(
        CallId(number), KEY, SessionId("s1"), "tools/call", tool, params, ABSENT, wants_progress=False
    )


async def text_of(broker: FakeBrokerLink, number: int) -> Any:
    answered = await broker.heard(CallAnswered, lambda it: it.call == number)
    return json.loads(json.loads(answered.body)["content"][0]["text"])


@behaviour("asks:answered-back")
async def test_a_question_reaches_the_broker_and_its_answer_the_server(tmp_path: Path) -> None:
    argv = server_argv("asks_back")
    spec = PoolSpec(key=KEY, server=ServerName("s"), argv=argv, env={}, cwd="/", policy=Policy(), asking=True)
    async with supervised(tmp_path) as (_, broker):
        broker.say(SetPools([spec]), call(1, "ask", text="who"))
        asked = await broker.heard(AskOpened)
        assert (asked.call, asked.method) == (1, "sampling/createMessage")
        assert json.loads(asked.params)["messages"][0]["content"]["text"] == "who"
        broker.say(AnswerAsk(asked.ask, is_error=False, body=RawJson(b'{"model":"m"}')))
        assert await text_of(broker, 1) == {"result": {"model": "m"}}


@behaviour("asks:never-left-waiting")
async def test_a_server_that_was_told_of_no_agents_is_refused(tmp_path: Path) -> None:
    argv = server_argv("asks_back")
    spec = PoolSpec(key=KEY, server=ServerName("s"), argv=argv, env={}, cwd="/", policy=Policy())
    async with supervised(tmp_path) as (_, broker):
        broker.say(SetPools([spec]), call(1, "ask", text="who"))
        assert (await text_of(broker, 1))["error"]["code"] == -32601
        assert broker.those(AskOpened) == []


@behaviour("restart:one-half-newer")
@pytest.mark.parametrize("superseded", [True, False])
async def test_a_supervisor_ends_when_its_broker_comes_back_in_another_version(
    tmp_path: Path, superseded: bool
) -> None:
    """The launcher starts the new version then. A stranger of another version is ignored."""
    launcher, ours = socket.socketpair()
    with launcher:
        async with supervised(tmp_path) as (shell, _):
            lifeline = shell._lifeline = Lifeline(ours.detach())
            shell._deliver(BROKER, [PeerRefused("another version of the link", superseded)])
            assert shell._stop_wanted.is_set() is superseded
        lifeline.close()


@behaviour("status:asked-once")
async def test_no_survey_is_answered_for_a_broker_that_is_gone(tmp_path: Path) -> None:
    async with supervised(tmp_path) as (shell, broker):
        shell._deliver(BROKER, [Survey(1, []), Survey(2, []), PeerDown("it died")])
        broker.say(Survey(3, []))
        await broker.heard(Surveyed, lambda it: it.token == 3)
        assert [each.token for each in broker.those(Surveyed)] == [3]
