"""Converts one server of another program to a server of carpool, or gives the reason why it stays.

Owns the decision which servers are taken over. A server is moved only if carpool runs it as the program
does. It stays if it has an unknown key, a value that the program would ask for, or a secret that cannot be
kept. The program's form is read by the tables of `config.foreign`, and the result is checked as strictly as
carpool's own file. Pure. Knows nothing of: files, names that are taken already.
"""

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from carpool.setup.client_files import CLAUDE_CODE, McpClient
from carpool.setup.secret_variables import CannotKeepError, variable_name
from carpool.setup.secrets import without_secrets
from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.carrier.secret_texts import is_secret_name
from carpool_protocol.config.foreign.formats import UNREAD_KEYS, is_own_entry
from carpool_protocol.config.reading.parse import SERVERS, read_config
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import ConfigProblem, shorten
from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_name_resolver import check_server_name, safe_server_name

_HOLDERS: Final = {"plain": "mcpServers", "codex": "mcpServers", "vscode": "servers", "opencode": "mcp"}
_FIRST: Final = ("command", "args", "url", "transport", "headers", "env", "cwd")
_NOTHING: Final[dict[str, JsonValue]] = {"disabled": False, "env": {}, "headers": {}, "args": []}
_PROGRAMS_OWN = re.compile(
    r"\$\{(input:|command:|config:|workspaceFolderBasename|workspaceFolder:|(?:relativeF|f)ile[A-Z}]|lineNumber|selectedText"
    r"|execPath|defaultBuildTask)"
)
"""Matches variables of VS Code and its relatives that carpool has no equal for."""
_PLACE = re.compile(r"^[^:]*:[0-9]+: (?:(?:mcpServers|servers|mcp)\.[^ ]+: )?")
_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]+")
_RELATIVE = re.compile(r"(?:\.{1,2}|\.{1,2}/.*|[\w.-]+/[\w./-]*\.(?:py|js|mjs|cjs|ts|sh|rb|jar))")
"""Matches a path that has a meaning only in the directory of a project."""

_RELATIVE_DIRECTORY = re.compile(r"(?![/~]|\$\{).+", re.DOTALL)

_VALUE_OF_FLAG = re.compile(r"(?P<flag>--?[A-Za-z][\w.-]*=)?\$\{CARPOOL_\w+\}")
_PASSWORD = re.compile(r"(?:--?[A-Za-z][\w.-]*=)?[a-z][a-z0-9+.-]*://[^$/?#]*:\$\{CARPOOL_\w+\}@[^$]*")
"""Matches the password of a URL."""
_APPROVAL: Final = "default_tools_approval_mode"
"""A key of a server of Codex: the tools that the program asks for. It holds for the program's own entries."""
_WORD = re.compile(r"[\w.:/@+=~%,?&-]+", re.ASCII)


class Converted(Struct, frozen=True):
    """A server in carpool's keys, with references in place of its secrets."""

    name: str
    server: dict[str, JsonValue]
    notes: tuple[str, ...] = ()


class NotConverted(Struct, frozen=True):
    """The reason why a server is left in the program's file."""

    why: str


def convert_server(
    client: McpClient,
    name: str,
    entry: JsonValue,
    variable: Callable[[str, str], str],
    *,
    project: bool,
    remote: bool,
    asked: bool = False,
) -> Converted | NotConverted | None:
    """Convert one entry of the program's table. Returns None if the entry is carpool's own.

    `variable`: returns the name of the variable that holds a secret, from a wished name and the secret;
    `project`: the server is for one project only; `asked`: a stranger wrote the entry, and the user is asked
    if it may run; `remote`: this installation reaches URLs.
    """
    if not isinstance(entry, dict):
        return NotConverted("it is no object")
    if is_own_entry(entry):
        return None
    ours = name if check_server_name(name) is None else safe_server_name(name)
    if (own := _PROGRAMS_OWN.search(json.dumps(entry))) is not None:
        return NotConverted(f"only the program can fill in ${{{own[1]}…}}")
    read = _read(client, ours, entry)
    if isinstance(read, NotConverted):
        return read
    server, notes = read
    if ours != name:
        notes.insert(0, f"was called {shorten(name)}")
    notes += _notes_on_left_behind(client, entry)
    if "url" in server and not remote:
        return NotConverted(f"it has a URL, which needs more than is installed: {install_command('remote')}")
    written = server
    try:
        server = without_secrets(
            written, lambda purpose, value: variable(variable_name(ours, purpose, value), value)
        )
    except CannotKeepError:
        return NotConverted(
            "it has a secret of several lines, which fits into no env_file; put it into a file of its own"
        )
    if asked and not _is_seen(written, server):
        return NotConverted(
            "what looks like a secret is part of what it runs, and that is to be seen before it is trusted; "
            "put it into `env`"
        )
    if not project:
        found = _directory_of_project(client, server)
        if isinstance(found, NotConverted):
            return found
        notes += found
    strict = read_config(json.dumps({SERVERS: {ours: server}}), "carpool.json")
    if strict.config is None:
        return NotConverted(_problem_text(strict.problems[0]))
    return Converted(ours, {key: server[key] for key in sorted(server, key=_place)}, tuple(notes))


def _directory_of_project(client: McpClient, server: dict[str, JsonValue]) -> list[str] | NotConverted:
    """Give a server of the user's a `cwd` if it needs the directory of a project. Returns a note on that."""
    cwd = server.get("cwd")
    if isinstance(cwd, str) and _RELATIVE_DIRECTORY.fullmatch(cwd):
        if client.anywhere:
            return NotConverted(f"its `cwd` is relative, and only {client.title} knows from where")
        below = posixpath.normpath(cwd)
        server["cwd"] = "${workspace}" if below == "." else f"${{workspace}}/{below}"
        return ["runs in each project's directory, because of a relative `cwd`"]
    if client.anywhere or cwd is not None or not _is_relative(server):
        return []
    server["cwd"] = "${workspace}"
    return ["runs in each project's directory, because of a relative path"]


def _notes_on_left_behind(client: McpClient, entry: Mapping[str, JsonValue]) -> list[str]:
    """Return a note on the keys of an entry that carpool does not take over, and on variables that may be
    missing.
    """
    keys = UNREAD_KEYS | _UNREAD_CODEX if client.form == "codex" else UNREAD_KEYS
    left = [f"`{key}`" for key, value in entry.items() if key in keys and value not in _USUAL.get(key, _NONE)]
    notes = []
    if left:
        does, its = ("does", "it") if len(left) == 1 else ("do", "them")
        listed = ", ".join(left[:-1]) + " and " * (len(left) > 1) + left[-1]
        notes.append(
            f"its {listed} {does} not come along: say {its} for the entry of carpool if you need {its}"
        )
    if client.form == "codex" and (passed := _passed_names(entry.get("env_vars"))):
        many = "is" if len(passed) == 1 else "are"
        notes.append(f"{', '.join(passed)} {many} empty for it where {client.title} has no such variable")
    return notes


def _passed_names(value: JsonValue) -> list[str]:
    """Return the names in `env_vars` of Codex: texts, or objects with a name; empty for any other form."""
    if not isinstance(value, list):
        return []
    names = [
        each.get("name") if isinstance(each, dict) and each.get("source", "local") == "local" else each
        for each in value
    ]
    return [each for each in names if isinstance(each, str)] if all(isinstance(n, str) for n in names) else []


def _is_seen(written: Mapping[str, JsonValue], server: Mapping[str, JsonValue]) -> bool:
    """True if the visible text still tells what is run.

    Hidden may be only values of flags whose name says that they are secret, and passwords of URLs; and only
    if a shell reads them as one plain word. A stranger chose the texts, and may have given a command the
    form of a secret.
    """
    if written.get("command") != server.get("command"):
        return False
    said, left = written.get("args"), server.get("args")
    if not isinstance(said, list) or not isinstance(left, list):
        return said == left
    before: JsonValue = None
    for old, new in zip(said, left, strict=True):
        if old != new:
            hidden = _VALUE_OF_FLAG.fullmatch(str(new))
            flag = str((hidden["flag"] or before) if hidden is not None else "").rstrip("=")
            of_flag = flag.startswith("-") and is_secret_name(flag)
            if _WORD.fullmatch(str(old)) is None or not (of_flag or _PASSWORD.fullmatch(str(new))):
                return False
        before = old
    return True


def _read(
    client: McpClient, name: str, entry: dict[str, JsonValue]
) -> tuple[dict[str, JsonValue], list[str]] | NotConverted:
    """Return the entry in carpool's keys, and notes about it."""
    notes = []
    document = {_HOLDERS[client.form]: {name: _in_our_spelling(client, entry)}}
    loaded = read_config(json.dumps(document), client.reads_as or "carpool.json")
    for warning in loaded.warnings:
        if warning.text.startswith("carpool does not know"):
            return NotConverted(warning.text.partition(";")[0].replace("the key", "its key"))
        notes.append(f"timeout {warning.text}")
    if loaded.config is None:
        return NotConverted(_problem_text(loaded.problems[0]))
    if (why := loaded.config.unusable.get(ServerName(name))) is not None:
        return NotConverted(_PLACE.sub("", why))
    server = dict(loaded.written[ServerName(name)])
    for key, plain in _NOTHING.items():
        if server.get(key) == plain:
            del server[key]
    return server, notes


def _problem_text(problem: ConfigProblem) -> str:
    return f"`{problem.where.rpartition('.')[2]}`: {problem.text}"


def _place(key: str) -> int:
    """Return the sort position of a key: the keys that say what is run come first."""
    return _FIRST.index(key) if key in _FIRST else len(_FIRST)


def _is_relative(server: Mapping[str, JsonValue]) -> bool:
    command, args = server.get("command"), server.get("args")
    words = [command] if isinstance(command, str) else []
    words += [each for each in args if isinstance(each, str)] if isinstance(args, list) else []
    return any(_RELATIVE.fullmatch(each) for each in words)


def _in_our_spelling(client: McpClient, entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Translate the keys that `config.foreign` does not know: those of Codex, and one type of Claude Code."""
    if client.form == "codex":
        return _of_codex(entry)
    if client is CLAUDE_CODE and entry.get("type") == "streamable-http":
        return {**entry, "type": "http"}
    return entry


_CODEX: Final = {
    "startup_timeout_sec": "start_s",
    "tool_timeout_sec": "timeout_s",
    "url": "url",
    "command": "command",
    "args": "args",
    "cwd": "cwd",
}
_UNREAD_CODEX: Final = frozenset({"required", "description", "supports_parallel_tool_calls", _APPROVAL})
_NONE: Final[tuple[JsonValue, ...]] = (None, False, "", [], {})
_USUAL: Final[dict[str, tuple[JsonValue, ...]]] = {_APPROVAL: ("auto",)}
"""Values that say nothing: `_NONE`, and those of single keys."""


def _of_codex(entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Translate the keys of `[mcp_servers.NAME]` of Codex to carpool's (https:

    developers.openai.com/codex/mcp).

    An unknown key stays as it is, and the reader of the result refuses it. Values are literal: Codex fills
    in no `${VAR}`.
    """
    out: dict[str, JsonValue] = {}
    env: dict[str, JsonValue] = {}
    headers: dict[str, JsonValue] = {}
    tools: dict[str, JsonValue] = {}
    for key, value in entry.items():
        match key, value:
            case "env", dict():
                env |= {name: _literal(inner) for name, inner in value.items()}
            case "env_vars", list() if len(names := _passed_names(value)) == len(value):
                env |= {each: f"${{{each}:-}}" for each in names}  # Codex leaves out what is not set
            case "http_headers", dict():
                headers |= {name: _literal(inner) for name, inner in value.items()}
            case "env_http_headers", dict():
                headers |= {name: f"${{{inner}}}" for name, inner in value.items()}
            case "bearer_token_env_var", str():
                headers["Authorization"] = f"Bearer ${{{value}}}"
            case "enabled", bool():
                out |= {} if value else {"disabled": True}
            case (("enabled_tools" | "disabled_tools"), list()):
                tools["allow" if key == "enabled_tools" else "deny"] = value
            case _ if key in _CODEX:
                out[_CODEX[key]] = _literal(value)
            case _ if key not in _UNREAD_CODEX:
                out[key] = value
            case _:
                pass
    out |= {"env": env} if env else {}
    out |= {"headers": headers} if headers else {}
    out |= {"tools": tools} if tools else {}
    return out


def _literal(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value.replace("${", "$${") if isinstance(value, str) else value
