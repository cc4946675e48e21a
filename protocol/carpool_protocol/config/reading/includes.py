"""Finds the files that the patterns of `include` name, and the directories in which more may appear.

Owns the search, which is bounded in names and directories and gives up beyond that. A stranger's project is
searched before the user has trusted it, and a directory with n links to itself has n² files two steps deep.

Knows nothing of: the content of files.
"""

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import translate
from typing import Final

from msgspec import Struct

from carpool_protocol.config.schema.setting import has_wildcard
from carpool_protocol.config.text.file_stamps import Stamp, stamp

MAX_INCLUDED: Final = 256
"""Maximum number of included files, and also of directories that are searched."""
MAX_PATTERNS: Final = 32
MAX_NAMES: Final = 10_000
"""Maximum number of names that are read in all directories together, with repetitions."""


class IncludedFiles(Struct, frozen=True):
    """The result of a search."""

    files: tuple[str, ...]
    """Files by pattern, then by name, each once. A file named without a wildcard may be missing."""
    looked_in: dict[str, Stamp]
    """Directories in which files may appear or vanish, also missing ones."""


class _TooMuchError(Exception):
    """The search was given up. The text says which limit it reached."""


def find_included(base: str, patterns: Sequence[str]) -> IncludedFiles | str:
    """Search below `base`. Returns a text that names the limit if the search was given up."""
    if len(patterns) > MAX_PATTERNS:
        return f"more than {MAX_PATTERNS} patterns"
    search = _Search()
    found: dict[str, None] = {}
    try:
        for pattern in patterns:
            steps = _steps(pattern)
            matched = sorted(search.below(base, steps)) if steps else []
            if not matched and not has_wildcard(pattern):
                matched = [os.path.join(base, pattern)]
            found |= dict.fromkeys(matched)
            if len(found) > MAX_INCLUDED:
                return f"more than {MAX_INCLUDED} files match it"
    except _TooMuchError as error:
        return str(error)
    return IncludedFiles(tuple(found), search.looked_in)


class _Search:
    def __init__(self) -> None:
        self.looked_in: dict[str, Stamp] = {}
        self.left = MAX_NAMES

    def below(self, directory: str, steps: Sequence[str]) -> Iterator[str]:
        """The paths that match these steps below `directory`."""
        step, *rest = steps
        place = directory if has_wildcard(step) else os.path.dirname(os.path.join(directory, step))
        self.looked_in.setdefault(place, stamp(place))
        if len(self.looked_in) > MAX_INCLUDED:
            raise _TooMuchError(f"more than {MAX_INCLUDED} directories match it")
        for name in self._names(directory, step):
            path = os.path.join(directory, name)
            if not rest:
                yield path
            elif os.path.isdir(path):
                yield from self.below(path, rest)

    def _names(self, directory: str, step: str) -> list[str]:
        if not has_wildcard(step):
            return [step] if os.path.lexists(os.path.join(directory, step)) else []
        fits = re.compile(translate(step)).match
        found = []
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    self.left -= 1
                    if self.left < 0:
                        raise _TooMuchError(
                            f"there are more than {MAX_NAMES} names in the directories that it searches"
                        )
                    # As in a shell, a hidden file matches only a pattern that begins with a dot.
                    if fits(entry.name) and (step[0] == "." or entry.name[0] != "."):
                        found.append(entry.name)
        except OSError:  # no directory, or not readable for us
            return []
        return found


def _steps(pattern: str) -> list[str]:
    """Split a pattern at its wildcards: `a/b/*/c.json` → `a/b`, `*`, `c.json`."""
    found: list[str] = []
    for name in pattern.split("/"):
        if name in {"", "."}:
            continue
        if found and not has_wildcard(name) and not has_wildcard(found[-1]):
            found[-1] += f"/{name}"
        else:
            found.append(name)
    return found
