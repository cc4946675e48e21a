"""Broker failover: the sessions that a new or reconnected supervisor learns of (rule 15)."""

from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.link.messages import OpenSessions, SessionNote, SessionStateLost
from carpool_supervisor.core.model import events as ev
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import PoolsRig, spec


def there(*notes: SessionNote) -> OpenSessions:
    return OpenSessions(list(notes))


def note(session: str, *bereft: str) -> SessionNote:
    return SessionNote(SessionId(session), [ServerName(each) for each in bereft])


@behaviour("lease:supervisor-restart")
def test_a_session_with_state_at_an_earlier_supervisor_is_told_once_that_it_is_lost() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.feed(there(note("a", "web"), note("b")))
    rig.call(1, "a")
    assert (rig.fault(1), rig.failed[1].delivered) == ("state_lost", "no")
    assert "restarted" in rig.failed[1].text
    rig.served(2, "a")
    rig.served(3, "b")
    assert list(rig.failed) == [1]


@behaviour("lease:everything-died")
def test_a_session_that_comes_from_another_life_is_told_once_that_its_state_is_gone() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.feed(SessionStateLost(SessionId("a"), [ServerName("web"), ServerName("gone")]))
    rig.call(1, "a")
    assert (rig.fault(1), rig.failed[1].delivered) == ("state_lost", "no")
    assert "restarted" in rig.failed[1].text
    rig.served(2, "a")
    rig.served(3, "b")
    assert list(rig.failed) == [1]


def test_a_lease_of_this_supervisor_is_not_lost_whatever_a_carrier_remembers() -> None:
    rig = PoolsRig(spec(sharing="session"))
    first = rig.served(1, "a")
    rig.feed(SessionStateLost(SessionId("a"), [ServerName("web")]))
    assert rig.served(2, "a") == first
    assert not rig.failed


def test_a_loss_at_another_server_is_not_told_here() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.feed(there(note("a", "edit")))
    rig.served(1, "a")
    assert not rig.failed


def test_sessions_that_left_while_the_link_was_down_leave_nothing_behind() -> None:
    rig = PoolsRig(spec(sharing="session"))
    rig.feed(there(note("a"), note("b")))
    rig.served(1, "a")
    rig.served(2, "b")
    rig.feed(ev.BrokerConnected(same=True))
    rig.feed(there(note("b", "web")))
    assert rig.core.leases.sessions() == {SessionId("b")}
    rig.call(3, "b")
    assert rig.fault(3) == "state_lost"
    rig.served(4, "b")
    assert list(rig.failed) == [3], "the mark that the cut link left is told once"
