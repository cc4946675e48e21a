"""What becomes of a file when setup is undone: three states of it, and the one that it gets.

Owns that verdict. A file that is as setup left it becomes what it was, byte for byte. One that somebody has
changed since keeps those changes: only the members that setup changed are put back, and only if they are as
setup left them; else the file stays.

Pure. Knows nothing of: records, backups.
"""

import re
from typing import Final, Literal

from msgspec import Struct

from carpool.setup import toml
from carpool.setup.model import KeyPath, Role
from carpool_protocol.config.edit import CannotEditError, drop, put, value_at
from carpool_protocol.config.jsonc import JsonValue, Parsed, parse

Outcome = Literal["restored", "put back", "kept", "as it was"]


class Verdict(Struct, frozen=True):
    """What is to be done with a file."""

    outcome: Outcome
    data: bytes | None
    """What it is from then on; None: there is no file."""
    why: str = ""
    """Of what is kept or put back: a clause."""

    def __repr__(self) -> str:
        return f"Verdict({self.outcome!r})"


_ENV_FILE: Final = ("env_file",)
_CHANGED: Final = "was changed since setup"


def verdict(
    role: Role,
    before: bytes | None,
    after: bytes,
    now: bytes | None,
    regions: tuple[KeyPath, ...],
    *,
    force: bool = False,
    used: str = "",
) -> Verdict:
    """`before`, `after`: around setup; `now`: as it is. `used`: texts that may still refer to variables of
    the `env_file`.
    """
    if now == before:
        return Verdict("as it was", now)
    if now == after and not (role == "secrets" and _still_used(before, after, used)):
        return Verdict("restored", before)
    if force:
        return Verdict("restored", before, _CHANGED)
    if now is None:
        return Verdict("kept", None, "was removed since setup")
    try:
        text = now.decode()
        if role == "secrets":
            return _without_lines(text, before, after, used)
        old = before.decode() if before is not None else "{}"
        if regions:
            return _put_back(text, old, after.decode(), regions)
        return _toml_back(text, old if before is not None else "", after.decode())
    except (ValueError, CannotEditError):  # not UTF-8, no JSON any more, a strange layout
        return Verdict("kept", now, _CHANGED)


def _put_back(now: str, before: str, after: str, regions: tuple[KeyPath, ...]) -> Verdict:
    old, left = parse(before, ""), parse(after, "")
    kept = []
    for path in sorted(regions, key=lambda each: each == _ENV_FILE):
        there = parse(now, "")
        if path == _ENV_FILE and "${CARPOOL_" in now:
            continue  # what was kept refers to it
        if not there.complete or _at(there, path) != _at(left, path):
            kept.append(path[-1])
            continue
        if path in old.spans and path in there.spans:
            span, place = old.spans[path], there.spans[path]
            now = now[: place.value] + before[span.value : span.end] + now[place.end :]
        elif path in old.spans:
            now = put(now, path, value_at(old.value, path))
        elif path in there.spans:
            now = _dropped(now, path, old)
    again = parse(now, "")
    if len(kept) == len(regions) or not again.complete or again.problems:
        return Verdict("kept", now.encode(), _CHANGED)
    stays = f", and {', '.join(kept)} with them" if kept else ""
    return Verdict("put back", now.encode(), f"{_CHANGED}: those changes stay{stays}")


def _dropped(now: str, path: KeyPath, old: Parsed) -> str:
    """Without a member, and without what only held it."""
    now = drop(now, path)
    while len(path := path[:-1]) > 0 and path not in old.spans:
        if value_at(parse(now, "").value, path) != {}:
            break
        now = drop(now, path)
    return now


_NOTHING: Final = object()


def _at(parsed: Parsed, path: KeyPath) -> JsonValue | object:
    """What stands there; `_NOTHING` where there is no such member."""
    return value_at(parsed.value, path) if path in parsed.spans else _NOTHING


def _toml_back(now: str, before: str, after: str) -> Verdict:
    """The tables of servers as they were, behind everything else."""
    servers = toml.SERVERS
    if toml.read(now).get(servers) != toml.read(after).get(servers):
        return Verdict("kept", now.encode(), _CHANGED)
    text = toml.swap(now, list(toml.read(now).get(servers, {})), {})
    tables = toml.tables_of(before)
    text = text.rstrip("\r\n") + "\n\n" + tables if text.strip() and tables else text + tables
    if not toml.says(text, {**toml.read(now), servers: toml.read(before).get(servers, {})}):
        return Verdict("kept", now.encode(), _CHANGED)
    return Verdict("put back", text.encode(), f"{_CHANGED}: those changes stay")


def _lines(text: str) -> list[str]:
    """With their ends; a value may hold what other readers take for the end of a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _added(before: bytes | None, after: bytes) -> list[str]:
    old = _lines((before or b"").decode())
    return [line for line in _lines(after.decode()) if line not in old and "=" in line]


def _is_used(line: str, used: str) -> bool:
    return "${" + line.partition("=")[0] + "}" in used


def _still_used(before: bytes | None, after: bytes, used: str) -> bool:
    return any(_is_used(line, used) for line in _added(before, after))


def _without_lines(now: str, before: bytes | None, after: bytes, used: str) -> Verdict:
    """Without the variables that setup added, but for those that something refers to."""
    added = _added(before, after)
    gone = [line for line in added if not _is_used(line, used)]
    if not gone:
        return Verdict("kept", now.encode(), "is in use still")
    text = "".join(line for line in _lines(now) if line not in gone)
    why = "is in use still for what was kept" if len(gone) < len(added) else f"{_CHANGED}: those changes stay"
    return Verdict("put back", text.encode(), why)
