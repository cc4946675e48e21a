"""When changes of resources are told: at once, in slices, in turns, and the last of each always."""

from typing import Any

import pytest

from carpool_broker.core.limits.memory_budgets import UNREAD_STEP_BYTES
from carpool_broker.core.model import events as ev
from carpool_broker.core.model.effects import SendResourceUpdated
from carpool_broker.core.subscriptions import resource_updates
from carpool_broker.core.subscriptions.resource_updates import (
    KEPT_PARAMS_BYTES,
    LINE_UNITS,
    MAX_PARTS,
    SAVED_UNITS,
    SLICE_UNITS,
    TURN_UNITS,
    UNITS_S,
)
from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson, SessionId
from carpool_protocol.link.messages import ResourceChanged
from tests.behaviours import behaviour
from tests.broker.stateless_rig import ONE, PLAIN, TWO, A, StatelessRig
from tests.kit.bytecodes import count_bytecodes

FILE = "file:///a"
DIRECTORY = "file:///a/"
MANY = 400
SLICE_LINES = SLICE_UNITS // LINE_UNITS
SAVED_LINES = SAVED_UNITS // LINE_UNITS
NEW_A = PoolKey("a:2")


def told(effects: list[Any]) -> list[SendResourceUpdated]:
    return [each for each in effects if isinstance(each, SendResourceUpdated)]


def change(rig: StatelessRig, uri: str = FILE, params: bytes = b"{}", key: PoolKey = A) -> list[Any]:
    return told(rig.feed(ResourceChanged(key, uri, RawJson(params))))


def wait(rig: StatelessRig, duration_s: float) -> list[SendResourceUpdated]:
    return told(rig.wait(duration_s))


def listen(rig: StatelessRig, request: int, *uris: str, session: SessionId = ONE) -> None:
    rig.feed(ev.ListenRequested(session, RawJson(b"%d" % request), PLAIN, (), uris or (FILE,)))


def crowd(count: int = MANY) -> StatelessRig:
    """One agent listens to the resource so many times, as the agents of one token do in a shared session."""
    rig = StatelessRig()
    for request in range(count):
        listen(rig, request)
    return rig


@behaviour("subscriptions:told-in-slices")
def test_a_change_for_many_is_told_in_slices_and_all_of_it() -> None:
    rig = crowd()
    heard = change(rig)
    assert len(heard) == SLICE_LINES
    while rig.core.next_deadline() is not None:
        effects = told(rig.core.tick(rig.now))
        assert len(effects) <= SLICE_LINES
        heard += effects
    assert len({each.listen for each in heard}) == len(heard) == MANY


@behaviour("subscriptions:told-in-slices")
def test_a_change_for_few_is_told_at_once_with_the_params_of_the_server() -> None:
    rig = crowd(SLICE_LINES - 1)
    params = b'{"uri":"file:///a","x":"%s"}' % (b"y" * 2 * KEPT_PARAMS_BYTES)
    small = crowd(3)
    assert [each.params for each in change(small, params=params)] == [params] * 3
    assert len(change(rig)) == SLICE_LINES - 1
    assert rig.core.next_deadline() is None


@behaviour("subscriptions:told-in-slices")
def test_many_changes_at_one_moment_make_a_bounded_number_of_lines_and_the_last_of_each_is_told() -> None:
    rig = crowd()
    lines = [len(change(rig, params=b'{"n":%d}' % number)) for number in range(100)]
    assert lines[1:] == [0] * 99, "a slice is planned"
    heard = wait(rig, 0.0)
    assert len(heard) + lines[0] <= SAVED_LINES + SLICE_LINES
    heard += wait(rig, 1.0)
    last = [each.listen for each in heard if each.params == b'{"n":99}']
    assert len(set(last)) == len(last) == MANY
    assert len(heard) + lines[0] == 2 * MANY, "the first, which had begun, and the last"


@behaviour("subscriptions:told-in-slices")
def test_changes_for_few_at_one_moment_are_bounded_too() -> None:
    rig = StatelessRig()
    uris = [f"{DIRECTORY}{number}" for number in range(SAVED_LINES + MAX_PARTS // 2)]
    listen(rig, 1, DIRECTORY)
    at_once = [each.uri for uri in uris for each in change(rig, uri)]
    assert len(at_once) <= SAVED_LINES + SLICE_LINES
    later = [each.uri for each in wait(rig, 1.0)]
    assert at_once + later == uris, "in order"


@behaviour("subscriptions:told-in-slices")
def test_in_the_long_run_a_second_has_a_bounded_number_of_lines() -> None:
    rig = crowd()
    heard = 0
    for _ in range(200):
        heard += len(change(rig))
        heard += len(wait(rig, 0.05))
    assert 0.9 * 10 * UNITS_S < heard * LINE_UNITS <= 10 * UNITS_S + SAVED_UNITS + SLICE_UNITS


@behaviour("subscriptions:told-in-slices")
def test_owners_take_turns() -> None:
    rig = crowd()
    rig.attach(TWO, principal="bob")
    listen(rig, 1, session=TWO)
    change(rig, params=b'{"n":1}')
    change(rig, params=b'{"n":2}')
    heard = [each.session for each in wait(rig, 1.0) if each.params == b'{"n":2}']
    assert heard.index(TWO) <= TURN_UNITS // LINE_UNITS


@behaviour("subscriptions:told-in-slices")
def test_owners_take_turns_from_the_start_if_many_sessions_hear_of_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource_updates, "FEW_SESSIONS", 1)
    rig = crowd()
    rig.attach(TWO, principal="bob")
    listen(rig, 1, session=TWO)
    assert [each.session for each in change(rig)].index(TWO) <= TURN_UNITS // LINE_UNITS


@behaviour("subscriptions:told-in-slices")
def test_nobody_hears_of_an_earlier_change_after_a_later_one() -> None:
    rig = crowd()
    rig.attach(TWO, principal="bob")
    listen(rig, 1, session=TWO)
    numbers = [int(each.params[5:-1]) for n in range(3) for each in change(rig, params=b'{"n":%d}' % n)]
    assert numbers == [0] * len(numbers)
    heard = wait(rig, 1.0)
    assert [bytes(each.params) for each in heard if each.session == TWO] == [b'{"n":0}', b'{"n":2}']
    assert {bytes(each.params) for each in heard} == {b'{"n":0}', b'{"n":2}'}


@behaviour("subscriptions:told-in-slices")
def test_a_change_that_must_wait_costs_the_same_however_many_sessions_hear_of_it() -> None:
    def price(sessions: int) -> int:
        rig = crowd()
        for number in range(sessions):
            session = SessionId(f"other{number}")
            rig.come(session)
            listen(rig, 1, session=session)
        change(rig)
        change(rig)
        again = ResourceChanged(A, FILE, EMPTY_OBJECT)
        return count_bytecodes(lambda: rig.core.handle(again, rig.now))

    price(1)
    assert price(60) == price(2)


def test_long_params_do_not_wait() -> None:
    rig = crowd()
    change(rig)
    change(rig, params=b'{"uri":"file:///a","x":"%s"}' % (b"y" * 2 * KEPT_PARAMS_BYTES))
    assert {bytes(each.params) for each in wait(rig, 1.0)} == {b"{}", b'{"uri":"file:///a"}'}


def test_a_line_with_long_params_counts_for_several() -> None:
    rig = crowd(SLICE_LINES)
    assert len(change(rig, params=b'{"x":"%s"}' % (b"y" * 16_000))) <= SLICE_LINES // 10


def test_too_many_changed_parts_are_told_as_a_change_of_what_they_are_a_part_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource_updates, "MAX_PARTS", 8)
    rig = crowd()
    listen(rig, MANY, DIRECTORY)
    change(rig)
    for number in range(20):
        assert change(rig, f"{DIRECTORY}{number}") == []
    heard = [each.uri for each in wait(rig, 10.0) if each.listen == b"%d" % MANY]
    assert heard == [*(f"{DIRECTORY}{number}" for number in range(8)), DIRECTORY]


def test_nothing_is_told_on_a_listen_that_has_ended_or_to_a_session_that_has_closed() -> None:
    rig = crowd()
    rig.attach(TWO, principal="bob")
    listen(rig, 1, session=TWO)
    change(rig)
    last = RawJson(b"%d" % (MANY - 1))
    rig.feed(ev.RequestCancelled(ONE, last, ""))
    rig.feed(ev.SessionClosed(TWO))
    heard = wait(rig, 1.0)
    assert last not in {each.listen for each in heard}
    assert {each.session for each in heard} == {ONE}


def test_an_agent_that_reads_again_hears_of_the_last_change_of_each_resource_in_slices() -> None:
    rig = StatelessRig()
    listen(rig, 1, DIRECTORY)
    rig.feed(ev.UnreadChanged(ONE, UNREAD_STEP_BYTES + 1))
    uris = [f"{DIRECTORY}{number}" for number in range(MANY)]
    for params in (b"{}", b'{"n":2}'):
        assert not [each for uri in uris for each in change(rig, uri, params)]
        wait(rig, 1.0)
    heard = told(rig.feed(ev.UnreadChanged(ONE, 0)))
    assert len(heard) == SLICE_LINES
    heard += wait(rig, 1.0)
    assert [(each.uri, each.params) for each in heard] == [(uri, b'{"n":2}') for uri in uris]


def test_a_newer_change_takes_the_place_of_one_that_was_postponed() -> None:
    rig = crowd()
    rig.attach(TWO, principal="bob")
    listen(rig, 1, session=TWO)
    rig.feed(ev.UnreadChanged(TWO, UNREAD_STEP_BYTES + 1))
    change(rig, params=b'{"n":1}')
    wait(rig, 1.0)
    change(rig, params=b'{"n":2}')
    change(rig, params=b'{"n":3}')
    assert told(rig.feed(ev.UnreadChanged(TWO, 0))) == [], "the next slice is planned"
    heard = [each.params for each in wait(rig, 1.0) if each.session == TWO]
    assert heard == [b'{"n":2}', b'{"n":3}'], "and nothing of the first one after that"


def test_too_many_postponed_parts_are_told_as_a_change_of_what_they_are_a_part_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource_updates, "MAX_PARTS", 2)
    rig = StatelessRig()
    listen(rig, 1, DIRECTORY)
    rig.feed(ev.UnreadChanged(ONE, UNREAD_STEP_BYTES + 1))
    for number in range(9):
        change(rig, f"{DIRECTORY}{number}")
    heard = told(rig.feed(ev.UnreadChanged(ONE, 0)))
    assert [each.uri for each in heard] == [f"{DIRECTORY}0", f"{DIRECTORY}1", DIRECTORY]
    assert heard[-1].params == b'{"uri":"file:///a/"}'


def test_what_is_not_told_yet_counts_as_changed_in_the_pool_that_replaces_the_old_one() -> None:
    rig = crowd()
    change(rig, params=b'{"n":1}')
    change(rig, params=b'{"n":2}')
    rig.read(NEW_A, "b:1")
    last = [each.listen for each in wait(rig, 1.0) if each.params == b'{"uri":"file:///a"}']
    assert set(last) == {b"%d" % number for number in range(MANY)}


def test_the_core_holds_nothing_of_changes_that_nobody_hears_of() -> None:
    rig = crowd(1)
    assert change(rig, "file:///elsewhere") == []
    assert change(rig, FILE, EMPTY_OBJECT, PoolKey("a:3")) == []
    assert rig.core.next_deadline() is None
