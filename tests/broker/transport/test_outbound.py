"""What the core says to agents: each effect has one way, and what has none goes to the supervisor."""

from typing import Any, get_args

from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import effects
from carpool_broker.core.model.effects import NO_CALL, EndListen, Reply, SendListChanged
from carpool_broker.transport.connections import NO_ASK
from carpool_broker.transport.outbound import AgentOutput
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, AskId, CallId, RawJson, SessionId
from tests.broker.stateless_rig import ONE, StatelessRig


class Carriers:
    """What was written, in order."""

    def __init__(self) -> None:
        self.said: list[tuple[SessionId, RawJson, bool]] = []

    def write(
        self,
        session: SessionId,
        line: bytes,
        about: RawJson = ABSENT,
        *,
        answers: bool = False,
        call: CallId = NO_CALL,
        ask: AskId = NO_ASK,
    ) -> None:
        assert line.endswith(b"\n")
        self.said.append((session, about, answers))


def saying(core: BrokerCore, carriers: Carriers) -> AgentOutput:
    return AgentOutput(core, "1.0", carriers.write, lambda _: None)


def test_every_effect_for_agents_has_a_way_and_none_for_the_supervisor_has() -> None:
    ways = saying(StatelessRig().core, Carriers()).handlers
    to_supervisor = set(get_args(effects.LinkEffect))
    others = set(get_args(effects.AnyEffect)) - to_supervisor
    own = {
        effects.ApplyRoots,
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
