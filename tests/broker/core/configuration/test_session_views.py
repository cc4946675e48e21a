"""The last failure of each server, which the broker keeps."""

import pytest

from carpool_broker.core.configuration.session_views import MAX_FAILURES, SessionViews
from carpool_broker.core.model.events import SourceId, SourceRead
from carpool_broker.core.model.scope import Scope
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.registry import Registry
from carpool_protocol.ids import PoolKey, ServerName, SessionId
from carpool_protocol.link.messages import PoolChanged, PoolState
from tests.behaviours import behaviour

ACME = ServerName("acme")
DAEMON = SourceId("daemon")


def views(*states: tuple[str, PoolState, str]) -> SessionViews:
    found = SessionViews(Registry(lambda _: None), lambda _: None)
    for key, state, reason in states:
        found.state_changed(PoolChanged(PoolKey(key), state, reason), 1.0)
    return found


@behaviour("doctor:faults")
@pytest.mark.parametrize("state", ["backing_off", "breaker_open", "given_up"])
def test_the_failure_of_a_server_is_kept_until_it_serves_again(state: PoolState) -> None:
    failed = ("acme:1", state, "it broke")
    assert views(failed).last_failures == {ACME: "it broke"}
    assert views(failed, ("acme:1", "cold", "")).last_failures == {ACME: "it broke"}
    assert views(failed, ("acme:2", "serving", "")).last_failures == {}


@behaviour("doctor:faults")
def test_a_server_that_an_operator_stopped_has_not_failed() -> None:
    assert views(("acme:1", "stopped", "an operator stopped it")).last_failures == {}


def test_only_so_many_failures_are_kept() -> None:
    found = views(*((f"s{number}:1", "given_up", "x") for number in range(MAX_FAILURES + 9)))
    assert len(found.last_failures) == MAX_FAILURES
    assert ServerName("s0") not in found.last_failures


def test_each_session_reads_only_the_sentence_on_its_own_configuration() -> None:
    found = views()
    sessions = [Session(SessionId(name), DAEMON, "", 1, "shim") for name in ("a", "b")]
    for session in sessions:
        session.note = f"note for {session.id}"
    found.sources.source_read(
        SourceRead(
            source=DAEMON,
            scope=Scope((), "__"),
            specs=(),
            misconfigured={},
            stop_first=frozenset(),
            max_processes=1,
            max_greeting=1,
        )
    )
    for session in sessions:
        found.session_opened(session)
    with found.sharing_findings():
        assert [found.instructions(each) for each in sessions] == ["note for a", "note for b"]
