"""What the tests of agent programs and of bridges share: runs that are made once, and known differences.

Knows nothing of: programs, bridges, how a run is made.
"""

from collections.abc import Callable, Hashable
from functools import cache
from typing import TypeVar

import pytest

Place = TypeVar("Place", bound=Hashable)
Result = TypeVar("Result")


class DifferenceError(AssertionError):
    """A feature does not work through carpool as it does directly."""


def run_once(make: Callable[[str, Place], Result]) -> Callable[[str, Place], Result]:
    """Return a function that makes the result of each name and place once. An error is raised again each
    time, so a run that failed fails each of its features.
    """

    @cache
    def made(name: str, place: Place) -> Result | Exception:
        try:
            return make(name, place)
        except Exception as error:  # noqa: BLE001  # raised again for each feature
            return error

    def found(name: str, place: Place) -> Result:
        result = made(name, place)
        if isinstance(result, Exception):
            raise result
        return result

    return found


def marks_of(why: str) -> list[pytest.MarkDecorator]:
    """The marks of a case that differs for this known reason; none without a reason."""
    return [pytest.mark.xfail(reason=why, strict=True, raises=DifferenceError)] if why else []
