"""Places inside projects that the environment may name because the user allowed it (`carpool trust --place`).

Owns the file `places.json` and the refusal of all other places in projects. A project's `.env`, loaded by an
agent's program, must choose neither the configuration nor the directories of carpool's state and sockets. The
file lies in the XDG state directory and ignores CARPOOL_STATE_DIR, because it judges that variable.

A relative place is always refused: it means another directory in each project.

The shim imports this file: `os` at the top, everything else only if a place needs the user's consent. Refuses
to know what lies at the places.
"""

import os

from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.paths import CONFIG_VARIABLE, project_around

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and collections.abc are more than the shim may import
    from collections.abc import Mapping, Sequence

VARIABLES = (CONFIG_VARIABLE, paths.STATE_VARIABLE, paths.RUNTIME_VARIABLE)


class UntrustedPlaceError(Exception):
    """A variable names a place that carpool does not follow. The text says which variable, why, and what to
    do.
    """


def refuse_untrusted(environ: "Mapping[str, str]", variables: "Sequence[str]" = VARIABLES) -> None:
    """Raise `UntrustedPlaceError` if one of these variables names an untrusted place in a project.

    Shim, command line and Python client all call this, so the same environment gives the same verdict
    everywhere.
    """
    for variable in variables:
        named = environ.get(variable, "")
        if not named:
            continue
        path = os.path.expanduser(named)
        if not os.path.isabs(path):
            raise UntrustedPlaceError(
                f"{variable} names a relative path, which is another place in each directory; "
                "write it absolute, or unset it"
            )
        path = os.path.abspath(path)
        project = _project_of(path, paths.home_dir(environ))
        if project and not _covers(read_places(environ), path):
            raise UntrustedPlaceError(
                f"{variable} names {_shown(path)}, inside the project {_shown(project)}: a file of the "
                f"project may have set it, so carpool does not follow it. Unset {variable}; "
                f"or, if the place is yours, run `carpool trust --place {_shown(path)}`"
            )


def is_own_place(environ: "Mapping[str, str]", path: str) -> bool:
    """True for an absolute path that no untrusted project controls.

    Such a path lies in no project, in the project that carpool itself runs from, or at a place that the user
    trusts.
    """
    home = paths.home_dir(environ)
    project = _project_of(path, home)
    if project in ("", project_around(os.path.dirname(os.path.abspath(__file__)), home)):
        return True
    return _covers(read_places(environ), os.path.abspath(path))


def _project_of(path: str, home: str) -> str:
    """The project that a path lies in or that a link there leads into; empty: none."""
    return project_around(path, home) or project_around(os.path.realpath(path), home)


def places_file(environ: "Mapping[str, str]") -> str:
    """The path of the list of trusted places."""
    return paths.state_home(environ) + "/places.json"


def read_places(environ: "Mapping[str, str]") -> "list[str]":
    """The trusted places, absolute. Empty if the file is missing, damaged, or writable for other users."""
    import json  # here: a shim needs it only where a variable names a place in a project

    try:
        with open(places_file(environ), encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
                return []
            places = json.load(file)["places"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [each for each in places if isinstance(each, str)] if isinstance(places, list) else []


def trust_place(environ: "Mapping[str, str]", path: str) -> None:
    """Allow the environment to name `path` (absolute) and all below it. Raises `OSError`."""
    _write(environ, sorted({*read_places(environ), path}))


def revoke_place(environ: "Mapping[str, str]", path: str) -> bool:
    """Remove `path` from the trusted places. True if it was one. Raises `OSError`."""
    places = read_places(environ)
    if path not in places:
        return False
    _write(environ, [each for each in places if each != path])
    return True


def _write(environ: "Mapping[str, str]", places: "list[str]") -> None:
    import json

    from carpool_protocol.files import private_files

    file = places_file(environ)
    os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
    private_files.replace(file, json.dumps({"version": 1, "places": places}, indent=1).encode())


def _covers(places: "list[str]", path: str) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in places)


def _shown(path: str) -> str:
    """The path on one line, with other than printable ASCII characters escaped: a stranger may have chosen
    it.
    """
    return path if path.isascii() and path.isprintable() else ascii(path)
