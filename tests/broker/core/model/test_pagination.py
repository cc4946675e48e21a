"""The versions of a list whose cursors count: what they keep alive."""

import pytest

from carpool_broker.core.model.pagination import BadCursor, ListPage, ListVersions, Paging
from carpool_broker.core.registry.pool_catalog import ViewPrompt
from carpool_protocol.ids import PoolKey, RawJson, ServerName
from tests.behaviours import behaviour

ENTRY_BYTES = 100
PAGING = Paging(page_entries=5, kept_bytes=3 * 10 * (ENTRY_BYTES + 1))


def entries(number: int, size_bytes: int = ENTRY_BYTES) -> tuple[ViewPrompt, ...]:
    definitions = [RawJson(b'"%*d"' % (size_bytes - 2, 10 * number + at)) for at in range(10)]
    return tuple(ViewPrompt("a__p", ServerName("a"), "p", PoolKey("a:1"), each) for each in definitions)


@behaviour("pages:long-lists")
@pytest.mark.parametrize(("size_bytes", "kept"), [(ENTRY_BYTES, 3), (ENTRY_BYTES + 1, 2), (1000, 1), (10, 7)])
def test_the_earlier_versions_of_a_list_are_bounded_by_their_bytes_together(
    size_bytes: int, kept: int
) -> None:
    versions = ListVersions.begin("prompts", PAGING, entries(0, size_bytes), 1)
    cursors: list[str | None] = []
    for number in range(1, 12):
        page = versions.page(None)
        assert isinstance(page, ListPage)
        cursors.append(page.next_cursor)
        versions = versions.with_new_version(entries(number, size_bytes), number + 1)
        versions.check(PAGING.kept_versions)
    answered = [versions.page(cursor) != BadCursor() for cursor in cursors]
    assert answered == [False] * (11 - kept) + [True] * kept


@behaviour("pages:long-lists")
def test_an_earlier_version_keeps_no_encoded_pages_and_shows_the_same_ones() -> None:
    before = ListVersions.begin("prompts", PAGING, entries(0), 1)
    first = before.page(None)
    assert isinstance(first, ListPage)
    second = before.page(first.next_cursor)
    after = before.with_new_version(entries(1), 2)
    assert not before.present._first
    assert not before.present._pages
    assert after.page(first.next_cursor) == second
