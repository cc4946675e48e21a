"""Servers in a file of TOML (Codex): reads them, takes them out, and adds carpool's entry.

Owns that edit. Everything else in the file stays as its author wrote it. Invariant: the new text reads as
the old one with that change, and no other line differs; else there is no new text (`CannotEditError`). Pure.
The only file that imports tomlkit.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from carpool_protocol.config.edit.edit import CannotEditError
from carpool_protocol.config.text.jsonc import JsonValue

SERVERS: Final = "mcp_servers"


def read(text: str) -> dict[str, Any]:
    """Parse the whole file. Raises `ValueError` with the reason, which quotes no value."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        where = str(error).rpartition("(")[2].rstrip(")")
        raise ValueError(f"is no TOML ({where})" if where.startswith("at ") else "is no TOML") from None


def plain(value: Any) -> JsonValue:
    """Convert a value to JSON; a date, which JSON does not have, becomes None."""
    match value:
        case dict():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list():
            return [plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            return None


def swap(text: str, out: Collection[str], put_in: Mapping[str, dict[str, JsonValue]]) -> str:
    """Take servers out and put others in. Raises `CannotEditError`."""
    wished = read(text)
    held = wished.setdefault(SERVERS, {})
    for name in out:
        held.pop(name, None)
    changed = _without_tables(text, out)
    for each in (changed, text):  # tables are easy; what else there is goes key by key
        if not says(changed, wished):
            changed = _without_keys(each, out)
    end = "\r\n" if "\r\n" in text else "\n"
    kept = changed
    for name, entry in put_in.items():
        gap = end * (2 - changed.endswith("\n")) if changed.strip() else ""
        changed += gap + tomlkit.dumps({SERVERS: {name: entry}}).replace("\n", end)
        held[name] = entry
    return _checked(changed, wished, text, kept)


def _without_tables(text: str, out: Collection[str]) -> str:
    """Return the text without the tables of these servers.

    Comments behind a table belong to the next one, and stay.
    """
    found = list(_HEADER.finditer(text))
    starts = [*(each.start() for each in found), len(text)]
    kept = text[: starts[0]]
    gone = {(SERVERS, name) for name in out}
    for header, start, end in zip(found, starts, starts[1:], strict=False):
        block = text[start:end]
        if _path(header.group().rstrip())[:2] in gone:
            lines = block.splitlines(keepends=True)
            last = max(
                at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")
            )
            block = "".join(lines[last + 1 :]).lstrip("\r\n") if "#" in "".join(lines[last + 1 :]) else ""
        kept += block
    return kept


def _path(header: str) -> tuple[str, ...]:
    """Return the keys of `[a.b]`; empty for anything else."""
    try:
        at: Any = tomllib.loads(header)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    keys = []
    while isinstance(at, dict) and at:
        keys.append(next(iter(at)))
        at = at[keys[-1]]
    return tuple(keys)


def says(text: str, wished: dict[str, Any]) -> bool:
    """True if the text is TOML with this content."""
    try:
        return _filled(read(text)) == _filled(wished)
    except ValueError:
        return False


def _filled(value: dict[str, Any]) -> dict[str, Any]:
    """Return the content with a table of servers: a missing one equals an empty one."""
    return {**value, SERVERS: value.get(SERVERS, {})}


def _without_keys(text: str, out: Collection[str]) -> str:
    """Return the text without these servers, in whatever form they are written; unchanged if that is
    impossible.
    """
    try:
        document = tomlkit.parse(text)
        for name in out:
            if name in document[SERVERS]:
                del document[SERVERS][name]
        if SERVERS in document and not document[SERVERS]:
            del document[SERVERS]
        return tomlkit.dumps(document)
    except (TOMLKitError, KeyError, AttributeError, TypeError, ValueError, IndexError, RecursionError):
        return text


def _checked(changed: str, wished: dict[str, Any], before: str, kept: str) -> str:
    lines = iter(before.splitlines())
    if not says(changed, wished) or not all(line in lines for line in kept.splitlines()):
        raise CannotEditError("its layout is too unusual to be edited by a program")
    return changed


_HEADER = re.compile(r"^[ \t]*\[{1,2}[ \t]*(?P<first>[^\].\s]+)[^\n]*$", re.MULTILINE)


def tables_of(text: str) -> str:
    """Return the tables of servers as they are written, one after the other; empty if they have another
    form.
    """
    found = list(_HEADER.finditer(text))
    ends = [*(each.start() for each in found[1:]), len(text)]
    return "".join(
        text[each.start() : end]
        for each, end in zip(found, ends, strict=True)
        if each["first"].strip("\"'") == SERVERS
    )
