"""Directories from which carpool's own processes import: none that the project at hand decides.

Owns what counts of PYTHONPATH: absolute entries that lie in no project, or in the one that this carpool
itself runs from (`paths`). An empty or relative entry means the directory that carpool is started in,
which a stranger may have filled. Servers of the user get their PYTHONPATH as it is, elsewhere.

The shim imports this file: `os` and `sys` at the top.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # collections.abc is more than the shim may import
    from collections.abc import Mapping

VARIABLE = "PYTHONPATH"


def clean() -> None:
    """Take off `sys.path` what PYTHONPATH, or the start by `python -m`, has put there and does not count."""
    try:
        here = os.getcwd()
    except OSError:  # it is gone, and nothing can be imported from it
        here = ""
    given = os.environ.get(VARIABLE)
    said = [] if given is None else given.split(os.pathsep)
    # First, so that what decides about the others is not imported from there.
    _remove([os.path.join(here, each) for each in said if not os.path.isabs(each)])
    if not sys.flags.safe_path and getattr(sys.modules["__main__"], "__spec__", None) is not None:
        _remove([here])
    if given:
        counting = trusted_entries(given)
        _remove([each for each in said if os.path.isabs(each) and each not in counting])


def _remove(entries: list[str]) -> None:
    away = {os.path.normpath(each) for each in entries} - {_ours()}
    sys.path[:] = [each for each in sys.path if os.path.normpath(each or ".") not in away]


def trusted_entries(given: str) -> list[str]:
    """Return the entries of a PYTHONPATH that carpool trusts."""
    from carpool_protocol.bootstrap import paths
    from carpool_protocol.bootstrap.paths import project_around

    home = paths.home_dir(os.environ)
    own = project_around(_ours(), home)
    return [
        each
        for each in given.split(os.pathsep)
        if os.path.isabs(each) and project_around(each, home) in ("", own)
    ]


def for_children(environ: "Mapping[str, str]") -> "Mapping[str, str]":
    """The environment for a process of ours: with what counts of its PYTHONPATH."""
    given = environ.get(VARIABLE)
    if given is None:
        return environ
    rest = {name: value for name, value in environ.items() if name != VARIABLE}
    return {**rest, VARIABLE: os.pathsep.join(found)} if (found := trusted_entries(given)) else rest


def _ours() -> str:
    """The directory that holds this package."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
