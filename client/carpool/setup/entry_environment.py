"""The environment in carpool's entry in a program's file: places of carpool's files, variables of servers.

Owns which of the two an entry needs, and how it is written for each program. A program may pass few variables
of its own environment to the programs that it starts, so that `carpool connect` would find other files than
the user's shell, and servers would miss their variables. Example for Codex, whose servers use `${TOKEN}`,
with `XDG_CONFIG_HOME` set: `env = {XDG_CONFIG_HOME = "/c"}` and `env_vars = ["TOKEN"]`.

Pure except for `non_default_places`, which looks at directories. Knows nothing of: the texts of files, the
rest of an entry.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct

from carpool.setup.client_files import McpClient
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.paths import CONFIG_VARIABLE
from carpool_protocol.config.foreign.formats import is_own_entry
from carpool_protocol.config.reading.load import find_config_file
from carpool_protocol.config.schema.expand import PLACE_NAMES, references
from carpool_protocol.config.text.jsonc import JsonValue

PLACE_VARIABLES: Final = (
    CONFIG_VARIABLE,
    paths.RUNTIME_VARIABLE,
    paths.STATE_VARIABLE,
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "XDG_STATE_HOME",
)
"""Variables that decide where carpool's files are (docs/files.md)."""

_ALWAYS_PASSED: Final = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "USER", *PLACE_NAMES})
"""Variables that every program passes on, and names that are no variables."""


class EntryEnvironment(Struct, frozen=True):
    """The environment that an entry needs."""

    places: Mapping[str, str] = {}
    variables: tuple[str, ...] = ()
    """Variables that servers use and that the program would keep to itself."""


def non_default_places(environ: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return the variables without which carpool would use other files, with absolute values."""
    wished = _places(environ, uid)
    kept = dict(environ)
    for name in PLACE_VARIABLES:
        less = {key: value for key, value in kept.items() if key != name}
        if _places(less, uid) == wished:
            kept = less
    return {
        name: os.path.abspath(os.path.expanduser(kept[name])) for name in PLACE_VARIABLES if kept.get(name)
    }


def _places(environ: Mapping[str, str], uid: int) -> tuple[str, ...]:
    runtime = paths.runtime_dir(environ, uid)
    state = paths.state_dir(environ, runtime)
    return find_config_file(environ).path, runtime, state, paths.state_home(environ)


def writable_places(places: Mapping[str, str]) -> dict[str, str]:
    """Return the places that an entry can hold: some programs would take `$` or `{` for a variable."""
    return {name: value for name, value in places.items() if not set(value) & set("${")}


def used_variables(server: JsonValue) -> set[str]:
    """Return the variables to which the texts of a server in carpool's keys refer."""
    return {name for text in _texts(server) for name in references(text)} - _ALWAYS_PASSED


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def is_connect_entry(entry: JsonValue) -> bool:
    """True for an entry that runs `carpool connect`; one with `carpool run` is the user's own affair."""
    return is_own_entry(entry) and "connect" in set(_texts(entry))


def with_environment(
    client: McpClient, entry: dict[str, JsonValue], wished: EntryEnvironment
) -> dict[str, JsonValue]:
    """Return an entry with this environment. Other variables that it has already stay."""
    key = "environment" if client.form == "opencode" else "env"
    there = entry.get(key)
    held: dict[str, JsonValue] = dict(there) if isinstance(there, dict) else {}
    env = {**held, **wished.places}
    out = dict(entry)
    if client.variables_in == "env_vars":
        named = entry.get("env_vars")
        listed: list[JsonValue] = [*named] if isinstance(named, list) else []
        more = [each for each in wished.variables if each not in _names(listed) and each not in env]
        if more:
            out["env_vars"] = [*listed, *more]
    elif client.variables_in:
        env |= {each: client.variables_in.format(each) for each in wished.variables if each not in env}
    if env != held:
        out[key] = env
    return out


def _names(listed: Collection[JsonValue]) -> set[JsonValue]:
    """Return the names in `env_vars` of Codex: texts, or objects with a name."""
    named = {each.get("name") if isinstance(each, dict) else each for each in listed}
    return {each for each in named if isinstance(each, str)}


def other_places(client: McpClient, entry: JsonValue, places: Mapping[str, str]) -> list[str]:
    """Return the places that an entry names and that setup itself would not find."""
    held = entry.get("environment" if client.form == "opencode" else "env") if isinstance(entry, dict) else {}
    return [
        name for name in PLACE_VARIABLES if isinstance(held, dict) and name in held and name not in places
    ]
