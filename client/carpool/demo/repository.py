"""The git repository of `carpool demo`: made new, with a history whose every line is known.

Commit N of `COMMITS` adds `chapter-N.txt`; `notes.txt` is not tracked. `questions` relies on that.
Needs no configured git identity and is deaf to the user's git settings and hooks (a signing key, a
template directory), and so must be whoever runs git on it: `QUIET`.
"""

import os
import subprocess
from pathlib import Path

from carpool.demo.questions import chapter_line

COMMITS = 8
QUIET = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""Settings of this user change what git prints."""
_LIMIT_S = 20.0


class RepoError(Exception):
    """git did not do what was asked; the text ends with its own words."""


def make(path: Path) -> list[str]:
    """A repository at `path`, which must not exist. The hashes of its commits, newest first."""
    path.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environ |= QUIET
    for who in ("AUTHOR", "COMMITTER"):
        environ |= {
            f"GIT_{who}_NAME": "Carpool Demo",
            f"GIT_{who}_EMAIL": "demo@example.invalid",
            f"GIT_{who}_DATE": "2026-01-01T12:00:00+00:00",
        }

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=path,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
                process_group=0,  # Ctrl-C is for the demo, which ends everything in order
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RepoError(f"`git {arguments[0]}` could not be run: {error}") from None
        if done.returncode:
            raise RepoError(f"`git {arguments[0]}` failed: {done.stderr.strip()[-300:]}")
        return done.stdout

    git("init", "--quiet", "--template=")
    git("symbolic-ref", "HEAD", "refs/heads/main")  # `init -b` is younger than many a git
    for chapter in range(1, COMMITS + 1):
        (path / f"chapter-{chapter}.txt").write_text(chapter_line(chapter) + "\n")
        git("add", "--all")
        git("commit", "--quiet", "--message", f"Write chapter {chapter}")
    (path / "notes.txt").write_text("not tracked\n")
    return git("rev-list", "HEAD").split()
