"""Asks git about files in a project: which it tracks, and which it ignores.

Owns that question. The project may be a stranger's: nothing that its repository configures is run, and git
gets little time. If git cannot be asked, all files count as tracked. Knows nothing of: what the files hold,
what follows from the answer.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from carpool.setup.model import GitStatus

_LIMIT_S: Final = 5.0
_SAFE: Final = (
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
)
_NOTHING_FOUND: Final = 1
"""The exit code of `check-ignore` for "no path is ignored"."""


def git_status(project: str, paths: Sequence[str]) -> GitStatus:
    """Ask git about paths below a project, also about files that do not exist."""
    if not paths or not _is_repository(project):
        return GitStatus()
    try:
        tracked = _listed(project, paths, "--literal-pathspecs", "ls-files", "--cached", "-z", "--")
        ignored = _listed(project, paths, "check-ignore", "-z", "--stdin")
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = str(error) if isinstance(error, ValueError) else "it cannot be run"
        return GitStatus(frozenset(paths), frozenset(), why)
    return GitStatus(tracked, frozenset(paths) - tracked - ignored)


def _is_repository(project: str) -> bool:
    at = os.path.realpath(project)
    while not os.path.lexists(os.path.join(at, ".git")):
        at, below = os.path.dirname(at), at
        if at == below:
            return False
    return True


def _listed(project: str, paths: Sequence[str], *arguments: str) -> frozenset[str]:
    """Return the paths that a command of git prints.

    The paths to ask about are given on its stdin, or after its arguments if it takes them there.
    """
    program = shutil.which("git")
    if program is None:
        raise ValueError("git is not installed here")
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    names = [os.path.relpath(path, project) for path in paths]
    done = subprocess.run(
        [program, *_SAFE, *arguments, *(names if arguments[-1] == "--" else ())],
        cwd=project,
        env={**scrubbed, "GIT_OPTIONAL_LOCKS": "0"},
        input="".join(f"{name}\0" for name in names),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode not in {0, _NOTHING_FOUND}:
        raise ValueError("git does not take it for a repository that it may read")
    found = {os.path.normpath(name) for name in done.stdout.split("\0")}
    return frozenset(path for path, name in zip(paths, names, strict=True) if name in found)
