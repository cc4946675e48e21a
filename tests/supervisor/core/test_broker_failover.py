"""Who is there: what a supervisor that comes, or comes back, is told of sessions (rule 15)."""

from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.link.messages import Bereft, SessionNote, Sessions
from carpool_supervisor.core.model import events as ev
from tests.behaviours import behaviour
from tests.supervisor.core.calls.test_placement import House, spec


def there(*notes: SessionNote) -> Sessions:
    return Sessions(list(notes))


def note(session: str, *bereft: str) -> SessionNote:
    return SessionNote(SessionId(session), [ServerName(each) for each in bereft])


@behaviour("lease:supervisor-restart")
def test_who_had_state_with_an_earlier_supervisor_is_told_once_that_it_is_gone() -> None:
    house = House(spec(sharing="session"))
    house.do(there(note("a", "web"), note("b")))
    house.call(1, "a")
    assert (house.fault(1), house.failed[1].delivered) == ("state_lost", "no")
    assert "restarted" in house.failed[1].text
    house.served(2, "a")
    house.served(3, "b")
    assert list(house.failed) == [1]


@behaviour("lease:everything-died")
def test_a_session_that_comes_from_another_life_is_told_once_that_its_state_is_gone() -> None:
    house = House(spec(sharing="session"))
    house.do(Bereft(SessionId("a"), [ServerName("web"), ServerName("gone")]))
    house.call(1, "a")
    assert (house.fault(1), house.failed[1].delivered) == ("state_lost", "no")
    assert "started again" in house.failed[1].text
    house.served(2, "a")
    house.served(3, "b")
    assert list(house.failed) == [1]


def test_what_this_supervisor_has_leased_is_not_lost_whatever_a_carrier_remembers() -> None:
    house = House(spec(sharing="session"))
    first = house.served(1, "a")
    house.do(Bereft(SessionId("a"), [ServerName("web")]))
    assert house.served(2, "a") == first
    assert not house.failed


def test_what_was_lost_of_another_server_is_not_told_here() -> None:
    house = House(spec(sharing="session"))
    house.do(there(note("a", "edit")))
    house.served(1, "a")
    assert not house.failed


def test_sessions_that_left_while_the_link_was_down_leave_nothing_behind() -> None:
    house = House(spec(sharing="session"))
    house.do(there(note("a"), note("b")))
    house.served(1, "a")
    house.served(2, "b")
    house.do(ev.BrokerCame(same=True))
    house.do(there(note("b", "web")))
    assert house.core.leases.sessions() == {SessionId("b")}
    house.call(3, "b")
    assert house.fault(3) == "state_lost"
    house.served(4, "b")
    assert list(house.failed) == [3], "the mark that the cut link left is told once"
