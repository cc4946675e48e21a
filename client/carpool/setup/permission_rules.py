"""The rules of other programs that name tools of moved servers, and the new names of these tools.

Owns the places and forms of such rules. Behind carpool a tool has another name, and a rule with the old name
has no effect. No rule is rewritten: a rule that protects a tool is for its author to change, and the
patterns that a version of a program takes are not known here. Pure: the environment and the texts come in.
Knows nothing of: which files exist, how rules are shown.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from carpool.check.names import PREFIXED_CHARS
from carpool.setup.model import MovedServer
from carpool_protocol.config.text.jsonc import JsonValue, parse
from carpool_protocol.wire.tool_name_resolver import SEPARATOR, qualify

Kind = Literal["deny", "ask", "hook", "allow"]
ORDER: Final[tuple[Kind, ...]] = ("deny", "ask", "hook", "allow")
"""The order of rules: those that protect a tool come first."""


class PermissionRule(Struct, frozen=True):
    """One rule, with the name that it has and the name that it would need."""

    path: str
    kind: Kind
    text: str
    needs: str

    @property
    def protects(self) -> bool:
        """True if the rule protects a tool, which is unprotected once it has another name."""
        return self.kind != "allow"


class PermissionFile(Struct, frozen=True):
    """A file that may hold rules."""

    client: str
    """The program, as for `--client`."""
    path: str


def rule_files(environ: Mapping[str, str], home: str, platform: str, project: str) -> list[PermissionFile]:
    """Return every file that may hold rules."""

    def told(name: str, otherwise: str) -> str:
        said = environ.get(name, "")
        return said if os.path.isabs(said) else os.path.join(home, otherwise)

    managed = "/Library/Application Support/ClaudeCode" if platform == "darwin" else "/etc/claude-code"
    claude, gemini = told("CLAUDE_CONFIG_DIR", ".claude"), told("GEMINI_CLI_HOME", "")
    opencode = os.path.join(told("XDG_CONFIG_HOME", ".config"), "opencode")
    places = [
        ("claude-code", managed, "managed-settings.json"),
        ("claude-code", claude, "settings.json"),
        ("claude-code", told("CLAUDE_CONFIG_DIR", ""), ".claude.json"),
        ("cursor", home, ".cursor/cli-config.json"),
        ("cursor", home, ".cursor/permissions.json"),
        ("gemini", gemini, ".gemini/settings.json"),
        ("opencode", opencode, "opencode.json"),
        ("opencode", opencode, "opencode.jsonc"),
    ]
    if project and os.path.normpath(project) != os.path.normpath(home):
        places += [
            ("claude-code", project, ".claude/settings.json"),
            ("claude-code", project, ".claude/settings.local.json"),
            ("cursor", project, ".cursor/cli.json"),
            ("gemini", project, ".gemini/settings.json"),
            ("opencode", project, "opencode.json"),
            ("opencode", project, "opencode.jsonc"),
        ]
    return [PermissionFile(client, os.path.join(*where)) for client, *where in places]


def rules(file: PermissionFile, text: str, moved: Sequence[MovedServer]) -> list[PermissionRule]:
    """Return the rules of a file that name tools of moved servers. A broken file has none."""
    value = parse(text, file.path).value
    names = {each.was: each.name for each in moved if each.client_id == file.client}
    if not isinstance(value, dict) or not names:
        return []
    found = dict.fromkeys(
        PermissionRule(file.path, kind, said, needs)
        for kind, said, needs in _READERS[file.client](value, _ServerNames(names))
    )
    return sorted(found, key=lambda each: ORDER.index(each.kind))


class _ServerNames:
    """The moved servers, by their old and their new names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names
        self._spelled = {re.sub(r"[^A-Za-z0-9_-]", "_", was): now for was, now in names.items()}

    def server(self, was: str) -> str | None:
        """Return carpool's name for the server with this old name."""
        return self._names.get(was)

    def tool(self, said: str, joint: str) -> str | None:
        """Return carpool's name or pattern for the text of a rule.

        The text is `SERVER` alone, or `SERVER`, joint, and tool or pattern.
        """
        for was in sorted({*self._names, *self._spelled}, key=len, reverse=True):
            now = self._names.get(was) or self._spelled[was]
            if said in {was, f"{was}{joint}"}:
                return f"{now}{SEPARATOR}*"
            if said.startswith(f"{was}{joint}"):
                tool = said[len(was) + len(joint) :]
                plain = re.fullmatch(r"[\w./-]+", tool) is not None
                return qualify(now, tool, most=PREFIXED_CHARS) if plain else f"{now}{SEPARATOR}{tool}"
        return None

    def within(self, pattern: str, before: str) -> str | None:
        """Return carpool's form of a regular expression that has a server's name behind `before`."""
        for was in sorted(self._spelled, key=len, reverse=True):
            old = re.compile(rf"{re.escape(before + was)}(?![A-Za-z0-9-])")
            if old.search(pattern):
                return old.sub(f"{before}carpool__{self._spelled[was]}", pattern)
        return None


_Found = Iterator[tuple[Kind, str, str]]


def _texts(value: Any, *path: str) -> list[str]:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _prefixed(  # noqa: PLR0917 - one form of rule, spelled out
    kind: Kind, texts: Sequence[str], names: _ServerNames, before: str, joint: str, ours: str, end: str = ""
) -> _Found:
    """Yield the rules of the form `before`, server, `joint`, tool, `end`.

    The new name has `ours` in place of `before`.
    """
    for said in texts:
        if said.startswith(before) and said.endswith(end):
            inner = said[len(before) : len(said) - len(end)]
            if (name := names.tool(inner, joint)) is not None:
                yield kind, said, f"{ours}{name}{end}"


def _switched_off(kind: Kind, texts: Sequence[str], names: _ServerNames) -> _Found:
    """Yield the rules of lists that name whole servers."""
    for said in texts:
        if (name := names.server(said)) is not None:
            yield kind, said, f"carpool disable {name}" if kind == "deny" else "carpool"


def _claude_code(value: dict[str, JsonValue], names: _ServerNames) -> _Found:
    for kind in ORDER:
        texts = _texts(value, "permissions", kind)
        yield from _prefixed(kind, texts, names, "mcp__", "__", "mcp__carpool__")
    hooks = value.get("hooks")
    for each in hooks.values() if isinstance(hooks, dict) else ():
        for hook in each if isinstance(each, list) else ():
            matcher = hook.get("matcher") if isinstance(hook, dict) else None
            if isinstance(matcher, str) and (needs := names.within(matcher, "mcp__")) is not None:
                yield "hook", matcher, needs
    for key, which in _MANAGED:
        held = value.get(key)
        entries = [each for each in held if isinstance(each, dict)] if isinstance(held, list) else []
        said = [name for each in entries if isinstance(name := each.get("serverName"), str)]
        yield from _switched_off(which, said, names)
    projects = value.get("projects")
    for held in (value, *(projects.values() if isinstance(projects, dict) else ())):
        yield from _prefixed("allow", _texts(held, "allowedTools"), names, "mcp__", "__", "mcp__carpool__")
        for key in ("disabledMcpServers", "disabledMcpjsonServers"):
            yield from _switched_off("deny", _texts(held, key), names)


def _cursor(value: dict[str, JsonValue], names: _ServerNames) -> _Found:
    for kind in ORDER:
        yield from _prefixed(
            kind, _texts(value, "permissions", kind), names, "Mcp(", ":", "Mcp(carpool:", ")"
        )
    yield from _prefixed("allow", _texts(value, "mcpAllowlist"), names, "", ":", "carpool:")


def _gemini(value: dict[str, JsonValue], names: _ServerNames) -> _Found:
    yield from _switched_off(
        "deny", [*_texts(value, "mcp", "excluded"), *_texts(value, "excludeMCPServers")], names
    )
    yield from _switched_off(
        "allow", [*_texts(value, "mcp", "allowed"), *_texts(value, "allowMCPServers")], names
    )
    tools: list[tuple[Kind, list[str]]] = [
        ("deny", [*_texts(value, "tools", "exclude"), *_texts(value, "excludeTools")]),
        ("allow", [*_texts(value, "tools", "allowed"), *_texts(value, "allowedTools")]),
        ("allow", [*_texts(value, "tools", "core"), *_texts(value, "coreTools")]),
    ]
    for kind, texts in tools:
        yield from _prefixed(kind, texts, names, "mcp_", "_", "mcp_carpool_")
        yield from _prefixed(kind, texts, names, "", "__", "carpool__")


def _opencode(value: dict[str, JsonValue], names: _ServerNames) -> _Found:
    agents = value.get("agent")
    for held in (value, *(agents.values() if isinstance(agents, dict) else ())):
        for key in ("tools", "permission"):
            said = held.get(key) if isinstance(held, dict) else None
            for pattern, answer in said.items() if isinstance(said, dict) else ():
                kind = _ANSWERS.get(str(answer).lower())
                if kind is not None:
                    yield from _prefixed(kind, [pattern], names, "", "_", "carpool_")


_MANAGED: Final[tuple[tuple[str, Kind], ...]] = (("deniedMcpServers", "deny"), ("allowedMcpServers", "allow"))
_ANSWERS: Final[dict[str, Kind]] = {
    "false": "deny",
    "deny": "deny",
    "ask": "ask",
    "true": "allow",
    "allow": "allow",
}
_READERS: Final[dict[str, Callable[[dict[str, JsonValue], _ServerNames], _Found]]] = {
    "claude-code": _claude_code,
    "cursor": _cursor,
    "gemini": _gemini,
    "opencode": _opencode,
}
