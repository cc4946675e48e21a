"""Expands `${VAR}` in the texts of a configuration.

Owns the grammar of templates, their expansion, and the meaning of `~` in a path:

    ${VAR}            the variable; if it is not set, the server cannot be run
    ${VAR:-default}   the variable, or `default` (without `}` and `${`) if it is not set or empty
    ${workspace}      the session's workspace directory
    ${cwd}            the directory the agent runs in
    $${               a literal `${`

Everything else, `$HOME` and `$$` included, stays as it is. Inserted values are never expanded again.

Pure: variables and places are arguments. Messages hold names of variables, never values. Knows nothing of:
files, settings, the origin of variables.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

PLACE_NAMES: Final = frozenset({"workspace", "cwd"})
"""Names in templates that are not environment variables."""

_OPENING = re.compile(r"\$\$\{|\$\{")
_INSIDE = re.compile(r"([^}:]*+)(:-((?:(?!\$\{)[^}])*+))?\}")
_OTHERS: Final = frozenset({"env", "input", "file", "command", "config", "workspaceFolder"})
"""`${env:VAR}` of VS Code, `${file:PATH}` of Windsurf."""
_FOREIGN = re.compile(rf"({'|'.join(sorted(_OTHERS))}):")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_CHARACTERS = 64


class VariableReference(Struct, frozen=True):
    """A reference `${NAME}` or `${NAME:-default}` in a template."""

    name: str
    default: str | None = None


class MissingValue(Struct, frozen=True):
    """A template that cannot be filled in."""

    name: str
    """The missing variable or place."""
    cause: Literal["unset", "unusable"] = "unset"

    def render(self) -> str:
        """A clause about the problem and the solution, without values."""
        if self.cause == "unusable":
            return f"the value of {self.name} cannot be used: it holds a NUL character or is not UTF-8"
        if self.name in PLACE_NAMES:
            return (
                f"${{{self.name}}} is not known: the agent named no directory, or a workspace without `root`"
            )
        return (
            f"the environment variable {self.name} is not set; set it where the agent starts, put it into "
            f"the `env_file`, or write ${{{self.name}:-default}}"
        )


class BadTemplate(Struct, frozen=True):
    """A text that is not a template, with the reason."""

    text: str


Parts = tuple[str | VariableReference, ...]


def read_template(text: str) -> Parts | BadTemplate:
    """The parts of a text. Never raises."""
    parts: list[str | VariableReference] = []
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        parts.append(text[at : opening.start()])
        at = opening.end()
        if opening.group() == "$${":
            parts.append("${")
            continue
        inside = _INSIDE.match(text, at)
        if inside is None or _NAME.fullmatch(inside[1]) is None:
            foreign = _FOREIGN.match(text, at)
            return BadTemplate(_name_problem(foreign[1] if foreign else inside[1] if inside else ""))
        if inside[1] in PLACE_NAMES and inside[2] is not None:
            return BadTemplate(f"${{{inside[1]}}} takes no default")
        parts.append(VariableReference(inside[1], inside[3]))
        at = inside.end()
    parts.append(text[at:])
    return tuple(part for part in parts if part != "")


def references(text: str) -> frozenset[str]:
    """The names that a text refers to, places included. Empty for a text that is not a template."""
    parts = read_template(text)
    if isinstance(parts, BadTemplate):
        return frozenset()
    return frozenset(part.name for part in parts if isinstance(part, VariableReference))


def expand(text: str, variables: Mapping[str, str], places: Mapping[str, str]) -> str | MissingValue:
    """Fill in a text. An empty place counts as missing.

    A text that is not a template stays unchanged: `parse` has refused it already.
    """
    parts = read_template(text)
    if isinstance(parts, BadTemplate):
        return text
    out: list[str] = []
    for part in parts:
        if isinstance(part, str):
            out.append(part)
            continue
        value = (places.get(part.name) or None) if part.name in PLACE_NAMES else variables.get(part.name)
        if not value and part.default is not None:
            value = part.default
        if value is None:
            return MissingValue(part.name)
        if not is_usable(value):
            return MissingValue(part.name, "unusable")
        out.append(value)
    return "".join(out)


def from_home(path: str, home: str) -> str:
    """Expand `~` and `~/…` to the home directory. Other forms such as `~name` stay."""
    if path == "~":
        return home
    return posixpath.join(home, path[2:]) if path.startswith("~/") else path


def is_usable(text: str) -> bool:
    """True if a process can be given this text: UTF-8 without NUL."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_problem(name: str) -> str:
    escape = "to write ${ itself, write $${"
    if name in _OTHERS:
        return f"${{{name}:…}} is another program's spelling; write ${{VAR}}"
    if not name or len(name) > _SHOWN_CHARACTERS:
        return f"a ${{ is not closed or holds no name; write ${{VAR}} or ${{VAR:-default}} ({escape})"
    return f"this ${{…}} is neither ${{VAR}} nor ${{VAR:-default}} ({escape})"
