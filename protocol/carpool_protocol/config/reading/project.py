"""Finds the workspace of a directory and the project file in it.

Owns the search (rule 19). The workspace is the nearest parent with a project file, else the root of the
workspace that the user's file names, else the git root, else the directory itself. The search ends at such a
root, and before the home directory, which is no project. A file that is the user's own configuration, by any
path, makes its directory a workspace and is no project file: its servers are in force already. In one
directory `.carpool/mcp.json` hides `.mcp.json`, which hides `opencode.json`, which hides the others. In a
directory that is writable for all users only this user's files count; else another user's file would turn
everything below it into one workspace. The search reads only names, owners and modes. It also reads files
that another one hides, or that lie above the found one, to warn about servers that are ignored.

Knows nothing of: the content of a workspace's file, trust.
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
"""Largest hidden file that is read."""


class FoundWorkspace(Struct, frozen=True):
    """The result of the search from one directory."""

    root: str
    """Absolute; empty if the agent did not name its directory."""
    file: str = ""
    """The project file; empty: there is none."""
    shadowed: tuple[str, ...] = ()
    """Project files of the same directory that are ignored although they hold servers."""
    hidden: str = ""
    """The nearest project file above `root` with servers. It is ignored because `root` has a file."""
    own: str = ""
    """A file of the same directory with the name of a project file that is the user's own configuration."""
    seen: dict[str, Stamp] = {}
    """Stamps of project files, existing or not. While none changes, the result is current.

    Directories are not included: files in projects change all the time. A vanished git root is noticed with
    the next change.
    """


def find_workspace(cwd: str, home: str, within: str = "", users: Collection[str] = ()) -> FoundWorkspace:
    """Search upward from `cwd`. Never raises: a path that cannot be read counts as missing.

    `within`: the root of the named workspace around it; empty: none. `users`: the files of the user's own
    configuration (`Config.files`).
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
    """The directories of the search, nearest first."""
    end, last = _identity(home), _identity(within) if within else None
    at = start
    while (identity := _identity(at)) is None or identity != end:
        yield at
        above = os.path.dirname(at)
        if at in {above, within} or (last is not None and identity == last):
            return
        at = above


def _project_files(directory: str, seen: dict[str, Stamp]) -> list[str]:
    """The project files of one directory, in order. Adds existing and missing ones to `seen`."""
    paths = [os.path.join(directory, each) for each in PROJECT_FILES]
    # Files that do not count are not watched: their owner could make carpool read everything again and again.
    seen |= {
        path: stamp(path)
        for path in paths
        if not os.path.lexists(path) or is_trusted_location(directory, path)
    }
    return [path for path in paths if os.path.isfile(path) and is_trusted_location(directory, path)]


def _hidden(directories: Iterator[str], seen: dict[str, Stamp], users: Collection[str]) -> str:
    """The project file that the search would find further up, if it holds servers; else empty."""
    for at in directories:
        _, files = _split_own_files(_project_files(at, seen), users)
        if files:
            return files[0] if _holds_servers(files[0]) else ""
    return ""


def unread_warnings(workspace: FoundWorkspace) -> list[str]:
    """A sentence about each project file that holds servers and is ignored."""
    hidden = (
        f"{workspace.hidden} is not read here: {workspace.file} is nearer, and only the nearest project file "
        "counts"
    )
    shadowed = [f"{each} is not read: {workspace.file} shadows it" for each in workspace.shadowed]
    return [*shadowed, *([hidden] if workspace.hidden else [])]


def workspace_name_at(cwd: str, roots: Mapping[str, str]) -> str:
    """The named workspace of a directory: the one with the nearest root. Empty: none.

    `roots`: absolute, by name.
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
    """The files of a directory that are the user's own configuration, and all others.

    Symbolic and hard links count as the file they lead to.
    """
    identities = {_identity(path) for path in users} - {None}
    own = [path for path in found if _identity(path) in identities]
    return own, [path for path in found if path not in own]


def _holds_servers(path: str) -> bool:
    """True if a file holds a server other than the entry that runs carpool, or if it cannot be read.

    `carpool setup` leaves that entry in the file.
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
    """Device and inode, equal for every path to a directory or file. None if it does not exist."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
