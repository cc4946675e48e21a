"""The waiting output of a multiplexed connection, by stream."""

from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_broker.transport.stream_output import REPORT_BYTES, StreamOutput
from carpool_protocol.ids import SessionId
from tests.behaviours import behaviour

ONE, TWO = SessionId("s1"), SessionId("s2")


class OutputRig:
    """Output that is written whole and taken in order."""

    def __init__(self) -> None:
        self.reports: list[tuple[SessionId, int]] = []
        self.output = StreamOutput(lambda session, unread_bytes: self.reports.append((session, unread_bytes)))
        self.written = self.taken = 0

    def write(self, session: SessionId, size_bytes: int) -> list[tuple[SessionId, int]]:
        self.written += size_bytes
        self.output.line_written(session, size_bytes, self.written)
        return self.done()

    def take(self, size_bytes: int) -> list[tuple[SessionId, int]]:
        self.taken = min(self.taken + size_bytes, self.written)
        self.output.output_taken(self.taken)
        return self.done()

    def done(self) -> list[tuple[SessionId, int]]:
        self.output.check()
        reports, self.reports = self.reports, []
        return reports


@behaviour("streams:large-output")
def test_what_waits_for_a_stream_is_reported_in_steps_and_whenever_some_is_taken() -> None:
    rig = OutputRig()
    assert rig.write(ONE, 1) == [(ONE, 1)]
    assert rig.write(ONE, REPORT_BYTES - 1) == []
    assert rig.write(ONE, 1) == [(ONE, REPORT_BYTES + 1)]
    assert rig.write(TWO, 5) == [(TWO, 5)]
    assert rig.take(REPORT_BYTES - 1) == [(ONE, REPORT_BYTES)], "not the whole second line"
    assert rig.take(1) == [(ONE, 1)]
    assert rig.take(1) == [(ONE, 0)]
    assert rig.take(5) == [(TWO, 0)]
    assert rig.write(ONE, 1) == [(ONE, 1)], "it begins anew"


def test_a_session_that_has_ended_is_not_reported() -> None:
    rig = OutputRig()
    rig.write(ONE, 10)
    rig.write(TWO, 10)
    rig.output.forget(ONE)
    rig.output.forget(SessionId("s3"))
    assert rig.take(20) == [(TWO, 0)]


def test_nothing_waits_at_a_closed_connection() -> None:
    rig = OutputRig()
    rig.write(ONE, 10)
    rig.write(TWO, 10)
    rig.output.forget(TWO)
    rig.output.connection_closed()
    assert rig.done() == [(ONE, 0)]
    rig.output.output_taken(20)
    assert rig.done() == []


def test_a_report_may_end_or_extend_the_output() -> None:
    reports: list[tuple[SessionId, int]] = []

    def report(session: SessionId, unread_bytes: int) -> None:
        reports.append((session, unread_bytes))
        if not unread_bytes and not ended:
            ended.append(TWO if session == ONE else ONE)
            output.forget(ended[0])
            output.line_written(session, 7, 27)

    ended: list[SessionId] = []
    output = StreamOutput(report)
    output.line_written(ONE, 10, 10)
    output.line_written(TWO, 10, 20)
    output.output_taken(20)
    output.check()
    (left,) = {ONE, TWO} - set(ended)
    assert reports[2:] == [(left, 0), (left, 7)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([ONE, TWO, None]), st.integers(1, 3 * REPORT_BYTES)), max_size=40))
def test_a_report_is_never_off_by_more_than_a_step(steps: list[tuple[SessionId | None, int]]) -> None:
    rig, known, lines = OutputRig(), {ONE: 0, TWO: 0}, list[tuple[int, SessionId, int]]()
    for session, size_bytes in steps:
        known.update(rig.take(size_bytes) if session is None else rig.write(session, size_bytes))
        if session is not None:
            lines.append((rig.written, session, size_bytes))
        for each, said in known.items():
            waiting = sum(size for end, of, size in lines if of == each and end > rig.taken)
            assert abs(said - waiting) < REPORT_BYTES
            assert bool(said) == bool(waiting)
