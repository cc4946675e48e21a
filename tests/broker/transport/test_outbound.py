"""What the core says to agents: each effect has one way, and what has none goes to the supervisor."""

import json
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects
from carpool_broker.core.model.effects import (
    NO_CALL,
    EndListen,
    Reply,
    ReplyRewritten,
    ReplyStateless,
    SendListChanged,
    SendTaskStatus,
)
from carpool_broker.transport.connections import NO_ASK
from carpool_broker.transport.outbound import AgentOutput
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, AskId, CallId, PoolKey, RawJson, SessionId
from carpool_protocol.wire.json_scan import MAX_PARTS
from tests.behaviours import behaviour
from tests.broker.core.registry.test_request_target import COLLIDING
from tests.broker.stateless_rig import ONE, StatelessRig


class Carriers:
    """What was written, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[SessionId, RawJson, bool]] = []
        self.lines: list[bytes] = []

    def write(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = NO_CALL,
        ask: AskId = NO_ASK,
        withdrawn: AskId = NO_ASK,
    ) -> None:
        assert line.endswith(b"\n")
        self.said.append((session, about, answers))
        self.lines.append(line)


def saying(core: BrokerCore, carriers: Carriers) -> AgentOutput:
    return AgentOutput(core, "1.0", carriers.write, lambda _: None)


def test_every_effect_for_agents_has_a_way_and_none_for_the_supervisor_has() -> None:
    ways = saying(StatelessRig().core, Carriers()).handlers
    to_supervisor = set(get_args(effects.LinkEffect))
    others = set(get_args(effects.AnyEffect)) - to_supervisor
    own = {
        effects.ApplyRoots,
        effects.ForgetSource,
        effects.SetSupervisorEpoch,
        effects.SetStatefulServers,
        effects.ForgetRecordedCall,
        effects.BeginHook,
        effects.EndHook,
        effects.WriteAudit,
        effects.ExportTrace,
        effects.SaveApprovals,
        effects.LogLine,
        effects.EndBroker,
        effects.SendTo,
    }
    assert others - ways.keys() == own, "the shell performs these itself"
    assert not to_supervisor & ways.keys()


def test_a_line_goes_with_the_request_that_it_belongs_to_and_the_last_one_answers_it() -> None:
    carriers = Carriers()
    ways = saying(StatelessRig().core, carriers).handlers
    todo: list[Any] = [
        SendListChanged(ONE, "tools"),
        SendListChanged(ONE, "tools", RawJson(b"7")),
        Reply(ONE, RawJson(b"8"), is_error=False, body=EMPTY_OBJECT),
        EndListen(ONE, RawJson(b"7")),
    ]
    for effect in todo:
        ways[type(effect)](effect)
    expected = [(ONE, ABSENT, False), (ONE, b"7", False), (ONE, b"8", True), (ONE, b"7", False)]
    assert carriers.said == [*expected, (ONE, b"7", True)]


# --- answers that would take too long to rewrite ---------------------------------------------------------

OF_B = PoolKey("k:b")
LINKS = b",".join([b'{"type":"resource_link","uri":"s://d"}'] * MAX_PARTS)
READS = b",".join([b'{"uri":"s://d"}'] * MAX_PARTS)
CONTENT = RawJson(b'{"content":[%b]}' % LINKS)
CONTENTS = RawJson(b'{"contents":[%b]}' % READS)
TOO_LONG: list[ReplyRewritten | ReplyStateless] = [
    ReplyRewritten(ONE, RawJson(b"1"), CONTENT, "tools/call", "2025-11-25", OF_B, CallId(7)),
    ReplyRewritten(ONE, RawJson(b"1"), CONTENT, "tools/call", "2024-11-05", PoolKey("k:x"), CallId(7)),
    ReplyRewritten(ONE, RawJson(b"1"), CONTENTS, "resources/read", "2025-11-25", OF_B, CallId(7)),
    ReplyRewritten(
        ONE, RawJson(b"1"), CONTENTS, "tools/call", "2025-11-25", PoolKey(""), as_tool="resources/read"
    ),
    ReplyStateless(ONE, RawJson(b"1"), False, CONTENT, "tools/call", key=OF_B, call=CallId(7)),
    ReplyStateless(ONE, RawJson(b"1"), False, CONTENTS, "resources/read", key=OF_B, call=CallId(7)),
    ReplyStateless(
        ONE, RawJson(b"1"), False, RawJson(b'{"result":%b}' % CONTENT), "tasks/get", key=OF_B, task="t"
    ),
]


def with_colliding_uris() -> BrokerCore:
    core = SimpleNamespace(is_behind=lambda _: False, sessions={ONE: None}, view_of=lambda _: COLLIDING)
    return cast("BrokerCore", core)


@behaviour("answers:bounded-rewrite")
@pytest.mark.parametrize("effect", TOO_LONG)
def test_an_answer_that_would_take_too_long_to_rewrite_is_an_error_that_says_so(
    effect: ReplyRewritten | ReplyStateless,
) -> None:
    carriers = Carriers()
    saying(with_colliding_uris(), carriers).handlers[type(effect)](effect)
    [line] = carriers.lines
    assert carriers.said == [(ONE, b"1", True)]
    answer = json.loads(line)
    if effect.method == "tools/call":
        assert answer["result"]["isError"] is True
        said, text = answer["result"]["_meta"]["carpool/error"], answer["result"]["content"][0]["text"]
    else:
        said, text = answer["error"]["data"], answer["error"]["message"]
    assert (said["code"], said["delivered"]) == ("answer_too_large", "maybe")
    assert f"{MAX_PARTS:,} parts" in text
    assert said["call"] == ("c7" if effect.call else "")


def test_a_status_that_would_take_too_long_to_rewrite_is_left_out() -> None:
    carriers = Carriers()
    ways = saying(with_colliding_uris(), carriers).handlers
    status = RawJson(b'{"status":"completed","result":%b}' % CONTENT)
    ways[SendTaskStatus](SendTaskStatus(ONE, "t", status, RawJson(b"5"), OF_B))
    assert carriers.lines == []
