"""Reads the list of well-known servers that ships with carpool (`well_known.json`).

Owns the reading only; what the list means is `well_known`'s.
"""

from functools import cache
from importlib import resources

from carpool_supervisor.core.model.well_known import WellKnown, read


@cache
def well_known() -> WellKnown:
    """The shipped list, read once."""
    return read((resources.files("carpool_supervisor") / "well_known.json").read_bytes())
