"""The names that carpool gives to what it keeps in its state directory (docs/files.md).

Owns which of the files there `carpool uninstall --purge` may remove. The user may have chosen a state
directory that holds other files, even below a directory of a name that carpool uses, so only a regular,
private file with a name that carpool gives to its files counts as carpool's.

Refuses to know: the content of the files, and the modules that write them.
"""

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PART: Final = r"(\.part-[0-9]+)?"
"""The end of a file's name while it is written."""

STATE_FILES: Final = (
    "trust.json",
    "places.json",
    "pool-keys",
    "verdicts.json",
    "eras.json",
    "runtime-directory",
    "http-token",
)
"""The files directly in the state directory."""

_NAME_PATTERNS: Final[dict[str, str]] = {
    "node-ids": r"[0-9a-f]+",
    "nats": r"[0-9a-f]+/(address|nats\.conf)",
    "pins": r"[A-Za-z0-9_-]+-[0-9a-f]{16}\.json",
    "logins": r"[0-9a-f]{32}\.json(\.lock)?",
    "log": r"((broker|launcher|http|node|(supervisor|server)-[A-Za-z0-9_-]+)\.log|audit\.jsonl)(\.[0-9])?",
    "catalogs": r"[0-9a-f]{16}\.catalog",
    "setup": r"lock|[0-9]{4,}/(record\.json|[0-9]+\.(before|after))",
}
"""The names of files in each directory of the state directory."""
STATE_DIRECTORIES: Final = tuple(_NAME_PATTERNS)

_PATTERNS: Final = {directory: re.compile(f"({names}){_PART}") for directory, names in _NAME_PATTERNS.items()}


def own_files(directory: Path) -> Iterator[Path]:
    """Yield the files of carpool below one of the `STATE_DIRECTORIES`. Raises `OSError`."""
    pattern = _PATTERNS[directory.name]
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        is_private = stat.S_ISREG(mode) and not mode & 0o077
        if is_private and pattern.fullmatch(path.relative_to(directory).as_posix()):
            yield path
