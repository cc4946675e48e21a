"""Every setting of a configuration with value and origin: the rows of `carpool check`.

Owns the masking, because people paste the output into reports. Values of `env` and `headers` are always shown
as `…`, a `url` as its host, and each of `args` as `…` unless it is the name of an option or a variable.
Refuses to know how a file is read.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, to_builtins

from carpool_protocol.config.reading.hooks import HOOKS
from carpool_protocol.config.reading.parse import SERVERS
from carpool_protocol.config.reading.profiles import PROFILES
from carpool_protocol.config.reading.workspaces import WORKSPACES
from carpool_protocol.config.schema.model import (
    Config,
    HookConfig,
    NamedWorkspace,
    ProfileConfig,
    ServerConfig,
)
from carpool_protocol.config.schema.settings import (
    FILE_SETTINGS,
    HOOK_SETTINGS,
    PROFILE_SETTINGS,
    SERVER_SETTINGS,
    WORKSPACE_SETTINGS,
    Setting,
)
from carpool_protocol.config.text.problems import KeyPath, render_path

MASK = "…"
_MASKED_MAPS = frozenset({"template map", "header map"})
DEFAULT = "default"
_NO_SECRET = re.compile(r"-[A-Za-z]|--[A-Za-z][A-Za-z-]*|\$\{[A-Za-z_][A-Za-z0-9_]*\}", re.ASCII)
"""A word of a command line without a value. (`-phunter2` is a password to some programs.)"""


class SettingRow(Struct, frozen=True):
    """A setting with its value and origin, as one row of `carpool check`."""

    setting: str
    """`mcpServers.git.pool.max`."""
    value: str
    """JSON text; `—` if nothing is set."""
    unit: str
    origin: str
    """`file:line`, or `default`."""


def describe(config: Config) -> list[SettingRow]:
    """Every setting of the file, its servers, workspaces, profiles and hooks, in the order of the table."""
    rows = [_row(config, config.lines, (), setting, config.file) for setting in FILE_SETTINGS]
    rows += _server_rows((), config.servers.values())
    for workspace in config.workspaces.values():
        at: KeyPath = (WORKSPACES, workspace.name)
        below = {path[2:]: line for path, line in config.lines.items() if path[:2] == at}
        rows += [_row(workspace, below, at, setting, config.file) for setting in WORKSPACE_SETTINGS]
        rows += _server_rows(at, workspace.servers.values())
    for profile in config.profiles.values():
        at = (PROFILES, profile.name)
        below = {path[2:]: line for path, line in config.lines.items() if path[:2] == at}
        rows += [_row(profile, below, at, setting, config.file) for setting in PROFILE_SETTINGS]
    for number, hook in enumerate(config.hooks):
        rows += _hook_rows(config, (HOOKS, number), hook)
    return rows


def _server_rows(under: KeyPath, servers: Iterable[ServerConfig]) -> list[SettingRow]:
    rows: list[SettingRow] = []
    for server in servers:
        path: KeyPath = (*under, SERVERS, server.name)
        for setting in SERVER_SETTINGS:
            if setting.kind in _MASKED_MAPS and value_of(server, setting):
                rows.extend(_masked(server, path, setting))
            else:
                rows.append(_row(server, server.lines, path, setting, server.file))
    return rows


def _hook_rows(config: Config, at: KeyPath, hook: HookConfig) -> list[SettingRow]:
    below = {path[2:]: line for path, line in config.lines.items() if path[:2] == at}
    rows: list[SettingRow] = []
    for setting in HOOK_SETTINGS:
        if setting.kind in _MASKED_MAPS:
            for name in value_of(hook, setting):
                where = f"{config.file}:{below[setting.key, name]}"
                rows.append(SettingRow(render_path((*at, setting.key, name)), MASK, setting.unit, where))
        else:
            rows.append(_row(hook, below, at, setting, config.file))
    return rows


def value_of(
    owner: Config | NamedWorkspace | ProfileConfig | HookConfig | ServerConfig, setting: Setting
) -> Any:
    """The value of a setting, in the form of `model`."""
    value: Any = owner
    for name in setting.field.split("."):
        value = getattr(value, name)
    return value


def shown_url(template: str) -> str:
    """A URL for reports: scheme, host and port as written, without path and query."""
    scheme, _, rest = template.partition("://")
    if not rest:
        return template if _NO_SECRET.fullmatch(template) else MASK
    host, slash, path = rest.rpartition("@")[2].partition("/")
    host, query, _ = host.partition("?")
    return f"{scheme}://{host}" + (f"/{MASK}" if path or query else slash)


def _has_user(text: str) -> bool:
    """True for a URL with a user, and so perhaps a password."""
    return "://" in text and "@" in text


def _row(
    owner: Config | NamedWorkspace | ProfileConfig | HookConfig | ServerConfig,
    lines: dict[KeyPath, int],
    path: KeyPath,
    setting: Setting,
    file: str,
) -> SettingRow:
    late = owner.late.get(tuple(setting.key.split("."))) if isinstance(owner, ServerConfig) else None
    value = value_of(owner, setting) if late is None else late
    if setting.kind == "templates":
        value = [word if _NO_SECRET.fullmatch(word) else MASK for word in value]
    elif setting.kind == "secret" and value is not None:
        value = value if _NO_SECRET.fullmatch(value) else MASK
    elif (setting.kind == "url" and value is not None) or (isinstance(value, str) and _has_user(value)):
        value = shown_url(value)
    shown = "—" if value is None else json.dumps(to_builtins(value), ensure_ascii=False)
    spellings = (setting.key, *setting.also)
    found = (lines.get(tuple(key.split("."))) for key in spellings)
    line = next((each for each in found if each is not None), None)
    origin = DEFAULT if line is None else f"{file}:{line}"
    return SettingRow(render_path((*path, *setting.key.split("."))), shown, setting.unit, origin)


def _masked(server: ServerConfig, path: KeyPath, setting: Setting) -> list[SettingRow]:
    names: list[str] = list(value_of(server, setting))
    return [
        SettingRow(
            render_path((*path, setting.key, name)),
            MASK,
            setting.unit,
            f"{server.file}:{server.lines[setting.key, name]}",
        )
        for name in names
    ]
