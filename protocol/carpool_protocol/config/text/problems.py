"""Problems of files that people write, as values.

Owns the one form in which mistakes in configuration are reported. Code that reads configuration returns a
list of these and raises nothing. A problem never quotes a value of `env` or of an environment, only names.
Refuses to know the settings.
"""

import difflib
import json
import re
from collections.abc import Iterable

from msgspec import Struct

KeyPath = tuple[str | int, ...]
"""A place in a file: object keys and list positions from the root."""

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_$@/+-]{1,64}")
_SHOWN_CHARACTERS = 64
_SIMILAR = 0.6
MAX_NAMES_LISTED = 20
"""Maximum number of known names in the error for an unknown one."""
SIMILAR_KEY = 0.7
"""Similarity that a key needs: keys share their endings (`_s`, `_mb`), so they must be closer than names."""


class ConfigProblem(Struct, frozen=True):
    """One mistake: its place and the solution."""

    file: str
    line: int
    """Counted from 1. 0: it has no line, and `file` names another place."""
    where: str
    """`mcpServers.git.pool.min`; empty for the file as a whole."""
    text: str

    def render(self) -> str:
        """`file:line: where: text`, which editors and terminals turn into a link."""
        where = f"{self.where}: " if self.where else ""
        line = f":{self.line}" if self.line else ""
        return f"{self.file}{line}: {where}{self.text}"


def render_path(path: KeyPath) -> str:
    """A path for people: `mcpServers.git.args[2]`. Unusual keys are quoted, so the result is one line."""
    out = ""
    for step in path:
        if isinstance(step, int):
            out += f"[{step}]"
            continue
        shown = step if _PLAIN_KEY.fullmatch(step) else shorten(step)
        out += f".{shown}" if out else shown
    return out


def shorten(text: str) -> str:
    """A string of the file, quoted, on one line and of limited length."""
    return json.dumps(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")


def did_you_mean(wrong: str, known: Iterable[str], similar: float = _SIMILAR) -> str:
    """The known key that is most similar to `wrong`, or an empty string.

    `known` may hold dotted keys: `idle` finds `pool.idle_s`, `autoConnect` finds `auto_connect`. `similar`:
    the least similarity, from 0 to 1.
    """
    if len(wrong) > _SHOWN_CHARACTERS:  # comparing is quadratic, and no known key is that long
        return ""
    by_form = _by_form(known)
    close = difflib.get_close_matches(_form(wrong), by_form, n=1, cutoff=similar)
    return by_form[close[0]] if close else ""


def same_name(wrong: str, known: Iterable[str]) -> str:
    """The known key that differs only in case, separators or its group, or an empty string."""
    return _by_form(known).get(_form(wrong), "")


def _by_form(known: Iterable[str]) -> dict[str, str]:
    """Known keys by the form of the whole key and of its last part."""
    by_form: dict[str, str] = {}
    for key in known:
        by_form.setdefault(_form(key.rsplit(".", 1)[-1]), key)
        by_form[_form(key)] = key
    return by_form


def no_such_server(name: str, known: Iterable[str], where: str = "in the configuration") -> str:
    """The sentence about a server that does not exist.

    `no_such_server("gti", ["git"])` is "there is no server 'gti' in the configuration; did you mean 'git'?".
    """
    names = sorted(known)
    meant = did_you_mean(name, names)
    listed = ", ".join(names[:MAX_NAMES_LISTED]) or "none"
    rest = len(names) - MAX_NAMES_LISTED
    more = f" and {rest} more" if rest > 0 else ""
    hint = f"did you mean {meant!r}?" if meant else f"there are: {listed}{more}"
    return f"there is no server {name[:_SHOWN_CHARACTERS]!r} {where}; {hint}"


def _form(key: str) -> str:
    """A key without case and separators, as people often remember it."""
    return re.sub(r"[_.-]", "", key).lower()
