"""Servers in a file of TOML (Codex): reading them, taking them out, putting ours in.

Owns that edit. Everything else in the file stays as its author wrote it. Invariant: what comes out reads as
what went in with that change, and of its other lines not one is different, or nothing comes out
(`CannotEditError`).

Pure. The only file that imports tomlkit.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Final

import tomlkit
from tomlkit.exceptions import TOMLKitError

from carpool_protocol.config.edit import CannotEditError
from carpool_protocol.config.jsonc import JsonValue

SERVERS: Final = "mcp_servers"


def read(text: str) -> dict[str, Any]:
    """The whole file. Raises `ValueError` with the reason, which quotes no value."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        where = str(error).rpartition("(")[2].rstrip(")")
        raise ValueError(f"is no TOML ({where})" if where.startswith("at ") else "is no TOML") from None


def swap(text: str, out: Collection[str], put_in: Mapping[str, dict[str, JsonValue]]) -> str:
    """Take servers out and put others in. Raises `CannotEditError`."""
    wished = read(text)
    held = wished.setdefault(SERVERS, {})
    try:
        document = tomlkit.parse(text)
        for name in out:
            del held[name]
            del document[SERVERS][name]
        if SERVERS in document and not document[SERVERS]:
            del document[SERVERS]
        changed = tomlkit.dumps(document)
    except (TOMLKitError, KeyError, AttributeError, TypeError, ValueError, IndexError, RecursionError):
        raise CannotEditError("its layout is too unusual to be edited by a program") from None
    end = "\r\n" if "\r\n" in text else "\n"
    kept = changed
    for name, entry in put_in.items():
        gap = end * (2 - changed.endswith("\n")) if changed.strip() else ""
        changed += gap + tomlkit.dumps({SERVERS: {name: entry}}).replace("\n", end)
        held[name] = entry
    if not held:
        wished.pop(SERVERS)
    return _checked(changed, wished, text, kept)


def _checked(changed: str, wished: dict[str, Any], before: str, kept: str) -> str:
    try:
        found = read(changed)
    except ValueError:
        found = None
    lines = iter(before.splitlines())
    if found != wished or not all(line in lines for line in kept.splitlines()):
        raise CannotEditError("its layout is too unusual to be edited by a program")
    return changed


_HEADER = re.compile(r"^[ \t]*\[{1,2}[ \t]*(?P<first>[^\].\s]+)[^\n]*$", re.MULTILINE)


def tables_of(text: str) -> str:
    """The tables of servers as they are written, one after the other. Written otherwise, none is found."""
    found = list(_HEADER.finditer(text))
    ends = [*(each.start() for each in found[1:]), len(text)]
    return "".join(
        text[each.start() : end]
        for each, end in zip(found, ends, strict=True)
        if each["first"].strip("\"'") == SERVERS
    )
