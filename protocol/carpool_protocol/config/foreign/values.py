"""Values of other programs in carpool's spelling.

Owns their variables, environments and command lines. Any value gives a result, never an exception.

Pure. Knows nothing of: keys, the place of a value.
"""

import json
import re
import shlex
from typing import Final

from carpool_protocol.config.text.jsonc import JsonValue

_ENV: Final = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_DOLLAR: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_BRACES: Final = re.compile(r"\{env:([A-Za-z_][A-Za-z0-9_]*)\}")
_PLACES: Final = {
    "${workspaceFolder}": "${workspace}",
    "${workspaceRoot}": "${workspace}",
    "${userHome}": "${HOME}",
    "${pathSeparator}": "/",
    "${/}": "/",
}
"""Predefined variables of VS Code and similar programs → carpool's."""


def with_our_variables(value: JsonValue, *, braces: bool, dollars: bool = False) -> JsonValue:
    """The value with its variables in carpool's spelling: `${env:A}` → `${A}`.

    `braces`: see `formats.FileShape`; `dollars`: see `formats.ForeignProgram`.
    """
    match value:
        case str() if braces:
            return _BRACES.sub(r"${\1}", value.replace("${", "$${"))
        case str():
            for theirs, ours in _PLACES.items():
                value = value.replace(theirs, ours)
            return (_DOLLAR if dollars else _ENV).sub(r"${\1}", value)
        case list():
            return [with_our_variables(each, braces=braces, dollars=dollars) for each in value]
        case dict():
            return {
                key: with_our_variables(inner, braces=braces, dollars=dollars) for key, inner in value.items()
            }
        case _:
            return value


def names_a_file(value: JsonValue) -> bool:
    """True if the value contains a text that opencode fills in from a file (`{file:PATH}`)."""
    match value:
        case str():
            return "{file:" in value
        case list():
            return any(map(names_a_file, value))
        case dict():
            return any(map(names_a_file, value.values()))
        case _:
            return False


def environment_texts(value: JsonValue) -> JsonValue:
    """An environment in the form of VS Code, converted: numbers become texts, null entries are left out."""
    if not isinstance(value, dict):
        return value
    return {
        key: json.dumps(inner) if isinstance(inner, int | float) else inner
        for key, inner in value.items()
        if inner is not None
    }


def split_command(command: str) -> tuple[JsonValue, list[JsonValue]]:
    """Command and arguments of a command line: `"npx -y a"` → `("npx", ["-y", "a"])`.

    A text that cannot be split stays one command.
    """
    try:
        found = shlex.split(command)
    except ValueError:
        return command, []
    return (found[0], [*found[1:]]) if found else (command, [])
