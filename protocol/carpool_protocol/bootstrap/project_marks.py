"""Files that make a directory a project: its own configuration, its repository, what sets its environment.

Owns these names and the search upward for them. A place inside a project is a stranger's until somebody says
otherwise: programs load variables from such files, and the project can hold what a variable names.

The shim imports this file: `os` and nothing else. Knows nothing of: what is in the files, trust.
"""

import os

PROJECT_FILES = (
    ".carpool/mcp.json",
    ".mcp.json",
    "opencode.json",
    "opencode.jsonc",
    "mcp_servers.json",
    "mcp/servers.json",
)
"""In order: each shadows those after it."""

REPOSITORIES = (".git", ".hg", ".svn", ".jj")

ENVIRONMENTS = (
    *(".env", ".env.local", ".envrc", "mise.toml", ".mise.toml"),
    *(".gemini/.env", ".gemini/settings.json", ".claude/settings.json", ".claude/settings.local.json"),
    *(".vscode/settings.json", ".vscode/mcp.json", ".cursor/mcp.json", ".codex/config.toml"),
)
"""Files from which a shell or an agent's program sets variables for all that it starts."""

_BY_FIRST: "dict[str, list[str]]" = {}
for _name in (*PROJECT_FILES, *REPOSITORIES, *ENVIRONMENTS):
    _BY_FIRST.setdefault(_name.split("/")[0], []).append(_name)


def project_around(path: str, home: str) -> str:
    """The nearest directory at or above `path` with one of these files; empty: there is none.

    The search ends before the home directory and before `/`: these are nobody's project. `path`: absolute.
    """
    end = _identity(home)
    at = os.path.normpath(path)
    while at != os.path.dirname(at) and (end is None or _identity(at) != end):
        # By first parts: shims do this at each start, and of most directories none is there.
        for first, names in _BY_FIRST.items():
            if os.path.lexists(f"{at}/{first}") and any(_is_mark(at, name) for name in names):
                return at
        at = os.path.dirname(at)
    return ""


def _is_mark(directory: str, name: str) -> bool:
    path = os.path.join(directory, name)
    return os.path.lexists(path) and counts(directory, path)


def counts(directory: str, path: str) -> bool:
    """Whether it is ours or root's, or stands where not everybody may put files, as into /tmp."""
    first = os.path.relpath(path, directory).split("/")[0]
    try:
        anybody = os.stat(directory).st_mode & 0o002
        return not anybody or os.lstat(os.path.join(directory, first)).st_uid in our_users()
    except OSError:
        return False


def our_users() -> "tuple[int, ...]":
    """Whose files count where everybody may put some."""
    return 0, os.getuid()


def _identity(directory: str) -> "tuple[int, int] | None":
    """The same for every path to a directory; None where there is none."""
    try:
        found = os.stat(directory)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
