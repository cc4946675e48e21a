"""The turns in which roots of agents are applied: what waits, whose turn is next, what holds until then."""

from typing import Any

from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import ApplyRoots
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.requests.roots import FIRST_ANSWERS, LATER_ANSWERS
from carpool_protocol.ids import AskId, SessionId
from carpool_protocol.link.messages import Call
from tests.behaviours import behaviour
from tests.broker.core.requests.test_roots import ME, MINE, OTHER, RootsRig, asked


def applied(effects: list[Any]) -> list[tuple[SessionId, str]]:
    return [(it.session, it.roots[0].uri) for it in effects if isinstance(it, ApplyRoots)]


def sessions_of(token: str, count: int) -> list[SessionId]:
    return [SessionId(f"{token}-{number}") for number in range(count)]


@behaviour("roots:turns")
def test_roots_that_change_often_are_applied_every_so_often_and_the_last_ones_always() -> None:
    rig = RootsRig()
    rig.come_with_roots(ME)
    assert applied(rig.change_roots("file:///a")) == [(ME, "file:///a")], "a rare change is applied at once"
    assert applied(rig.change_roots("file:///b") + rig.change_roots("file:///c")) == []
    assert applied(rig.wait(LATER_ANSWERS.of_one_s)) == [(ME, "file:///c")]
    assert rig.change_roots("file:///d") + rig.change_roots("file:///c") == []
    assert applied(rig.wait(10.0)) == [], "they are what they were"
    assert rig.core.next_deadline() is None
    assert applied(rig.change_roots("file:///e")) == [(ME, "file:///e")]


@behaviour("roots:turns")
def test_calls_go_to_the_pool_of_the_roots_before_while_changed_ones_wait() -> None:
    rig = RootsRig.with_lists()
    rig.change_roots("file:///b")
    rig.move(to="f:n", source=SourceId("next"))
    rig.serve("f:n", "read")
    assert rig.change_roots("file:///c") == []
    (call,) = rig.call("f__read")
    assert call.key == "f:n"
    assert applied(rig.wait(1.0)) == [(ME, "file:///c")]


@behaviour("roots:turns")
def test_a_token_whose_many_sessions_change_their_roots_all_the_time_holds_up_no_other_owner() -> None:
    rig = RootsRig()
    many = sessions_of("ann", 20)
    for session in many:
        rig.come_with_roots(session, "ann")
    rig.come_with_roots(OTHER, "bob")
    rig.come_with_roots(ME)
    seen = []
    for session in many:
        seen += applied(rig.change_roots("file:///b", session=session))
    assert seen == [(many[0], "file:///b")], "its others wait"
    assert applied(rig.change_roots("file:///b", session=OTHER)) == [(OTHER, "file:///b")]
    assert applied(rig.change_roots("file:///b")) == [(ME, "file:///b")]
    rig.change_roots("file:///c", session=many[0])
    seen = applied(rig.wait(LATER_ANSWERS.of_one_s * 19))
    assert seen == [(session, "file:///b") for session in many[1:]], "each has its turn"
    assert applied(rig.wait(LATER_ANSWERS.of_one_s)) == [(many[0], "file:///c")]


@behaviour("roots:turns")
def test_roots_of_many_owners_that_change_at_the_same_time_are_applied_a_few_at_a_time() -> None:
    rig = RootsRig()
    alone = sessions_of("alone", 20)
    for session in alone:
        rig.come_with_roots(session)
    seen = []
    for session in alone:
        seen += applied(rig.change_roots("file:///b", session=session))
    assert len(seen) == LATER_ANSWERS.of_all
    while len(seen) < len(alone):
        next_ones = applied(rig.wait(LATER_ANSWERS.of_all_s))
        assert len(next_ones) <= 1
        seen += next_ones
    assert seen == [(session, "file:///b") for session in alone]


@behaviour("roots:turns")
def test_first_roots_beyond_the_turns_of_a_token_wait_and_so_do_the_calls_that_need_them() -> None:
    rig = RootsRig()
    rig.serve("f:w", "read")
    rig.serve("t:1", "now")
    for session in sessions_of("ann", FIRST_ANSWERS.of_one):
        assert applied(rig.come_with_roots(session, "ann")) == [(session, f"file:///first-{session}")]
    late, later = SessionId("late"), SessionId("later")
    assert rig.come_with_roots(late, "ann") + rig.come_with_roots(later, "ann") == []
    assert applied(rig.come_with_roots(OTHER, "bob")) == [(OTHER, f"file:///first-{OTHER}")]
    assert rig.request("f__read", "1", later) == []
    ((_, ask, _),) = asked(rig.feed(ev.RootsListChanged(later)))
    assert rig.feed(ev.RootsAnswered(later, AskId(ask), None)) == [], "its last answer still counts"
    assert applied(rig.wait(FIRST_ANSWERS.of_one_s)) == [(late, f"file:///first-{late}")]
    assert applied(rig.wait(FIRST_ANSWERS.of_one_s)) == [(later, f"file:///first-{later}")]
    rig.configure(MINE, "f:m", "t:1")
    rig.feed(ev.SessionSourceChanged(later, MINE))
    assert [it.key for it in rig.serve("f:m", "read") if isinstance(it, Call)] == ["f:m"]


@behaviour("roots:turns")
def test_a_session_that_has_gone_leaves_its_turn_to_others() -> None:
    rig = RootsRig()
    for session in (ME, OTHER, SessionId("third")):
        rig.come_with_roots(session, "ann")
        rig.change_roots("file:///b", session=session)
    rig.feed(ev.SessionClosed(OTHER))
    assert applied(rig.wait(LATER_ANSWERS.of_one_s)) == [(SessionId("third"), "file:///b")]
    rig.feed(ev.SessionClosed(ME))
    rig.change_roots("file:///c", session=SessionId("third"))
    rig.feed(ev.SessionClosed(SessionId("third")))
    assert rig.wait(10.0) == []
    assert rig.core.next_deadline() is None


def test_first_roots_that_wait_count_also_for_an_agent_that_sends_nothing_more() -> None:
    rig = RootsRig()
    rig.serve("f:w", "read")
    rig.serve("t:1", "now")
    for session in sessions_of("ann", FIRST_ANSWERS.of_one):
        rig.come_with_roots(session, "ann")
    late = SessionId("late")
    rig.come_with_roots(late, "ann")
    assert rig.request("f__read", "1", late) == []
    assert [it for it in rig.feed(ev.InputEnded(late)) if isinstance(it, Call)] == []
    assert applied(rig.wait(FIRST_ANSWERS.of_one_s)) == [(late, f"file:///first-{late}")]
