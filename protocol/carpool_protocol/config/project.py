"""Which workspace a directory belongs to, and which file is its project's own.

Owns the search (rule 19): the workspace is the nearest parent with a project file, else the git root, else
the directory itself; the search stops at home, which is nobody's project. In one directory
`.carpool/mcp.json` shadows `.mcp.json` shadows `opencode.json` shadows the rest. Asks the file system for
names only.

Knows nothing of: what a project file says, trust.
"""

import os
from typing import Final

from msgspec import Struct

from carpool_protocol.config.stamps import Stamp, stamp

PROJECT_FILES: Final = (
    ".carpool/mcp.json",
    ".mcp.json",
    "opencode.json",
    "opencode.jsonc",
    "mcp_servers.json",
    "mcp/servers.json",
)
"""In order: each shadows those after it."""


class Workspace(Struct, frozen=True):
    """What was found from one directory."""

    root: str
    """Absolute; empty where the agent did not say its directory."""
    file: str = ""
    """The project file; empty: there is none."""
    shadowed: tuple[str, ...] = ()
    """Project files of the same directory that are not read."""
    seen: dict[str, Stamp] = {}
    """Files that are there or might come: while all are so, so is this. No directories: in those of a project
    files come and go all the time. One that is no longer a git root is found out with the next change.
    """


def find_workspace(cwd: str, home: str) -> Workspace:
    """Search upward from `cwd`. Never raises: what cannot be looked at is not there."""
    if not os.path.isabs(cwd) or "\0" in cwd:
        return Workspace("")
    end = _identity(home)
    seen: dict[str, Stamp] = {}
    git = ""
    at = start = os.path.normpath(cwd)
    while (identity := _identity(at)) is None or identity != end:
        paths = [os.path.join(at, each) for each in PROJECT_FILES]
        seen |= {path: stamp(path) for path in paths}
        found = [path for path in paths if os.path.isfile(path)]
        if found:
            return Workspace(at, found[0], tuple(found[1:]), seen)
        mark = os.path.join(at, ".git")
        if not git and os.path.exists(mark):
            git = at
        elif not git:
            seen[mark] = None
        above = os.path.dirname(at)
        if above == at:
            break
        at = above
    return Workspace(git or start, seen=seen)


def _identity(directory: str) -> tuple[int, int] | None:
    """The same for every path to a directory; None where there is none."""
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
