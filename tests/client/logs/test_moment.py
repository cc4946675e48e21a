"""Times as people type them."""

from datetime import UTC, datetime

import pytest

from carpool.logs.moment import parse_moment

NOW = datetime(2026, 11, 22, 14, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("30m", "2026-11-22T13:30:00.000Z"),
        ("2d", "2026-11-20T14:00:00.000Z"),
        ("2026-11-22T10:00:00+02:00", "2026-11-22T08:00:00.000Z"),
        ("2026-11-22T10:00:00.250Z", "2026-11-22T10:00:00.250Z"),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, then: str) -> None:
    assert parse_moment(text, NOW) == then


@pytest.mark.parametrize("text", ["yesterday", "", "25:00", "10y"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has a text of its own
        parse_moment(text, NOW)
