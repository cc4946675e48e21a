"""Which workspace a directory belongs to, and which file is its project's own.

Owns the search (rule 19): the workspace is the nearest parent with a project file, else the root of the
workspace that the user's file names, else the git root, else the directory itself. The search ends at such a
root, and before home, which is nobody's project. A file that is the user's own configuration, by whatever
path, makes its directory a workspace and is no project file: its servers are in force already. In one
directory `.carpool/mcp.json` shadows `.mcp.json` shadows `opencode.json` shadows the rest. Where everybody
may put files only ours count: somebody else's would make all that lies below one workspace, trusted or not.
Asks the file system for names, owners and modes only.
Of a file that another one shadows, or that lies above the one found, it also reads whether a server is lost
by that.

Knows nothing of: what the file of a workspace says, trust.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct

from carpool_protocol.bootstrap.paths import PROJECT_FILES, is_trusted_location
from carpool_protocol.config.edit.edit import value_at
from carpool_protocol.config.foreign.formats import is_own_entry, shape_of
from carpool_protocol.config.text.file_stamps import Stamp, stamp
from carpool_protocol.config.text.jsonc import parse

_MOST_BYTES: Final = 256 * 1024
"""So much is read of a file that is shadowed."""


class FoundWorkspace(Struct, frozen=True):
    """What was found from one directory."""

    root: str
    """Absolute; empty where the agent did not say its directory."""
    file: str = ""
    """The project file; empty: there is none."""
    shadowed: tuple[str, ...] = ()
    """Project files of the same directory that are not read, though they hold servers."""
    hidden: str = ""
    """The nearest project file above `root` that holds servers: it is not read, because `root` has a file."""
    own: str = ""
    """A file of the same directory with the name of a project file that is the user's own configuration."""
    seen: dict[str, Stamp] = {}
    """Files that are there or might come: while all are so, so is this. No directories: in those of a project
    files come and go all the time. One that is no longer a git root is found out with the next change.
    """


def find_workspace(cwd: str, home: str, within: str = "", users: Collection[str] = ()) -> FoundWorkspace:
    """Search upward from `cwd`. `within`: the root of a named workspace that it is in; empty: it is in none.
    `users`: the files of the user's own configuration (`Config.files`).
    Never raises: what cannot be looked at is not there.
    """
    if not os.path.isabs(cwd) or "\0" in cwd:
        return FoundWorkspace("")
    seen: dict[str, Stamp] = {}
    git = ""
    start = os.path.normpath(cwd)
    directories = _upward(start, home, within)
    for at in directories:
        if found := _project_files(at, seen):
            own, files = _split_own_files(found, users)
            shadowed = tuple(filter(_holds_servers, files[1:]))
            hidden = _hidden(directories, seen, users) if files else ""
            return FoundWorkspace(at, "".join(files[:1]), shadowed, hidden, "".join(own[:1]), seen)
        mark = os.path.join(at, ".git")
        if not git and os.path.exists(mark) and is_trusted_location(at, mark):
            git = at
        elif not git and not os.path.lexists(mark):
            seen[mark] = None
    return FoundWorkspace(within or git or start, seen=seen)


def _upward(start: str, home: str, within: str) -> Iterator[str]:
    """The directories in which the search looks, nearest first."""
    end, last = _identity(home), _identity(within) if within else None
    at = start
    while (identity := _identity(at)) is None or identity != end:
        yield at
        above = os.path.dirname(at)
        if at in {above, within} or (last is not None and identity == last):
            return
        at = above


def _project_files(directory: str, seen: dict[str, Stamp]) -> list[str]:
    """The project files of one directory, in order. Adds to `seen` those that are there or might come."""
    paths = [os.path.join(directory, each) for each in PROJECT_FILES]
    # What does not count is not watched: its owner could have us read everything again all the time.
    seen |= {
        path: stamp(path)
        for path in paths
        if not os.path.lexists(path) or is_trusted_location(directory, path)
    }
    return [path for path in paths if os.path.isfile(path) and is_trusted_location(directory, path)]


def _hidden(directories: Iterator[str], seen: dict[str, Stamp], users: Collection[str]) -> str:
    """The project file that the rest of the search would find, if servers are lost by that; else empty."""
    for at in directories:
        _, files = _split_own_files(_project_files(at, seen), users)
        if files:
            return files[0] if _holds_servers(files[0]) else ""
    return ""


def unread_warnings(workspace: FoundWorkspace) -> list[str]:
    """A sentence about each project file that holds servers and is not read."""
    hidden = (
        f"{workspace.hidden} is not read here: {workspace.file} is nearer, and only the nearest project file "
        "counts"
    )
    shadowed = [f"{each} is not read: {workspace.file} shadows it" for each in workspace.shadowed]
    return [*shadowed, *([hidden] if workspace.hidden else [])]


def workspace_name_at(cwd: str, roots: Mapping[str, str]) -> str:
    """In which of the named workspaces a directory is: the one with the nearest root. `roots`: absolute, by
    name. Empty: in none.
    """
    if not roots or not os.path.isabs(cwd) or "\0" in cwd:
        return ""
    by_path = {os.path.normpath(root): name for name, root in reversed(list(roots.items()))}
    places = {root: _identity(root) for root in by_path}
    by_identity = {place: by_path[root] for root, place in places.items() if place is not None}
    at = os.path.normpath(cwd)
    while True:
        identity = _identity(at)
        name = by_path.get(at) or (by_identity.get(identity) if identity is not None else None)
        if name is not None:
            return name
        above = os.path.dirname(at)
        if above == at:
            return ""
        at = above


def _split_own_files(found: list[str], users: Collection[str]) -> tuple[list[str], list[str]]:
    """Of the files of a directory those that are the user's own configuration, and all others. Links count as
    what they lead to, hard ones too: the same bytes are one file.
    """
    identities = {_identity(path) for path in users} - {None}
    own = [path for path in found if _identity(path) in identities]
    return own, [path for path in found if path not in own]


def _holds_servers(path: str) -> bool:
    """Whether a file holds a server besides the entry by which its program reaches carpool (`carpool setup`
    leaves that one there). In doubt it does.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError:
        return True
    if len(data) > _MOST_BYTES:
        return True
    parsed = parse(data.decode("utf-8", "replace"), path)
    if not parsed.complete or parsed.problems:
        return True
    shape = shape_of(parsed.value)
    if shape is None:
        return isinstance(parsed.value, dict) and "include" in parsed.value
    held = value_at(parsed.value, shape.holders)
    if not isinstance(held, dict | list):
        return True
    return not all(map(is_own_entry, held.values() if isinstance(held, dict) else held))


def _identity(path: str) -> tuple[int, int] | None:
    """The same for every path to a directory or file; None where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
