"""Rewrites another program's file in carpool's keys and keeps the line of every key.

Owns the application of the tables in `formats`. The result has the form of carpool's own file and `parse`
reads it as one; `spelled` gives the path in the original file, for problems. Invariants: any value gives a
result, never an exception; no warning quotes a value.

Pure. Knows nothing of: accepted values of carpool's settings, the spelling of single values (`values`).
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from carpool_protocol.config.foreign.formats import (
    COMMAND_TRANSPORTS,
    OAUTH,
    REMOTE_TRANSPORTS,
    UNSUPPORTED_TRANSPORTS,
    FileShape,
    ForeignProgram,
    KeyMapping,
    is_own_entry,
)
from carpool_protocol.config.foreign.values import (
    environment_texts,
    names_a_file,
    split_command,
    with_our_variables,
)
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import ConfigProblem, KeyPath, render_path, shorten
from carpool_protocol.wire.tool_name_resolver import check_server_name, safe_server_name, safe_server_names

SERVERS: Final = "mcpServers"
_UNLIMITED: Final = 1_000_000
"""The largest value of `restart.give_up_after`."""
_MILLISECONDS: Final = 1000
_TOTAL_S: Final = 1800
"""The default of `max_total_s`. A longer `timeout` would be refused without raising it."""

NO_WEBSOCKET: Final = "is a WebSocket, which carpool does not support; does the server have another URL?"
_SIMPLE_PROVIDER: Final = "dynamic_discovery"
"""The only `authProviderType` of Gemini CLI that is plain OAuth."""


class Translated(Struct, frozen=True):
    """A file in carpool's form."""

    value: dict[str, JsonValue]
    lines: dict[KeyPath, int]
    spelled: dict[KeyPath, KeyPath]
    """Carpool's path → path in the file. For a path that is not here, the nearest one around it counts."""
    problems: list[ConfigProblem]
    warnings: list[ConfigProblem]
    unusable: dict[str, tuple[KeyPath, str]]
    """Servers that cannot be run as they are written: the place in carpool's form, and the reason."""


def translate(
    value: JsonValue,
    lines: dict[KeyPath, int],
    file: str,
    shape: FileShape,
    *,
    program: ForeignProgram | None,
    ours: frozenset[str],
) -> Translated:
    """Rewrite a file in carpool's keys. `ours`: carpool's own top-level keys of a server.

    `program`: None if the file is carpool's own; its unknown keys then stay, so that `parse` refuses them.
    """
    return _Translation(lines, file, shape, program, ours).run(value)


class _Translation:
    def __init__(
        self,
        lines: dict[KeyPath, int],
        file: str,
        shape: FileShape,
        program: ForeignProgram | None,
        ours: frozenset[str],
    ) -> None:
        self.before = lines
        self.file = file
        self.shape = shape
        self.program = program
        self.ours = ours
        self.unit = shape.unit if shape.unit or program is None else program.unit
        self.out: dict[str, JsonValue] = {}
        self.lines: dict[KeyPath, int] = {(): lines[()]}
        self.spelled: dict[KeyPath, KeyPath] = {}
        self.problems: list[ConfigProblem] = []
        self.warnings: list[ConfigProblem] = []
        self.warned: set[str] = set()
        self.unusable: dict[str, tuple[KeyPath, str]] = {}
        self.below: dict[KeyPath, list[KeyPath]] = {}
        depth = len(shape.holders) + 2
        for path in lines:
            if len(path) >= depth:
                self.below.setdefault(path[:depth], []).append(path)

    def run(self, value: JsonValue) -> Translated:
        container: JsonValue = value
        path: KeyPath = ()
        for key in self.shape.holders:
            assert isinstance(container, dict)  # `shape_of` has checked this
            self.translate_settings(path, container, key)
            path = (*path, key)
            container = container[key]
        self.record_spelling((SERVERS,), path)
        servers: dict[str, JsonValue] = {}
        first: dict[str, KeyPath] = {}
        entries = list(self.server_entries(container, path))
        if self.program is not None:  # its own entry is how that program reaches carpool
            entries = [each for each in entries if not is_own_entry(each[2])]
        safe = safe_server_names(name for name, _, _ in entries)
        for name, at, entry in entries:
            if name in first:
                why = (
                    f"the name is used twice, also on line {self.before[first[name]]}; give one another name"
                )
                self.add_problem(at, why)
                continue
            first[name] = at
            called = self.server_name(name, at, safe[name])
            self.record_spelling((SERVERS, called), at)
            servers[called] = (
                _ServerTranslation(self, called, at, entry).run() if isinstance(entry, dict) else entry
            )
        if isinstance(container, dict | list):
            self.out[SERVERS] = servers
        return Translated(self.out, self.lines, self.spelled, self.problems, self.warnings, self.unusable)

    def server_name(self, name: str, at: KeyPath, safe: str) -> str:
        """The name of a server in carpool. An illegal name of another program becomes the nearest legal one,
        `safe`.

        An illegal name in carpool's own file stays and becomes a problem.
        """
        if self.program is None or safe == name:
            return name
        nearest = safe_server_name(name)
        more = "" if safe == nearest else f"; {nearest} would be another server of this file as well"
        self.add_warning(at, f"name {name}", f"{check_server_name(name)} Carpool calls it {safe}{more}.")
        return safe

    def translate_settings(self, path: KeyPath, container: dict[str, JsonValue], holder: str) -> None:
        """Handle the keys beside the servers: settings of the program, carpool's own, or unknown ones."""
        known = self.shape.beside
        if path or known is None or (self.program is not None and self.program.holds_more):
            return
        for key, inner in container.items():
            if key == holder or key in known or key == "$schema":
                continue
            if self.program is None:
                self.out[key] = inner
                for each in self.before:
                    if each[:1] == (key,):
                        self.record_spelling(each, each)
            else:
                self.add_warning((key,), key)

    def server_entries(self, container: JsonValue, path: KeyPath) -> Iterator[tuple[str, KeyPath, JsonValue]]:
        """Every server: its name, its path in the file, its entry."""
        if isinstance(container, dict):
            for key, inner in container.items():
                yield key, (*path, key), inner
        elif isinstance(container, list):
            for at, entry in enumerate(container):
                name = entry.get("name") if isinstance(entry, dict) else None
                if isinstance(name, str):
                    yield name, (*path, at), entry
                else:
                    self.add_problem((*path, at), 'must be an object with a "name"')
        else:
            self.add_problem(path, "must be an object of names and servers, or a list of servers with names")

    # --- where things stand ----------------------------------------------------------------------------

    def copy_lines(self, ours: KeyPath, source: KeyPath) -> None:
        """Copy the lines of a path and of everything inside it."""
        self.record_spelling(ours, source)
        depth = len(source)
        for path in self.below.get(source[: len(self.shape.holders) + 2], ()):
            if len(path) > depth and path[:depth] == source:
                self.record_spelling((*ours, *path[depth:]), path)

    def record_spelling(self, ours: KeyPath, source: KeyPath) -> None:
        at = source
        while at not in self.before:
            at = at[:-1]
        self.lines[ours] = self.before[at]
        self.spelled[ours] = source

    def add_problem(self, source: KeyPath, text: str) -> None:
        self.problems.append(ConfigProblem(self.file, self.before[source], render_path(source), text))

    def add_warning(self, source: KeyPath, key: str, text: str = "") -> None:
        """Add a warning, once for each key, for any number of servers."""
        if key in self.warned:
            return
        self.warned.add(key)
        why = text or f"carpool does not know the key {shorten(key)}; it is ignored"
        self.warnings.append(ConfigProblem(self.file, self.before[source], render_path(source), why))


class _ServerTranslation:
    """The translation of one server into carpool's keys."""

    def __init__(self, file: _Translation, name: str, at: KeyPath, entry: dict[str, JsonValue]) -> None:
        self.file = file
        self.mappings = file.shape.mappings
        self.name = name
        self.base: KeyPath = (SERVERS, name)
        self.at = at
        # Programs that write their models whole put `null` for what is not set.
        self.entry: dict[str, JsonValue] = {key: value for key, value in entry.items() if value is not None}
        self.found: dict[str, JsonValue] = {}

    def run(self) -> dict[str, JsonValue]:
        """The server in carpool's keys."""
        for key, value in self.entry.items():
            mapping = self.mappings.get(key)
            if self.file.shape.braces and names_a_file(value):
                self.mark_unusable(
                    (*self.at, key), "`{file:…}` is a file that carpool does not read; write `{env:VAR}`"
                )
            if mapping is not None:
                self.convert(key, mapping, value)
            elif key in self.file.ours or self.file.program is None:  # carpool's own file is strict
                self.found[key] = value
                self.file.copy_lines((*self.base, key), (*self.at, key))
            else:
                self.file.add_warning((*self.at, key), key)
        for key, value in self.entry.items():  # after an own `restart` object, so that its keys stay
            mapping = self.mappings.get(key)
            if mapping is not None and mapping.conversion in {"reconnect", "attempts"}:
                self.convert_failures(key, mapping, value)
        self.read_transport()
        self.command_line()
        return self.found

    def convert(self, key: str, mapping: KeyMapping, value: JsonValue) -> None:
        source: KeyPath = (*self.at, key)
        match mapping.conversion:
            case "same":
                self.set_key(mapping.key, self.rewritten(value), source)
            case "texts":
                self.set_key(mapping.key, self.rewritten(environment_texts(value)), source)
            case "opposite":
                if isinstance(value, bool):
                    self.set_key(mapping.key, not value, source)
                else:
                    self.mark_unusable(source, f"`{key}` must be true or false")
            case "time":
                self.convert_timeout(source, value)
            case "url" | "http url" | "oauth" | "cannot":
                self.convert_url_key(key, mapping, value)
            case "command" | "transport" | "reconnect" | "attempts" | "unread":
                pass  # the others are handled in passes of their own

    def convert_failures(self, key: str, mapping: KeyMapping, value: JsonValue) -> None:
        """Convert keys that say how often the server is restarted."""
        source: KeyPath = (*self.at, key)
        match mapping.conversion:
            case "reconnect":
                if value is False:
                    self.set_key(mapping.key, 1, source, keep=True)
                    self.set_key(
                        "restart.open_s", 0, source, keep=True
                    )  # else carpool would try again after a pause
                elif value is not True:
                    self.mark_unusable(source, f"`{key}` must be true or false")
            case "attempts":
                if isinstance(value, int) and not isinstance(value, bool):
                    failures = _UNLIMITED if value < 0 else min(value + 1, _UNLIMITED)
                    self.set_key(mapping.key, failures, source, keep=True)
                else:
                    self.mark_unusable(source, f"`{key}` must be a whole number")
            case _:
                pass

    def convert_url_key(self, key: str, mapping: KeyMapping, value: JsonValue) -> None:
        """Convert keys of servers over a URL."""
        source: KeyPath = (*self.at, key)
        match mapping.conversion:
            case "url":
                self.set_key(mapping.key, self.rewritten(value), source, keep=True)
            case "http url":  # Gemini CLI prefers it to `url`
                self.set_key(mapping.key, self.rewritten(value), source)
                self.set_key("transport", "http", source)
            case "oauth":
                self.convert_oauth(source, value)
            case "cannot":
                if value != _SIMPLE_PROVIDER:
                    self.mark_unusable(
                        source, f"carpool does not support `{key}`; write `headers` or `oauth`"
                    )
            case _:
                pass

    def convert_timeout(self, source: KeyPath, value: JsonValue) -> None:
        """Convert `timeout`: a call ends after this long without progress."""
        if self.file.unit is None:
            self.file.add_warning(
                source, "timeout", "is ignored because its unit is not known; write `timeout_s`, in seconds"
            )
            return
        seconds = value
        if self.file.unit == "ms" and isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value / _MILLISECONDS
        elif self.file.unit == "ms" and isinstance(value, str):
            self.mark_unusable(source, "`timeout` is milliseconds and must be a number; or write `timeout_s`")
            return
        self.set_key("timeout_s", seconds, source)
        if isinstance(seconds, int | float) and seconds > _TOTAL_S:
            self.set_key("max_total_s", seconds, source, keep=True)

    def convert_oauth(self, source: KeyPath, value: JsonValue) -> None:
        """Convert the OAuth settings. `false` (no OAuth) needs no equivalent: `headers` or the server
        decide.
        """
        if not isinstance(value, dict):
            return
        for key, inner in value.items():
            ours = OAUTH.get(key)
            if ours is None:
                self.file.add_warning((*source, key), key)
            else:
                converted: JsonValue = inner
                if key == "scope" and isinstance(inner, str):
                    converted = [*inner.split()]
                self.set_key(f"oauth.{ours}", self.rewritten(converted), (*source, key))

    def read_transport(self) -> None:
        """Convert the transport, if it is written."""
        for key, value in self.entry.items():
            mapping = self.mappings.get(key)
            if mapping is None or mapping.conversion != "transport" or not isinstance(value, str):
                continue
            ours = REMOTE_TRANSPORTS.get(value, value)
            if value in UNSUPPORTED_TRANSPORTS:
                self.mark_unusable((*self.at, key), NO_WEBSOCKET)
            elif value not in COMMAND_TRANSPORTS:
                ours = "url" if ours == "http" and self.file.shape.either else ours
                self.set_key("transport", ours, (*self.at, key), keep=True)
            return

    def command_line(self) -> None:
        """Convert the command. A `command` that is a list also holds the first arguments."""
        if "command" in self.entry:
            command = self.entry["command"]
            first: list[JsonValue] = []
            if isinstance(command, list) and command:
                first = command[1:]
                command = command[0]
            elif isinstance(command, str) and self.file.shape.words and "args" not in self.entry:
                command, first = split_command(command)
            self.set_key("command", self.rewritten(command), (*self.at, "command"))
            if first or "args" in self.entry:
                rest = self.entry.get("args", [])
                whole: JsonValue = [*first, *rest] if isinstance(rest, list) else rest
                source = "args" if "args" in self.entry else "command"
                self.set_key("args", self.rewritten(whole), (*self.at, source))
        elif "args" in self.entry:
            self.set_key("args", self.rewritten(self.entry["args"]), (*self.at, "args"))

    def rewritten(self, value: JsonValue) -> JsonValue:
        program = self.file.program
        dollars = program is not None and program.dollars
        return with_our_variables(value, braces=self.file.shape.braces, dollars=dollars)

    def set_key(self, key: str, value: JsonValue, source: KeyPath, *, keep: bool = False) -> None:
        """Set one of carpool's keys. `keep`: leave an existing value."""
        group, _, name = key.rpartition(".")
        holder = self.found
        path = self.base
        if group:
            path = (*self.base, group)
            inner = self.found.setdefault(group, {})
            if not isinstance(inner, dict):
                return  # `parse` refuses it
            holder = inner
            if path not in self.file.lines:
                self.file.record_spelling(path, source)
        if keep and name in holder:
            return
        holder[name] = value
        self.file.copy_lines((*path, name), source)

    def mark_unusable(self, source: KeyPath, text: str) -> None:
        """Mark the server as impossible to run as written. The first reason counts."""
        ours: KeyPath = (*self.base, *source[len(self.file.shape.holders) + 1 :])
        if ours not in self.file.lines:
            self.file.record_spelling(ours, source)
        self.file.unusable.setdefault(self.name, (ours, text))
