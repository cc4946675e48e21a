"""Traced calls: which are sampled, which spans they have, and what no span says."""

from typing import Any

import pytest

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.effects import ExportTrace
from carpool_broker.core.model.traces import TracedSpan
from carpool_protocol.ids import ABSENT, CallId, InstanceId, RawJson, call_of
from carpool_protocol.link.messages import Call, CallAnswered, CallFailed, CallTimed
from tests.behaviours import behaviour
from tests.broker import recovery_rig
from tests.broker.core.test_broker import ONE, TwoServersRig

AGENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
BODY = RawJson(b'{"content":[]}')
FAILED = RawJson(b'{"content":[],"isError":true}')
SERVER_SPAN = "00000000000000aa"


class TracedRig(TwoServersRig):
    """Servers `a` and `b`, and this part of the calls is traced."""

    def __init__(self, sample: float = 1.0) -> None:
        self.exported: list[ExportTrace] = []
        self.sent: list[Call] = []
        super().__init__()
        self.feed(ev.LimitsRead(SessionBounds(), 10.0, traces=sample))
        self.ready()

    def observe(self, effects: list[Any], event: ev.AnyEvent | None) -> None:
        self.exported += [each for each in effects if isinstance(each, ExportTrace)]
        self.sent += [each for each in effects if isinstance(each, Call)]

    def ask(self, name: str = "a__x", trace: str = "", rest: bytes = b"{}") -> None:
        meta = RawJson(b'{"traceparent":"%b"}' % trace.encode()) if trace else ABSENT
        request = RawJson(b"%d" % (len(self.sent) + 1))
        self.feed(ev.CallRequested(ONE, request, name, RawJson(rest), meta, ABSENT, "tools/call", trace))

    def end(self, served_s: float, body: RawJson = BODY, *, is_error: bool = False) -> None:
        call = self.sent[-1].call
        self.feed(CallTimed(call, SERVER_SPAN, served_s, InstanceId(7)))
        self.feed(CallAnswered(call, is_error, body))

    def spans(self) -> list[TracedSpan]:
        (trace,) = self.exported
        return [*trace.spans]


@behaviour("traces:one")
def test_a_call_is_its_request_the_wait_and_the_part_of_its_server() -> None:
    rig = TracedRig()
    rig.ask()
    rig.now += 5
    rig.end(3.0)
    request, waiting, served = rig.spans()
    assert (request.name, request.kind, request.parent) == ("tools/call x", "server", "")
    assert (waiting.name, waiting.kind, waiting.parent) == ("waiting", "internal", request.span)
    assert (served.name, served.kind, served.parent) == ("tools/call x", "client", request.span)
    assert (request.start_ago_s, request.end_ago_s) == (5.0, 0.0)
    assert (waiting.start_ago_s, waiting.end_ago_s) == (5.0, 3.0)
    assert (served.start_ago_s, served.end_ago_s) == (3.0, 0.0)
    assert served.span == SERVER_SPAN
    assert served.attributes["carpool.instance"] == 7
    assert request.attributes == {
        "mcp.method.name": "tools/call",
        "gen_ai.tool.name": "x",
        "mcp.session.id": "s1",
        "carpool.call": "c1",
        "carpool.agent": "x",
        "carpool.door": "shim",
        "carpool.server": "a",
        "carpool.outcome": "ok",
    }
    assert len({each.span for each in rig.spans()}) == 3


@behaviour("traces:one")
def test_the_supervisor_gets_the_context_of_the_request() -> None:
    rig = TracedRig()
    rig.ask()
    rig.end(0.0)
    (sent,), (exported,) = rig.sent, rig.exported
    assert sent.traced
    assert sent.trace == f"00-{exported.trace}-{exported.spans[0].span}-01"


def test_an_agents_context_is_continued() -> None:
    rig = TracedRig(0.0)
    rig.ask(trace=AGENT)
    rig.end(0.0)
    (exported,) = rig.exported
    assert (exported.trace, exported.spans[0].parent) == (AGENT[3:35], AGENT[36:52])
    assert rig.sent[0].trace == f"00-{AGENT[3:35]}-{exported.spans[0].span}-01"


@behaviour("traces:sampling")
@pytest.mark.parametrize(("sample", "trace"), [(0.0, ""), (1.0, AGENT[:-2] + "00")])
def test_a_call_that_is_not_sampled_goes_as_it_came(sample: float, trace: str) -> None:
    rig = TracedRig(sample)
    rig.ask(trace=trace)
    rig.end(0.0)
    assert rig.exported == []
    assert (rig.sent[0].traced, rig.sent[0].trace) == (False, trace)


@behaviour("traces:sampling")
@pytest.mark.parametrize("sample", [0.0, 0.25, 1.0])
def test_the_sampling_keeps_its_part_of_the_trace_ids(sample: float) -> None:
    rig = TracedRig(sample)
    for _ in range(400):
        rig.ask()
        rig.end(0.0)
    ids = [each.trace for each in rig.exported]
    assert abs(len(ids) - 400 * sample) < 50
    assert all(int(trace[16:], 16) < sample * 2**64 for trace in ids)
    assert len(set(ids)) == len(ids)
    assert sum(each.traced for each in rig.sent) == len(ids)


@behaviour("traces:errors")
@pytest.mark.parametrize(
    ("body", "is_error", "error"), [(BODY, False, ""), (FAILED, False, "tool_error"), (FAILED, True, "error")]
)
def test_a_failure_of_the_server_is_one_of_the_request_and_of_its_part(
    body: RawJson, is_error: bool, error: str
) -> None:
    rig = TracedRig()
    rig.ask()
    rig.end(0.0, body, is_error=is_error)
    assert [each.error for each in rig.spans()] == [error, "", error]


@behaviour("traces:errors")
def test_a_call_that_no_server_had_has_waited_until_its_end() -> None:
    rig = TracedRig()
    rig.ask()
    rig.now += 2
    rig.feed(CallFailed(rig.sent[0].call, "waited_too_long", "no", ""))
    request, waiting = rig.spans()
    assert (request.error, waiting.start_ago_s, waiting.end_ago_s) == ("waited_too_long", 2.0, 0.0)


@behaviour("traces:errors")
def test_a_name_that_nobody_has_is_a_request_without_a_wait() -> None:
    rig = TracedRig()
    rig.ask("nope")
    (request,) = rig.spans()
    assert (request.name, request.error) == ("tools/call nope", "unknown_tool")


def test_a_cancelled_call_is_no_error() -> None:
    rig = TracedRig()
    rig.ask()
    rig.feed(ev.RequestCancelled(ONE, RawJson(b"1"), "why"))
    assert [each.error for each in rig.spans()] == ["", ""]
    assert rig.spans()[0].attributes["carpool.outcome"] == "cancelled"


@behaviour("traces:no-values")
def test_no_span_says_what_was_given_or_answered() -> None:
    rig = TracedRig()
    rig.ask(rest=b'{"arguments":{"password":"hunter2"}}')
    rig.end(0.0, RawJson(b'{"content":[{"type":"text","text":"hunter3"}]}'))
    assert "hunter" not in repr(rig.exported)


def test_a_call_of_an_earlier_broker_has_no_trace() -> None:
    rig = recovery_rig.RecoveryRig()
    rig.feed(ev.LimitsRead(SessionBounds(), 10.0, traces=1.0))
    rig.link(recovery_rig.recorded(1))
    rig.resume(recovery_rig.called())
    effects = rig.answer(call_of(0, 1))
    assert effects
    assert not [each for each in effects if isinstance(each, ExportTrace)]


def test_calls_that_are_open_while_traces_are_turned_on_or_off_have_none() -> None:
    rig = TracedRig()
    rig.ask()
    rig.feed(ev.LimitsRead(SessionBounds(), 10.0))
    rig.end(0.0)
    rig.ask()
    rig.feed(ev.LimitsRead(SessionBounds(), 10.0, traces=1.0))
    rig.end(0.0)
    assert rig.exported == []
    assert [each.traced for each in rig.sent] == [True, False]


def test_the_time_of_a_call_that_is_over_changes_nothing() -> None:
    rig = TracedRig()
    assert rig.feed(CallTimed(CallId(99), SERVER_SPAN, 1.0, InstanceId(1))) == []
