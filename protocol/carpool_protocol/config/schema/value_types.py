"""Checks one value of a setting, and lists keys that carpool knows but refuses.

Owns the accepted values of each `settings.Kind`, the sentence for a refused value, and the sentence for each
key that only later versions or other programs have. No sentence quotes a value: a value in the wrong place
may be a secret.

Knows nothing of: files, lines, existing settings.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard

from msgspec import Struct

from carpool_protocol.carrier.remote import check_header_name, check_url
from carpool_protocol.config.schema.expand import BadTemplate, read_template
from carpool_protocol.config.schema.model import HttpToken, OperatorRight
from carpool_protocol.config.schema.settings import Setting
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import KeyPath, did_you_mean

_OTHER_SHAPE: Final = "a file holds its servers in one place: move these under `mcpServers`"
_URL: Final = "the key is called `url` here"

FILE_LATER: Final[dict[str, str]] = {
    "servers": _OTHER_SHAPE,
    "mcp": _OTHER_SHAPE,
}
"""Keys of the file that later versions or other programs have and this version refuses, each with its
sentence.
"""

SERVER_LATER: Final[dict[str, str]] = {
    "serverUrl": _URL,
    "httpUrl": _URL,
    "environment": "the key is called `env` here",
    "enabled": "the key is called `disabled` here, with the opposite value",
    "timeout": "the key is called `timeout_s` here, in seconds",
}
"""The same for keys of a server."""

IGNORED_KEYS: Final = frozenset({"$schema"})
"""Keys of the file that editors write and carpool ignores."""


_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_NAME: Final = 64
_TOKEN_KEYS: Final = frozenset({"expires", "hash", "operator", "profile", "workspaces"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Legal names. Shells read other names as functions to define: `BASH_FUNC_echo%%` replaces `echo`."""


class ValueProblem(Struct, frozen=True):
    """One problem of a value, and its place inside the value."""

    inner: KeyPath
    text: str


def read_value(setting: Setting, value: JsonValue, refuse: Callable[[ValueProblem], None]) -> Any:
    """The value in the form of `model`. Meaningless after a call of `refuse`."""
    match setting.kind:
        case "switch":
            return _switch(value, refuse)
        case "count":
            return _count(setting, value, refuse)
        case "seconds":
            return _seconds(setting, value, (), refuse)
        case "fraction":
            return _fraction(value, refuse)
        case "text" | "template" | "url" | "secret":
            return _text(setting, value, (), refuse)
        case "texts" | "templates":
            return _texts(setting, value, refuse)
        case "template map":
            return _template_map(setting, value, refuse)
        case "seconds map":
            return _seconds_map(setting, value, refuse)
        case "header map":
            return _header_map(setting, value, refuse)
        case "token map":
            return read_tokens(value, refuse)


def _switch(value: JsonValue, refuse: Callable[[ValueProblem], None]) -> bool:
    if isinstance(value, bool):
        return value
    hint = " (without quotes)" if isinstance(value, str) and value.lower() in {"true", "false"} else ""
    refuse(ValueProblem((), f"must be true or false{hint}, found {kind_of(value)}"))
    return False


def _count(setting: Setting, value: JsonValue, refuse: Callable[[ValueProblem], None]) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        way_out = setting.no_variables if isinstance(value, str) and "${" in value else ""
        wanted = f"must be a whole number, found {kind_of(value)}{_unquote(value)}"
        refuse(ValueProblem((), f"{wanted}; {way_out}" if way_out else wanted))
        return 0
    if not setting.low <= value <= setting.high:
        refuse(ValueProblem((), f"must be from {setting.low:.0f} to {setting.high:.0f} {setting.unit}"))
    return value


def _seconds(
    setting: Setting, value: JsonValue, at: KeyPath, refuse: Callable[[ValueProblem], None]
) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(ValueProblem(at, f"must be a number of seconds, found {kind_of(value)}{_unquote(value)}"))
        return 0.0
    if value < 0 or (value == 0 and not setting.zero) or value > setting.high:
        least = "0 s or more" if setting.zero else "above 0 s"
        refuse(ValueProblem(at, f"must be {least} and at most {setting.high:.0f} s"))
    return float(value)


def _fraction(value: JsonValue, refuse: Callable[[ValueProblem], None]) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        refuse(ValueProblem((), f"must be a number from 0 to 1, found {kind_of(value)}{_unquote(value)}"))
        return 0.0
    if not 0 <= value <= 1:
        refuse(ValueProblem((), "must be from 0 to 1"))
    return float(value)


def _text(setting: Setting, value: JsonValue, at: KeyPath, refuse: Callable[[ValueProblem], None]) -> str:
    if not isinstance(value, str):
        refuse(ValueProblem(at, f"must be text, found {kind_of(value)}{_text_hint(setting, value)}"))
        return ""
    value = dict(setting.spellings).get(value, value)
    if (why := _why_not_text(setting, value)) is not None:
        refuse(ValueProblem(at, why))
    return value


def _why_not_text(setting: Setting, value: str) -> str | None:
    if "\0" in value:
        return "holds a NUL character, which no process can receive"
    if setting.choices and value not in setting.choices:
        allowed = " or ".join(f'"{choice}"' for choice in setting.choices)
        if value in setting.later:
            return f'"{value}" is not supported yet; use {allowed}'
        meant = did_you_mean(value, setting.choices)
        return f"must be {allowed}" + (f'; did you mean "{meant}"?' if meant else "")
    if setting.check is not None and (why := setting.check(value)) is not None:
        return why
    if setting.kind in _TEMPLATES and isinstance(bad := read_template(value), BadTemplate):
        return bad.text
    if setting.kind == "url" and "${" not in value:  # else it is checked when its variables are filled in
        return check_url(value)
    if setting.key in _NEVER_EMPTY and not value.strip():
        return "is empty"
    return None


def _texts(setting: Setting, value: JsonValue, refuse: Callable[[ValueProblem], None]) -> tuple[str, ...]:
    if setting.alone and isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        hint = " (write it in [ ])" if isinstance(value, str) else ""
        refuse(ValueProblem((), f"must be a list of texts, found {kind_of(value)}{hint}"))
        return ()
    return tuple(_text(setting, item, (at,), refuse) for at, item in enumerate(value))


def _template_map(
    setting: Setting, value: JsonValue, refuse: Callable[[ValueProblem], None]
) -> dict[str, str]:
    if not isinstance(value, dict):
        refuse(ValueProblem((), f"must be an object of names and texts, found {kind_of(value)}"))
        return {}
    for name in value:
        if _VARIABLE.fullmatch(name) is None:
            refuse(
                ValueProblem(
                    (name,),
                    "is not the name of an environment variable (letters, digits and _, no digit first)",
                )
            )
    return {name: _text(setting, item, (name,), refuse) for name, item in value.items()}


def _header_map(setting: Setting, value: JsonValue, refuse: Callable[[ValueProblem], None]) -> dict[str, str]:
    if not isinstance(value, dict):
        refuse(ValueProblem((), f"must be an object of names and texts, found {kind_of(value)}"))
        return {}
    seen: set[str] = set()
    for name in value:
        if (why := check_header_name(name)) is not None:
            refuse(ValueProblem((name,), why))
        elif name.lower() in seen:
            refuse(ValueProblem((name,), "is written twice: header names ignore case"))
        seen.add(name.lower())
    return {name: _text(setting, item, (name,), refuse) for name, item in value.items()}


def _seconds_map(
    setting: Setting, value: JsonValue, refuse: Callable[[ValueProblem], None]
) -> dict[str, float]:
    if not isinstance(value, dict):
        refuse(ValueProblem((), f"must be an object of names and seconds, found {kind_of(value)}"))
        return {}
    return {name: _seconds(setting, item, (name,), refuse) for name, item in value.items()}


def read_tokens(value: JsonValue, refuse: Callable[[ValueProblem], None]) -> dict[str, HttpToken] | None:
    """The tokens by name, without those that are refused. None: no token is needed (`false`)."""
    if value is False:
        return None
    if not isinstance(value, dict):
        wanted = "must be an object of names and hashes, or false"
        refuse(ValueProblem((), f"{wanted}, found {kind_of(value)}"))
        return {}
    found: dict[str, HttpToken] = {}
    for name, item in value.items():
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            refuse(ValueProblem((name,), f"must be a name of 1 to {_LONGEST_NAME} printable characters"))
        token = _token(name, item, refuse)
        if token is not None:
            found[name] = token
    return found


def _token(name: str, item: JsonValue, refuse: Callable[[ValueProblem], None]) -> HttpToken | None:
    """One token: its hash, or an object with its hash. None if it is refused."""
    written = item if isinstance(item, dict) else {"hash": item}
    for key in written.keys() - _TOKEN_KEYS:
        meant = did_you_mean(key, _TOKEN_KEYS)
        refuse(ValueProblem((name, key), "unknown key" + (f"; did you mean `{meant}`?" if meant else "")))
    digest, profile, operator = written.get("hash"), written.get("profile", ""), written.get("operator")
    workspaces = written.get("workspaces", ["any"])
    if not isinstance(digest, str) or not _HASH.fullmatch(digest):
        at = (name, "hash") if "hash" in written and written is item else (name,)
        refuse(ValueProblem(at, "must be `sha256:` and 64 hex digits; `carpool token add NAME` writes one"))
    elif not isinstance(profile, str) or ("profile" in written and not profile):
        refuse(ValueProblem((name, "profile"), "must be the name of a profile"))
    elif "operator" in written and not isinstance(operator, bool) and operator != "read":
        refuse(ValueProblem((name, "operator"), 'must be true, false or "read"'))
    elif operator and profile:
        refuse(ValueProblem((name, "operator"), "has no effect together with `profile`, which is for agents"))
    elif not _are_names(workspaces):
        refuse(ValueProblem((name, "workspaces"), "must be a list of names of workspaces, at least one"))
    elif operator and "workspaces" in written:
        why = "has no effect together with `workspaces`, which is for agents"
        refuse(ValueProblem((name, "operator"), why))
    elif (expires := _expiry(written.get("expires"))) is None:
        refuse(ValueProblem((name, "expires"), "must be a date or time in UTC, such as 2027-01-31T00:00:00Z"))
    else:
        right: OperatorRight = "read" if operator == "read" else "full" if operator else ""
        bound_to = tuple(map(str, workspaces)) if "workspaces" in written else ()
        return HttpToken(digest, profile, right, expires, bound_to)
    return None


def _are_names(value: JsonValue) -> TypeGuard[list[str]]:
    """True if the value is a list of texts that are not empty, with at least one of them."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)


def _expiry(value: JsonValue) -> float | None:
    """The time of an ISO 8601 text in seconds since 1970; 0 if there is none; None if it cannot be read."""
    if value is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return None if moment is None else moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    except (ValueError, OverflowError):
        return None


def kind_of(value: JsonValue) -> str:
    """The kind of a value in words for people: `[]` → "a list"."""
    match value:
        case None:
            return "null (leave the key out instead)"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "an object"


def _unquote(value: JsonValue) -> str:
    looks_like_a_number = isinstance(value, str) and re.fullmatch(r"-?[0-9.]{1,20}", value)
    return " (write it without quotes)" if looks_like_a_number else ""


def _text_hint(setting: Setting, value: JsonValue) -> str:
    if isinstance(value, int | float):
        return " (write it in double quotes)"
    if isinstance(value, list) and setting.key == "command":
        return " (the program is `command`, the rest goes into `args`)"
    return ""


_TEMPLATES: Final = frozenset({"template", "templates", "template map", "url", "secret", "header map"})
_NEVER_EMPTY: Final = frozenset({"command", "cwd", "env_file", "tools_file"})
