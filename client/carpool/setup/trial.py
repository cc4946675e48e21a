"""The trial of servers before setup moves them: which are tried, in which configuration, and what follows.

Owns that decision. Each stdio server that is new to carpool is tried once, in a private carpool with its
planned entry. One that does not start stays in its file. One that needs a variable or a login is moved, and
the need is named: where its program runs, the variable may be set. Pure. Knows nothing of: processes, the
status of a broker.
"""

import json
import posixpath
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from carpool.setup.model import MovedServer, SetupPlan
from carpool.terminal import display
from carpool_protocol.config.reading.parse import SERVERS
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.files.redaction import Mask
from carpool_protocol.link.messages import Policy

ENV_FILE: Final = "secrets.env"
"""The name of the `env_file` beside the private configuration."""
_REASON_CHARS: Final = 300
_SHOWN_SECRET: Final = 4
"""Shorter secrets are part of too many words to be hidden inside a text."""

_NO_DIRECTORY: Final = "was not tried: it runs in a project's directory, and setup runs in none"

_NOT_OF_A_TRIAL: Final = frozenset(
    {"sharing", "pool", "auto_connect", "tools_prefix", "description_prefix", "lease_idle_s", "tools_file"}
)
"""Settings that do not decide if a server starts."""

_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_NO_VARIABLE = re.compile(r"ERR_.*|.*_(?:ERROR|NOT_FOUND|FOUND|EXCEPTION)")
_MISSING = re.compile(
    r"\b(?:requires?|required|missing|not set|unset|must be set|must set|not defined|undefined|provided?"
    r"|please set|environment variables?|env vars?|KeyError|needs?|needed|expected)\b",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"\b(?:log[ -]?in|logged in|sign[ -]?in|not authenticated|authentication (?:is )?(?:required|failed)"
    r"|unauthori[sz]ed|authori[sz]e|oauth|credentials?|api[ _-]?keys?|(?:access|auth|api) ?tokens?"
    r"|invalid token"
    r"|40[13] (?:unauthori[sz]ed|forbidden))\b",
    re.IGNORECASE,
)

ServerKey = tuple[str, str, str]
"""A server of a program: the file, the directory that it is for (or empty), its name there."""


class TrialResult(Struct, frozen=True):
    """The consequence of a trial for one server."""

    stays: str = ""
    """The reason why it stays in its file; empty if it is moved."""
    note: str = ""
    """The thing that a moved server needs; empty: nothing."""


class TrialEntry(Struct, frozen=True):
    """One server that is tried."""

    name: str
    """Its name in the private configuration."""
    server: Mapping[str, JsonValue]
    keys: tuple[ServerKey, ...]
    """The servers of programs that become this one."""
    limit_s: float
    why_not: str = ""
    """The reason why it is moved without a trial; empty if it is tried."""

    def __repr__(self) -> str:
        return f"TrialEntry({self.name!r})"


def server_key(moved: MovedServer) -> ServerKey:
    """Return the key of a server that is moved."""
    return moved.path, moved.under, moved.was


def trial_entries(plan: SetupPlan, trusted: Callable[[MovedServer], bool], here: str) -> list[TrialEntry]:
    """Return the stdio servers that are new to carpool, each once.

    `trusted`: False for a server that a project brings and that may not run; `here`: the workspace in which
    setup runs, or empty.
    """
    groups: dict[tuple[str, str, str], list[MovedServer]] = {}
    for each in plan.moved:
        groups.setdefault((each.to, each.under, each.name), []).append(each)
    found: list[TrialEntry] = []
    taken: set[str] = set()
    for (_, under, name), group in groups.items():
        server = group[0].server
        is_known = any(each.known and not each.same_as for each in group)
        if is_known or "command" not in server or server.get("disabled") or not trusted(group[0]):
            continue
        written = _in_directory(server, under or here, of_project=bool(under))
        number, called = 1, name
        while called in taken:
            number += 1
            called = f"{name}-{number}"
        taken.add(called)
        limit = server.get("first_start_s")
        limit_s = limit if isinstance(limit, int | float) else Policy().first_start_s
        keys = tuple(map(server_key, group))
        why_not = "" if written is not None else _NO_DIRECTORY
        found.append(TrialEntry(called, written or {}, keys, limit_s, why_not))
    return found


def _in_directory(
    server: Mapping[str, JsonValue], root: str, *, of_project: bool
) -> dict[str, JsonValue] | None:
    """Return a server as it runs in this directory; None if it needs one and there is none."""
    kept = {key: value for key, value in server.items() if key not in _NOT_OF_A_TRIAL}
    out = {key: _filled(value, root) for key, value in kept.items()}
    if out != kept and not root:
        return None
    if of_project:
        cwd = out.get("cwd")
        out["cwd"] = posixpath.join(root, cwd) if isinstance(cwd, str) and not cwd.startswith("~") else root
    return out


def _filled(value: JsonValue, root: str) -> JsonValue:
    if isinstance(value, str):
        return value.replace("${workspace}", root).replace("${cwd}", root)
    if isinstance(value, list):
        return [_filled(each, root) for each in value]
    if isinstance(value, dict):
        return {key: _filled(inner, root) for key, inner in value.items()}
    return value


def trial_config(entries: Sequence[TrialEntry], own: Mapping[str, JsonValue], *, has_env_file: bool) -> str:
    """Return the text of the private configuration. `own`: the user's carpool.json."""
    config: dict[str, Any] = {SERVERS: {each.name: each.server for each in entries}}
    if "login_shell" in own:
        config["login_shell"] = own["login_shell"]
    if has_env_file:
        config["env_file"] = ENV_FILE
    return json.dumps(config, indent=2)


def trial_result(
    entry: TrialEntry,
    *,
    ok: bool,
    is_unset: bool,
    text: str,
    stderr: Sequence[str],
    environ: Collection[str],
    mask: Mask,
) -> TrialResult:
    """Return what follows from the start of a server.

    `is_unset`: carpool did not start it because a variable is not set; `text`: the reason of a failure;
    `stderr`: its last lines; `environ`: names of variables that are set here; `mask`: removes secrets.
    """
    if ok:
        return TrialResult()
    shown = display.one_line(mask.redact(text), _REASON_CHARS)
    if is_unset:
        return TrialResult(note=f"was not tried: {shown}")
    env = entry.server.get("env")
    known = {*environ, *(env if isinstance(env, dict) else ())}
    needed = missing_variables([text, *stderr], known)
    if needed:
        return TrialResult(note=f"needs {', '.join(needed)}, without which it does not start")
    if login_line([text, *stderr]):
        return TrialResult(note=f"needs a login or a key, without which it does not start: {shown}")
    return TrialResult(stays=f"setup started it once, and it does not work: {shown}")


def mask_of(hidden: Collection[str]) -> Mask:
    """Return what removes the secrets of the programs' files from the texts of servers."""
    return Mask(hidden, "…", _SHOWN_SECRET)


def missing_variables(lines: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the variables that a server names as missing: `ACME_TOKEN is required` → `ACME_TOKEN`."""
    found: dict[str, None] = {}
    for line in lines:
        if _MISSING.search(line) is not None:
            names = (each for each in _VARIABLE.findall(line) if _NO_VARIABLE.fullmatch(each) is None)
            found |= dict.fromkeys(each for each in names if each not in known)
    return list(found)


def login_line(lines: Sequence[str]) -> str:
    """Return the first line in which a server that does not start speaks of a login or a key; else empty."""
    return next((line for line in lines if _LOGIN.search(line) is not None), "")
