"""Which connections may stay, by their number and by the tokens that they have shown."""

from hypothesis import given
from hypothesis import strategies as st

from carpool.http.core.connection_places import KEPT, ConnectionPlaces
from tests.behaviours import behaviour


def filled(most: int, count: int, *, needs_token: bool = False) -> ConnectionPlaces[int]:
    places: ConnectionPlaces[int] = ConnectionPlaces(most)
    for number in range(count):
        assert places.opened(number, needs_token=needs_token) == []
        assert not places.is_full
    return places


@behaviour("http:limits")
def test_connections_beyond_the_bound_are_too_many_and_the_oldest_of_them_gives_way() -> None:
    places = filled(3, 3)
    for number in range(3, 3 + KEPT):
        assert places.opened(number, needs_token=False) == []
        assert places.is_full
        places.refused(number)
    assert places.opened(99, needs_token=False) == [3], "its client has had time to read the refusal"
    full = [places.is_full]
    assert places.open == [0, 1, 2, *range(4, 3 + KEPT), 99]
    places.refused(99)
    full.append(places.has_room)
    places.closed(0)
    full.append(places.has_room)
    places.admitted(99)
    assert [*full, places.has_room] == [True, False, True, False]
    places.check()


@behaviour("http:limits")
def test_of_connections_without_a_token_the_oldest_gives_way_beyond_a_quarter() -> None:
    places = filled(8, 2, needs_token=True)
    assert places.opened(2, needs_token=True) == [0]
    assert places.token_shown(1, "ann", 1)
    assert places.opened(3, needs_token=True) == [], "one that has shown its token counts no longer"
    assert [places.is_unknown(number) for number in (1, 2, 3)] == [False, True, True]
    assert places.opened(4, needs_token=True) == [2]
    places.check()


@behaviour("http:limits")
def test_connections_with_tokens_are_shared_out_among_principals() -> None:
    places = filled(8, 0)
    for number in range(3):
        places.opened(number, needs_token=True)
        assert places.token_shown(number, "ann", 2)
    places.opened(3, needs_token=True)
    assert not places.token_shown(3, "ann", 2), "three of six are her share"
    places.opened(4, needs_token=True)
    assert places.token_shown(4, "bob", 2)
    places.closed(3)
    places.closed(0)
    places.opened(5, needs_token=True)
    assert places.token_shown(5, "ann", 2)
    assert (places.owner(5), places.owner(7)) == ("ann", "")
    places.check()


@behaviour("handover:keep-alive")
def test_a_connection_whose_owner_an_earlier_door_knew_shows_no_token_again() -> None:
    places = filled(4, 1, needs_token=True)
    places.owner_known(9, "ann")
    assert places.opened(9, needs_token=True) == []
    assert not places.is_unknown(9)
    places.token_needed(9)
    assert not places.is_unknown(9)
    assert places.is_unknown(0)
    places.check()


def test_other_bounds_close_nothing_that_is_open() -> None:
    places = filled(3, 3)
    places.most = 1
    assert places.open == [0, 1, 2]
    assert places.opened(3, needs_token=False) == []
    assert places.is_full


STEPS = st.tuples(
    st.sampled_from(["open", "known", "refuse", "token", "shut out", "close"]), st.integers(0, 12)
)


@given(st.integers(1, 6), st.booleans(), st.lists(STEPS, max_size=60))
def test_the_places_stay_consistent_whatever_happens(
    most: int, needs_token: bool, steps: list[tuple[str, int]]
) -> None:
    places: ConnectionPlaces[int] = ConnectionPlaces(most)
    there: set[int] = set()
    for step, number in steps:
        if step == "open" and number not in there:
            there.add(number)
            there -= set(places.opened(number, needs_token=needs_token))
        elif step == "refuse" and number in there:
            places.refused(number)
        elif step == "token" and places.is_unknown(number):
            places.token_shown(number, f"principal {number % 2}", 2)
        elif step == "shut out":
            places.owner_shut_out(number)
            assert places.is_unknown(number) == (number in there)
            assert not places.owner(number)
        elif step == "close":
            there.discard(number)
            places.closed(number)
        places.check()
        assert set(places.open) == there
        assert len(places) == len(there)
