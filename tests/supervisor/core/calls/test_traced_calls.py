"""Traced calls at the supervisor: the context of their server, and the time that it had them."""

from typing import Any

import msgspec
from msgspec.structs import replace

from carpool_protocol.ids import CallId, PoolKey, RawJson, WireId
from carpool_protocol.link.messages import CallAnswered, CallTimed, Operate
from tests.behaviours import behaviour
from tests.kit.supervisor_rig import SupervisorRig, pool_spec, tool_call

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TracedPoolRig(SupervisorRig):
    """One server, which never asks, with an instance."""

    def __init__(self, *, greeted: bool = True) -> None:
        super().__init__(pool_spec(PoolKey("web:1")), broker=True)
        self.effects: list[Any] = []
        self.feed(Operate(1, PoolKey("web:1"), "start"))
        if greeted:
            self.greet(self.spawned[0])

    def observe(self, effects: list[Any]) -> None:
        if hasattr(self, "effects"):
            self.effects += effects

    def ask(self, number: int, *, traced: bool = True, meta: bytes = b"", timed: bool = False) -> None:
        call = tool_call(number, self.key)
        self.feed(replace(call, trace=CONTEXT, traced=traced, meta=RawJson(meta), timed=timed))

    def timed(self) -> list[CallTimed]:
        return [each for each in self.effects if isinstance(each, CallTimed)]


@behaviour("traces:one")
def test_the_server_of_a_traced_call_continues_its_trace_and_its_time_is_told_before_its_answer() -> None:
    rig = TracedPoolRig()
    rig.ask(1)
    context = msgspec.json.decode(rig.written[1].call.meta)["traceparent"]
    assert context[:36] == CONTEXT[:36]
    assert context[36:52] != CONTEXT[36:52]
    rig.now += 2.5
    rig.answer(1)
    (timed,) = rig.timed()
    assert (timed.call, timed.span, timed.served_s) == (CallId(1), context[36:52], 2.5)
    assert timed.instance == rig.written[1].instance
    kinds = [type(each) for each in rig.effects]
    assert kinds.index(CallTimed) < kinds.index(CallAnswered)


def test_the_agents_own_context_is_replaced_and_its_state_stays() -> None:
    rig = TracedPoolRig()
    rig.ask(1, meta=b'{"traceparent":"%b","tracestate":"a=b","x":1}' % CONTEXT.encode())
    meta = msgspec.json.decode(rig.written[1].call.meta)
    assert (meta["tracestate"], meta["x"]) == ("a=b", 1)
    assert meta["traceparent"] != CONTEXT


def test_a_call_that_is_not_traced_reaches_its_server_as_it_came() -> None:
    rig = TracedPoolRig()
    rig.ask(1, traced=False, meta=b'{"x":1}')
    assert rig.written[1].call.meta == b'{"x":1}'
    rig.answer(1)
    assert rig.timed() == []


def test_a_call_that_was_never_delivered_is_timed_again_where_it_runs() -> None:
    rig = TracedPoolRig()
    rig.ask(1)
    first = rig.written[1]
    rig.now += 1
    rig.exit(first.instance, (WireId(first.wire),))
    rig.wait(5.0)
    rig.greet(rig.spawned[0])
    rig.now += 2
    rig.answer(1)
    *_, last = rig.timed()
    assert last.instance == rig.written[1].instance != first.instance
    assert last.served_s == 2.0


@behaviour("web:waterfall")
def test_a_timed_call_reaches_its_server_as_it_came_and_its_times_are_told() -> None:
    rig = TracedPoolRig()
    rig.ask(1, traced=False, meta=b'{"x":1}', timed=True)
    assert rig.written[1].call.meta == b'{"x":1}'
    rig.now += 2.5
    rig.answer(1)
    (timed,) = rig.timed()
    assert (timed.call, timed.span, timed.served_s, timed.waited_s) == (CallId(1), "", 2.5, 0.0)


@behaviour("web:waterfall")
def test_a_timed_call_that_waits_for_an_instance_says_how_long() -> None:
    rig = TracedPoolRig(greeted=False)
    rig.ask(1, traced=False, timed=True)
    rig.now += 3
    rig.greet(rig.spawned[0])
    rig.now += 2
    rig.answer(1)
    (timed,) = rig.timed()
    assert (timed.waited_s, timed.served_s) == (3.0, 2.0)
