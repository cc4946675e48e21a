"""The content of a file when setup is undone, from its three states: before setup, after it, and now.

Owns that verdict. A file that is still as setup left it becomes what it was, byte for byte. A file that was
written since keeps everything that others wrote: carpool's entry is removed, the servers that setup moved
come back, and nothing else changes. An entry of carpool's that somebody has edited is removed only with
`force`. Invariant: no verdict removes a member that setup has not put there. Pure. Knows nothing of:
records, backups.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from carpool.setup import toml
from carpool.setup.model import KeyPath, Role
from carpool_protocol.config.edit.edit import (
    CannotEditError,
    MemberSwap,
    remove_member,
    set_member,
    swap_members,
    value_at,
)
from carpool_protocol.config.foreign.formats import is_own_entry
from carpool_protocol.config.text.jsonc import JsonValue, ParsedJson, parse

Outcome = Literal["restored", "put back", "kept", "left", "as it was"]
"""The outcome for a file. `kept`: setup's part is still in it, and the undo can be run again; `left`:
nothing of it is left to be undone.
"""


class UndoVerdict(Struct, frozen=True):
    """The decision about a file."""

    outcome: Outcome
    data: bytes | None
    """The new content of the file; None if there is to be no file."""
    why: str = ""
    """The reason why a file is not restored byte for byte, a clause."""
    forceable: bool = False
    """True for a kept file that `force` would undo."""

    def __repr__(self) -> str:
        return f"Verdict({self.outcome!r})"


class _EditedError(Exception):
    """Raised if somebody has changed carpool's own entry in a program's file."""


_ENV_FILE: Final = ("env_file",)
_CHANGED: Final = "was changed since setup"


def undo_verdict(
    role: Role,
    before: bytes | None,
    after: bytes,
    now: bytes | None,
    regions: tuple[KeyPath, ...],
    *,
    force: bool = False,
    used: str = "",
) -> UndoVerdict:
    """Decide what becomes of a file.

    `before`, `after`: the content around setup; `now`: the present content; `used`: texts that may still
    refer to variables of the `env_file`.
    """
    if now == before:
        return UndoVerdict("as it was", now)
    if now == after and not (role == "secrets" and _still_used(before, after, used)):
        return UndoVerdict("restored", before)
    if now is None:
        outcome: Outcome = "left" if force or role != "client" else "kept"
        return UndoVerdict(outcome, None, "was removed since setup", forceable=True)
    try:
        text = now.decode()
        if role == "secrets":
            return _without_lines(text, before, after, used)
        old = before.decode() if before is not None else "{}" if regions else ""
        if not regions:
            return _toml_back(text, old, after.decode(), force=force)
        if role == "client":
            return _servers_back(text, old, after.decode(), regions, force=force)
        return _put_back(text, old, after.decode(), regions)
    except _EditedError:
        return UndoVerdict(
            "kept", now, f"{_CHANGED}: carpool's own entry in it is another one", forceable=True
        )
    except (ValueError, CannotEditError):  # not UTF-8, no JSON any more, a strange layout
        return UndoVerdict("kept", now, f"{_CHANGED}, in a way that no program can undo")


def _servers_back(
    now: str, before: str, after: str, regions: tuple[KeyPath, ...], *, force: bool
) -> UndoVerdict:
    """Put back the objects of servers in a program's file.

    An object that is as setup left it goes back with its comments; in any other only the members that setup
    changed go back.
    """
    old, left = parse(before, ""), parse(after, "")
    stay: list[str] = []
    for path in regions:
        there = parse(now, "")
        if not there.complete or there.problems:
            raise CannotEditError("the file is broken")
        if _at(there, path) == _at(left, path):
            now = _region_back(now, there, before, old, path)
            continue
        held = _servers(_at(there, path))
        trade = _trade(_servers(_at(old, path)), _servers(_at(left, path)), held, force=force)
        stay += trade.stay
        if path in there.spans:
            now = swap_members(now, {path: trade.swap})
            if path not in old.spans and not (held.keys() - trade.swap.out):
                now = _dropped(now, path, old)
        elif trade.swap.put_in:
            now = set_member(now, path, dict(trade.swap.put_in))
    if not _is_sound(now):
        raise CannotEditError("the file would be broken")
    return UndoVerdict("put back", now.encode(), _told(stay))


class _ServerExchange(Struct, frozen=True):
    """Servers that leave a program's file, servers that come back, and names that stay as they are."""

    swap: MemberSwap
    stay: list[str]


def _trade(
    before: Mapping[str, Any], after: Mapping[str, Any], now: Mapping[str, Any], *, force: bool
) -> _ServerExchange:
    ours = [name for name in after if name not in before and name in now]
    edited = [name for name in ours if now[name] != after[name]]
    theirs = [name for name in edited if not is_own_entry(toml.plain(now[name]))]
    if not force and len(edited) > len(theirs):
        raise _EditedError
    updated = [
        name
        for name in after
        if name in before and name in now and before[name] not in (after[name], now[name])
    ]
    if not force and any(
        now[name] != after[name] and is_own_entry(toml.plain(now[name])) for name in updated
    ):
        raise _EditedError
    updated = [name for name in updated if now[name] == after[name] or is_own_entry(toml.plain(now[name]))]
    moved = [name for name in before if name not in after]
    again = [name for name in moved if name in now and now[name] != before[name]]
    gone = [name for name in ours if name not in theirs]
    return _ServerExchange(
        MemberSwap(
            [*gone, *updated],
            {name: before[name] for name in moved if name not in now}
            | {name: before[name] for name in updated},
        ),
        [*theirs, *again],
    )


def _servers(value: object) -> dict[str, Any]:
    if value is _NOTHING:
        return {}
    if not isinstance(value, dict):
        raise CannotEditError("there is no object with servers")
    return value


def _told(stay: list[str]) -> str:
    return f"{_CHANGED}: those changes stay" + (f", and {', '.join(stay)} with them" if stay else "")


def _put_back(now: str, before: str, after: str, regions: tuple[KeyPath, ...]) -> UndoVerdict:
    """Put back the members of one of carpool's files that are as setup left them."""
    old, left = parse(before, ""), parse(after, "")
    stay: list[str] = []
    gone = 0
    for path in sorted(regions, key=lambda each: each == _ENV_FILE):
        there = parse(now, "")
        if not there.complete or there.problems:
            raise CannotEditError("the file is broken")
        if path == _ENV_FILE and "${CARPOOL_" in now:
            continue  # a server that stays refers to it
        if path not in there.spans:
            gone += 1  # somebody has taken it out already
        elif _at(there, path) != _at(left, path):
            stay.append(path[-1])
        else:
            now = _region_back(now, there, before, old, path)
    if not _is_sound(now):
        raise CannotEditError("the file would be broken")
    if len(stay) + gone == len(regions):
        return UndoVerdict("left", now.encode(), _told(stay))
    return UndoVerdict("put back", now.encode(), _told(stay))


def _is_sound(text: str) -> bool:
    again = parse(text, "")
    return again.complete and not again.problems


def _region_back(now: str, there: ParsedJson, before: str, old: ParsedJson, path: KeyPath) -> str:
    """Return the text with one member as it was before, with its comments."""
    if path in old.spans and path in there.spans:
        span, place = old.spans[path], there.spans[path]
        return now[: place.value] + before[span.value : span.end] + now[place.end :]
    if path in old.spans:
        return set_member(now, path, value_at(old.value, path))
    return _dropped(now, path, old) if path in there.spans else now


def _dropped(now: str, path: KeyPath, old: ParsedJson) -> str:
    """Return the text without a member, and without the objects that held only this member."""
    now = remove_member(now, path)
    while len(path := path[:-1]) > 0 and path not in old.spans:
        if value_at(parse(now, "").value, path) != {}:
            break
        now = remove_member(now, path)
    return now


_NOTHING: Final = object()


def _at(parsed: ParsedJson, path: KeyPath) -> JsonValue | object:
    """Return the value of a member; `_NOTHING` if there is no such member."""
    return value_at(parsed.value, path) if path in parsed.spans else _NOTHING


def _toml_back(now: str, before: str, after: str, *, force: bool) -> UndoVerdict:
    """Put back the tables of servers as they were, behind everything else.

    If somebody has changed one, only the servers that setup changed go back.
    """
    servers = toml.SERVERS
    held, left, old = (toml.read(each).get(servers, {}) for each in (now, after, before))
    if held == left:
        text = toml.swap(now, list(held), {})
        tables = toml.tables_of(before)
        text = text.rstrip("\r\n") + "\n\n" + tables if text.strip() and tables else text + tables
        if toml.says(text, {**toml.read(now), servers: old}):
            return UndoVerdict("put back", text.encode(), _told([]))
    trade = _trade(_servers(old), _servers(left), _servers(held), force=force)
    back = {name: _servers(server) for name, server in trade.swap.put_in.items()}
    return UndoVerdict("put back", toml.swap(now, trade.swap.out, back).encode(), _told(trade.stay))


def _lines(text: str) -> list[str]:
    """Split a text into lines with their ends.

    Only `\\n` ends a line: a value may hold other characters that some readers take for an end.
    """
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _added(before: bytes | None, after: bytes) -> list[str]:
    old = _lines((before or b"").decode())
    return [line for line in _lines(after.decode()) if line not in old and "=" in line]


def _is_used(line: str, used: str) -> bool:
    return "${" + line.partition("=")[0] + "}" in used


def _still_used(before: bytes | None, after: bytes, used: str) -> bool:
    return any(_is_used(line, used) for line in _added(before, after))


def _without_lines(now: str, before: bytes | None, after: bytes, used: str) -> UndoVerdict:
    """Return the file without the variables that setup added, except those that are still referred to."""
    added = _added(before, after)
    gone = [line for line in added if not _is_used(line, used)]
    if not gone:
        return UndoVerdict("left", now.encode(), "is in use still by servers that stay")
    text = "".join(line for line in _lines(now) if line not in gone)
    why = "is in use still by servers that stay" if len(gone) < len(added) else _told([])
    return UndoVerdict("put back", text.encode(), why)
