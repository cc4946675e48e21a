"""The list of open calls, and the cancel of one, as operators ask for them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from carpool_broker.admin.methods import ControlError, Methods
from carpool_broker.admin.open_calls import ENDED_MEANWHILE, RETURNING, OpenCallCommands
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.core.model.effects import Reply
from carpool_broker.core.model.events import CallCancelledByOperator
from carpool_broker.core.model.session import Session
from carpool_protocol.ids import CallId, InstanceId, RawJson, SessionId, call_name, call_of
from carpool_protocol.link.messages import (
    AnyMessage,
    Call,
    CallFailed,
    CallPlace,
    CallsLocated,
    EndCall,
    LocateCalls,
)
from tests.behaviours import behaviour
from tests.broker.recovery_rig import RESULT, RecoveryRig, called, recorded
from tests.kit.broker_rig import ONE, BrokerRig
from tests.kit.effects import of_kind

ME = SessionId("s9")


class OperatorRig(BrokerRig):
    """A broker with a serving pool, and a supervisor that says where calls are."""

    def __init__(self, *, linked: bool = True) -> None:
        super().__init__()
        self.places: list[CallPlace] = []
        self.confirms = True
        self.effects: list[Any] = []
        self.read("a:1")
        if linked:
            self.supervisor_comes()
            self.serve("a:1", "t")
        self.attach()
        self.greet()
        self.inquiries = SupervisorQueries(self._locate, lambda: {"sup1": 7} if linked else {})
        methods = Methods()
        OpenCallCommands(self.core, self.inquiries, lambda: self.now, self._apply).register(methods)
        self.methods = methods

    def _locate(self, message: AnyMessage) -> None:
        assert isinstance(message, LocateCalls)
        self.inquiries.answer_received("sup1", CallsLocated(message.token, self.places))

    def _apply(self, events: Sequence[CallCancelledByOperator]) -> None:
        for event in events:
            effects = self.feed(event)
            self.effects += effects
            for each in effects:
                if isinstance(each, EndCall):
                    self._end(each)

    def _end(self, message: EndCall) -> None:
        """The supervisor ends a call and says where it was, or dies."""
        if not self.confirms:
            self.inquiries.supervisor_lost("sup1")
        there = [place for place in self.places if place.call == message.call]
        self.inquiries.answer_received("sup1", CallsLocated(message.token, there))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        with trio.fail_after(5):
            body = await self.methods.answer(ME, method, RawJson(json.dumps(params).encode()))
        answer: dict[str, Any] = json.loads(bytes(body))
        return answer

    def sent(self) -> CallId:
        """One more call is sent to the supervisor."""
        number = str(10 + len(self.core.call_table.calls))
        (call,) = [each for each in self.request("a__t", number) if isinstance(each, Call)]
        return call.call

    @property
    def session(self) -> Session:
        return self.core.sessions[ONE]


@behaviour("operate:calls")
async def test_each_open_call_is_listed_with_its_place_and_age() -> None:
    rig = OperatorRig()
    first = rig.sent()
    rig.now += 3.0
    second = rig.sent()
    third = rig.sent()
    rig.places = [
        CallPlace(first, "running", InstanceId(4), 77),
        CallPlace(second, "asking", InstanceId(4), 77),
        CallPlace(third, "waiting"),
    ]
    told = await rig.ask("carpool/calls")
    assert told["total"] == 3
    rows = told["calls"]
    assert [row["call"] for row in rows] == [call_name(first), call_name(second), call_name(third)]
    assert [(row["state"], row["waits_for"]) for row in rows] == [
        ("running", ""),
        ("asking", "its agent"),
        ("waiting", "an instance"),
    ]
    assert (rows[0]["age_s"], rows[0]["instance"], rows[0]["pid"], rows[0]["session"]) == (3.0, 4, 77, ONE)
    assert rows[2]["instance"] is None
    only = await rig.ask("carpool/calls", state="asking")
    assert [row["call"] for row in only["calls"]] == [call_name(second)]
    assert (await rig.ask("carpool/calls", server="b"))["total"] == 0
    assert (await rig.ask("carpool/calls", session="s7"))["total"] == 0
    few = await rig.ask("carpool/calls", limit=1)
    assert (len(few["calls"]), few["total"]) == (1, 3)


@behaviour("cluster:calls")
async def test_an_open_call_at_another_node_names_the_node() -> None:
    rig = OperatorRig()
    here, there = rig.sent(), rig.sent()
    rig.places = [
        CallPlace(here, "running", InstanceId(4), 77),
        CallPlace(there, "running", InstanceId(5), 0, "alpha"),
    ]
    rows = (await rig.ask("carpool/calls"))["calls"]
    assert [(row["node"], row["instance"], row["pid"]) for row in rows] == [("", 4, 77), ("alpha", 5, None)]


@behaviour("operate:calls")
async def test_a_call_that_the_broker_still_has_says_what_it_waits_for() -> None:
    rig = OperatorRig(linked=False)
    rig.request("a__t", "1")
    (row,) = (await rig.ask("carpool/calls"))["calls"]
    assert (row["state"], row["waits_for"], row["tool"]) == ("waiting", "the list of its server", "a__t")


@behaviour("operate:cancel")
async def test_the_supervisor_ends_a_call_that_was_sent_and_its_agent_is_told() -> None:
    rig = OperatorRig()
    call = rig.sent()
    rig.places = [CallPlace(call, "running", InstanceId(4), 77)]
    told = await rig.ask("carpool/cancel", call=call_name(call))
    assert told == {"call": call_name(call), "server": "a", "tool": "t", "delivered": "maybe"}
    assert [each.call for each in rig.effects if isinstance(each, EndCall)] == [call]
    (reply,) = [
        each
        for each in rig.feed(CallFailed(call, "operator_cancelled", "maybe", ""))
        if isinstance(each, Reply)
    ]
    assert reply.is_error or b'"operator_cancelled"' in bytes(reply.body)
    assert rig.core.call_table.calls == {}


@behaviour("operate:cancel")
async def test_a_call_that_waited_at_the_supervisor_was_not_delivered() -> None:
    rig = OperatorRig()
    call = rig.sent()
    rig.places = [CallPlace(call, "waiting")]
    assert (await rig.ask("carpool/cancel", call=call_name(call)))["delivered"] == "no"


@behaviour("operate:cancel")
async def test_a_call_that_has_just_ended_by_itself_is_not_said_to_be_cancelled() -> None:
    rig = OperatorRig()
    call = rig.sent()
    with pytest.raises(ControlError) as caught:
        await rig.ask("carpool/cancel", call=call_name(call))
    assert (caught.value.slug, caught.value.detail) == ("not_found", ENDED_MEANWHILE)


@behaviour("operate:cancel")
async def test_a_cancel_that_the_supervisor_does_not_confirm_is_not_said_to_be_done() -> None:
    rig = OperatorRig()
    call = rig.sent()
    rig.confirms = False
    with pytest.raises(ControlError) as caught:
        await rig.ask("carpool/cancel", call=call_name(call))
    assert caught.value.slug == "supervisor_away"


@behaviour("operate:cancel")
async def test_a_call_that_was_not_sent_ends_at_once_and_nothing_is_delivered() -> None:
    rig = OperatorRig(linked=False)
    rig.request("a__t", "1")
    (call,) = rig.core.call_table.calls
    told = await rig.ask("carpool/cancel", call=call_name(call))
    assert told["delivered"] == "no"
    assert b"operator_cancelled_unsent" in b"".join(
        bytes(each.body) for each in rig.effects if isinstance(each, Reply)
    )
    assert rig.core.call_table.calls == {}


@behaviour("operate:cancel")
async def test_a_call_of_an_earlier_broker_is_not_said_to_be_cancelled_before_its_record_is_there() -> None:
    """This broker does not know where it is, and can end it nowhere."""
    rig = RecoveryRig()
    rig.resume(called())
    (call,) = rig.core.call_table.calls
    methods = Methods()
    inquiries = SupervisorQueries(lambda _: None, dict)
    fed: list[Any] = []
    OpenCallCommands(
        rig.core, inquiries, lambda: rig.now, lambda events: fed.extend(map(rig.feed, events))
    ).register(methods)
    (row,) = json.loads(bytes(await methods.answer(ME, "carpool/calls", RawJson(b"{}"))))["calls"]
    assert (row["call"], row["waits_for"]) == (call_name(call), "the record of the supervisor")
    with pytest.raises(ControlError) as caught:
        await methods.answer(ME, "carpool/cancel", RawJson(json.dumps({"call": call_name(call)}).encode()))
    assert caught.value.detail == RETURNING
    assert rig.core.call_table.calls.keys() == {call}
    rig.link(recorded(7))
    (reply,) = of_kind(rig.answer(call_of(0, 7)), Reply)
    assert reply.body == RESULT


@behaviour("operate:cancel")
def test_a_cancel_that_meets_a_call_whose_record_is_not_there_yet_ends_nothing() -> None:
    rig = RecoveryRig()
    rig.resume(called())
    (call,) = rig.core.call_table.calls
    assert rig.feed(CallCancelledByOperator(call, 1)) == []
    rig.link(recorded(7))
    (reply,) = of_kind(rig.answer(call_of(0, 7)), Reply)
    assert reply.body == RESULT


@pytest.mark.parametrize("call", ["c99", "nonsense", ""])
async def test_a_call_that_is_not_open_is_refused(call: str) -> None:
    with pytest.raises(ControlError):
        await OperatorRig().ask("carpool/cancel", call=call)
