"""How many similar names are searched for whom, and what an error says without them."""

from carpool_broker.core.limits.guess_budget import GUESSES_OF_ALL, GUESSES_OF_ONE, GuessBudget
from carpool_broker.core.model.agent_events import SourceId
from carpool_broker.core.model.session import Session
from carpool_protocol.ids import SessionId


def session(name: str, principal: str = "") -> Session:
    found = Session(SessionId(name), SourceId("d"), "agent", 1, "http")
    found.principal = principal
    return found


def test_one_principal_has_a_part_of_the_searches_of_a_second_with_all_its_sessions() -> None:
    budget = GuessBudget()
    taken = [budget.take(session(f"s{number}", "ann"), 5.1) for number in range(GUESSES_OF_ONE + 3)]
    assert taken == [True] * GUESSES_OF_ONE + [False] * 3
    assert budget.take(session("s1", "bob"), 5.9), "another principal has its own"
    assert budget.take(session("s1"), 5.9), "and so has a session without one"
    assert not budget.take(session("s2", "ann"), 5.9)
    assert budget.take(session("s2", "ann"), 6.0), "a second later there are others"


def test_all_together_have_a_bound_too() -> None:
    budget = GuessBudget()
    taken = [budget.take(session(f"s{number}"), 7.0) for number in range(GUESSES_OF_ALL + 2)]
    assert taken == [True] * GUESSES_OF_ALL + [False] * 2
    assert budget.take(session("s1"), 8.0)
