"""The union of the entries of many sources."""

from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.configuration.shared_entries import SharedEntries
from carpool_broker.core.model.events import SourceId

A, B = SourceId("a"), SourceId("b")


def test_the_entry_of_the_last_source_counts_until_that_source_goes() -> None:
    shared = SharedEntries[str, str]()
    shared.set_source(A, {"key": "of a", "other": "of a"})
    shared.set_source(B, {"key": "of b"})
    assert shared.entries == {"key": "of b", "other": "of a"}
    shared.set_source(B, {})
    assert shared.entries == {"key": "of a", "other": "of a"}
    shared.set_source(A, {"key": "new"})
    assert shared.entries == {"key": "new"}


def test_the_entry_of_the_first_source_counts_where_that_is_wanted() -> None:
    shared = SharedEntries[str, str](first_counts=True)
    shared.set_source(A, {"key": "of a"})
    shared.set_source(B, {"key": "of b"})
    assert shared.entries == {"key": "of a"}
    shared.set_source(A, {})
    assert shared.entries == {"key": "of b"}


def test_the_keys_of_some_sources_alone_can_be_left_out() -> None:
    shared = SharedEntries[str, str]()
    shared.set_source(A, {"both": "of a", "one": "of a"})
    shared.set_source(B, {"both": "of b", "other": "of b"})
    assert shared.keys_besides({B}) == {"both", "one"}
    assert shared.keys_besides({A, B}) == set()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.dictionaries(st.integers(0, 3), st.text(max_size=2)))))
def test_the_union_is_that_of_what_the_sources_said_last(said: list[tuple[str, dict[int, str]]]) -> None:
    shared, last = SharedEntries[int, str](), dict[str, dict[int, str]]()
    for source, entries in said:
        last[source] = entries
        shared.set_source(SourceId(source), entries)
        shared.check()
        assert shared.entries.keys() == {key for each in last.values() for key in each}
