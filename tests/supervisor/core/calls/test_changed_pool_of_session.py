"""A session that moves to another pool, for instance by new roots: its lease ends, and it is told."""

import pytest

from carpool_protocol.ids import PoolKey, SessionId
from carpool_protocol.link.messages import SessionPoolChanged
from carpool_supervisor.core.model.lifecycle import InstanceState
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import WEB, PoolsRig, spec

OTHER = PoolKey("web:other-roots")


def rig() -> PoolsRig:
    """Two pools of one server; agents `a` and `b` have an instance each of the first."""
    return PoolsRig(spec(sharing="session"), spec(OTHER, sharing="session"))


def rekey(rig: PoolsRig, session: str) -> None:
    rig.feed(SessionPoolChanged(SessionId(session), WEB, OTHER))


@behaviour("roots:changes-rekey")
def test_the_lease_ends_and_the_next_call_is_told_once_at_the_new_pool() -> None:
    two = rig()
    first, others = two.served(1, "a"), two.served(2, "b")
    rekey(two, "a")
    assert two.closing == [first]
    two.call(3, "a", OTHER)
    assert (two.fault(3), two.failed[3].delivered) == ("state_lost", "no")
    assert "roots, the workspace or the configuration" in two.failed[3].text
    assert two.served(4, "a", OTHER) not in (first, others)
    assert two.served(5, "b") == others, "another's lease is its own"


def test_open_calls_on_the_old_instance_are_still_answered() -> None:
    two = rig()
    two.served(1, "a")
    two.call(2, "a")
    rekey(two, "a")
    assert two.core.instances.by_id[two.on(2)].state is InstanceState.DRAINING
    two.answer(2)
    assert 2 in two.answered
    assert two.closing == [two.on(2)]


def test_a_session_without_a_lease_loses_nothing() -> None:
    two = rig()
    rekey(two, "a")
    assert two.served(1, "a", OTHER)
    assert two.failed == {}


@pytest.mark.parametrize("new", [PoolKey("web:unknown"), WEB])
def test_an_unknown_pool_takes_no_lease(new: PoolKey) -> None:
    two = rig()
    first = two.served(1, "a")
    two.feed(SessionPoolChanged(SessionId("a"), PoolKey("web:never"), new))
    assert two.served(2, "a") == first


@behaviour("switch:session")
def test_a_session_that_no_pool_serves_any_more_returns_its_lease_and_hears_of_it_when_it_is_back() -> None:
    two = rig()
    first, others = two.served(1, "a"), two.served(2, "b")
    two.feed(SessionPoolChanged(SessionId("a"), WEB, PoolKey("")))
    assert two.closing == [first]
    assert two.served(3, "b") == others, "another's lease is its own"
    two.call(4, "a")
    assert (two.fault(4), two.failed[4].delivered) == ("state_lost", "no")
    assert two.served(5, "a") not in (first, others)
