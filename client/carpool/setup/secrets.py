"""Finds the secrets of a server, and puts references in their place.

Owns where a secret can stand in a server's entry. In a URL the password and parameters with such names are
secrets. It errs on the safe side: a text wrongly taken for a secret still works, it is only kept in another
file. Which name or text is one is told by `secret_texts`. Pure. Knows nothing of: files, programs.
"""

import re
from collections.abc import Callable
from typing import Final

from carpool_protocol.carrier.secret_texts import KNOWN_KEY, is_secret_name, looks_random, looks_secret
from carpool_protocol.config.schema.expand import BadTemplate, VariableReference, read_template
from carpool_protocol.config.text.jsonc import JsonValue

Named = Callable[[str, str], str]
"""Returns the variable that holds a value from now on, from the purpose of the value and the value."""

_PLAIN: Final = frozenset({"true", "false", "null", "none", "yes", "no", "on", "off"})

_USER_INFO = re.compile(r"(?<=://)(?P<user>[^/@:\s?#]*)(?P<colon>:?)(?P<password>[^/@\s?#]*)(?=@)")
_STEP = re.compile(r"(?<=/)[^/?#\s@:]{20,}(?=[/?#]|$)")
_QUERY = re.compile(r"(?P<before>[?&;#](?P<name>[^=&;\s]+)=)(?P<value>[^&;#\s]+)")
_INNER = re.compile(
    r"(?P<before>(?P<quote>\\{0,9}[\"'])(?P<name>[^\"'\\]+)(?P=quote)\s*:\s*(?P=quote))(?P<value>[^\"'\\]+)(?=(?P=quote))"
)
"""Matches a secret in an argument that is JSON or looks like JSON, also in a text within it."""
_SHELL = re.compile(
    r"(?P<before>(?:^|(?<=[\s;&|(]))(?P<name>--?[A-Za-z][\w.-]*(?:=|\s+)|[A-Za-z_][\w.]*=))"
    r"(?P<value>'[^'\n]+'|\"[^\"\n]+\"|[^-\s'\";&|$][^\s'\";&|]*)"
)
"""Matches a secret in a line for a shell: `TOKEN=…`, `--token …`."""
_FLAG = re.compile(r"(?P<before>(?P<name>--?[A-Za-z][\w.-]*)=)(?P<value>.+)", re.DOTALL)
_ASSIGNED = re.compile(r"(?P<before>(?P<name>[A-Za-z_][\w.]*)=)(?P<value>(?!=*\Z).+)", re.DOTALL)
_HEADER = re.compile(r"(?P<before>(?P<name>[A-Za-z][\w-]*):\s*)(?P<value>[^/\s].*)", re.DOTALL)
_ONLY_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_LOGIN: Final = frozenset({"-u", "--user"})
_NAME_AND_PASSWORD = re.compile(r"(?P<before>[^:\s]+:)(?P<value>\S*[^\d\s]\S*)")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token|ApiKey|Api-Key|Digest)\s+", re.IGNORECASE)


def without_secrets(server: dict[str, JsonValue], named: Named) -> dict[str, JsonValue]:
    """Return a server in carpool's keys, with `${NAME}` for each secret. References to variables stay."""
    out = dict(server)
    for group in ("env", "headers"):
        held = out.get(group)
        if isinstance(held, dict):
            out[group] = {
                key: with_references(value, key, named, sure=is_secret_name(key))
                if isinstance(value, str)
                else value
                for key, value in held.items()
            }
    oauth = out.get("oauth")
    if isinstance(oauth, dict):
        out["oauth"] = {
            key: with_references(value, key, named, sure=True)
            if isinstance(value, str) and is_secret_name(key)
            else value
            for key, value in oauth.items()
        }
    for key in ("url", "command"):
        if isinstance(value := out.get(key), str):
            out[key] = with_references(value, key, named)
    if isinstance(args := out.get("args"), list):
        out["args"] = _arguments(args, named)
    return out


def secrets_of(servers: dict[str, JsonValue]) -> set[str]:
    """Return every secret of servers in a program's own keys, also of those that are not moved."""
    found: set[str] = set()

    def named(_purpose: str, value: str) -> str:
        found.add(value)
        return "_"

    for each in servers.values():
        if not isinstance(each, dict):
            continue
        for ours, theirs in _SPELLINGS.items():
            for key in theirs:
                without_secrets({ours: each.get(key)}, named)
        held = each.get("command")
        without_secrets({"args": held if isinstance(held, list) else []}, named)
    return found


_SPELLINGS: Final = {
    "env": ("env", "environment"),
    "headers": ("headers", "http_headers"),
    "args": ("args",),
    "url": ("url", "serverUrl", "httpUrl"),
    "command": ("command",),
    "oauth": ("oauth", "auth"),
}


def _arguments(args: list[JsonValue], named: Named) -> list[JsonValue]:
    out: list[JsonValue] = []
    flag = ""
    """A flag whose value is the next argument."""
    for each in args:
        if not isinstance(each, str):
            out.append(each)
            continue
        login = _NAME_AND_PASSWORD.fullmatch(each) if flag in _LOGIN else None
        if login is not None:
            out.append(login["before"] + with_references(login["value"], "password", named, sure=True))
        elif flag and flag not in _LOGIN and not each.startswith("-"):
            out.append(with_references(each, flag, named, sure=True))
        else:
            out.append(_argument(each, named))
        flag = each if _ONLY_FLAG.fullmatch(each) and (is_secret_name(each) or each in _LOGIN) else ""
    return out


def _argument(text: str, named: Named) -> str:
    for form in (_FLAG, _ASSIGNED, _HEADER):
        found = form.fullmatch(text)
        if found is not None:
            # `--header=X-Key: value` is a header within a flag.
            if (
                form is not _HEADER
                and _HEADER.fullmatch(found["value"])
                and not is_secret_name(found["name"])
            ):
                return found["before"] + _argument(found["value"], named)
            sure = is_secret_name(found["name"])
            if sure or form is not _HEADER:
                return found["before"] + with_references(found["value"], found["name"], named, sure=sure)
    return with_references(text, "arg", named)


def with_references(text: str, purpose: str, named: Named, *, sure: bool = False) -> str:
    """Return a template with references for its secrets. `sure`: its purpose says that it is a secret."""
    parts = read_template(text)
    if isinstance(parts, BadTemplate) or not text:
        return text
    if any(isinstance(part, VariableReference) for part in parts):
        # Beside a reference only what shows itself; the rest may be the scheme, or a name.
        return _within(text, purpose, named)
    scheme = _SCHEME.match(text)
    head, value = (scheme.group(), text[scheme.end() :]) if scheme else ("", text)
    if value.lower() not in _PLAIN and value and (sure or scheme or looks_secret(value)):
        return head + _reference(value, purpose, named)
    return _within(text, purpose, named)


def _within(text: str, purpose: str, named: Named) -> str:
    """Return a longer text with the secrets inside it replaced."""

    def user_info(found: re.Match[str]) -> str:
        user, colon, password = found["user"], found["colon"], found["password"]
        if colon and password and "${" not in password:
            return f"{user}:{_reference(password, purpose + '_password', named)}"
        if not colon and looks_secret(user):
            return _reference(user, purpose + "_user", named)
        return found.group()

    def pair(found: re.Match[str]) -> str:
        value = found["value"]
        if "${" in value or not (is_secret_name(found["name"]) or looks_secret(value)):
            return found.group()
        return found["before"] + _reference(value, found["name"], named)

    def said(found: re.Match[str]) -> str:
        name, value = found["name"].rstrip("= \t"), found["value"]
        quote = value[0] if value[0] in "'\"" else ""
        plain = value.strip(quote) if quote else value
        if not is_secret_name(name) or "${" in plain or plain.startswith("$") or plain.lower() in _PLAIN:
            return found.group()
        return found["before"] + quote + _reference(plain, name, named) + quote

    def known(found: re.Match[str]) -> str:
        if not any(each.isdigit() for each in found.group()):
            return found.group()
        return _reference(found.group(), purpose, named)

    def step(found: re.Match[str]) -> str:
        value = found.group()
        return _reference(value, purpose, named) if "${" not in value and looks_random(value) else value

    text = _USER_INFO.sub(user_info, text)
    text = _STEP.sub(step, text) if "://" in text else text
    text = _INNER.sub(pair, _QUERY.sub(pair, text))
    text = _SHELL.sub(said, text) if " " in text else text
    parts = re.split(r"(\$\{[^}]*\})", text)  # what is a reference by now stays one
    return "".join(part if part.startswith("${") else KNOWN_KEY.sub(known, part) for part in parts)


def _reference(value: str, purpose: str, named: Named) -> str:
    return "${" + named(purpose, value.replace("$${", "${")) + "}"
