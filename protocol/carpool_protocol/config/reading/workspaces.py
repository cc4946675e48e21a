"""Reads the object `workspaces` of the user's file.

Owns its structure and the rules between two workspaces. `parse` reads the servers in it as everywhere, with
one addition: `{"disabled": true}` alone turns off a server of the whole file.

Knows nothing of: existing directories, sessions.
"""

import posixpath
from collections.abc import Mapping
from typing import Any, Final, Protocol

from carpool_protocol.config.reading.merge import least_instances
from carpool_protocol.config.schema.model import Config, HttpConfig, NamedWorkspace, ServerConfig
from carpool_protocol.config.schema.setting import Setting
from carpool_protocol.config.schema.settings import WORKSPACE_SETTINGS
from carpool_protocol.config.schema.value_types import kind_of
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import KeyPath, did_you_mean
from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_name_resolver import check_server_name

WORKSPACES: Final = "workspaces"
_KEYS: Final = {each.key: each for each in WORKSPACE_SETTINGS}


class SectionReader(Protocol):
    """The part of the configuration reader that this module needs."""

    file: str
    lines: dict[KeyPath, int]

    def add_problem(self, path: KeyPath, text: str) -> None:
        """Report a problem at this path."""

    def section(
        self,
        path: KeyPath,
        value: dict[str, JsonValue],
        known: Mapping[str, Setting],
        later: Mapping[str, str],
        *,
        prefix: str = "",
        others: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """The values of one object, by their field in `model`."""

    def servers(
        self, value: JsonValue, path: KeyPath, workspace: str = "", root: str = ""
    ) -> dict[ServerName, ServerConfig]:
        """The servers of an object of servers."""


def check_token_workspaces(
    reading: SectionReader, http: HttpConfig, workspaces: Mapping[str, NamedWorkspace]
) -> None:
    """Check that the workspaces of tokens exist; otherwise their agents could work nowhere."""
    for name, token in http.tokens.items():
        for workspace in token.workspaces:
            if workspace not in workspaces:
                meant = did_you_mean(workspace, workspaces)
                why = f"there is no workspace {workspace}" + (f"; did you mean {meant}?" if meant else "")
                reading.add_problem(("http", "tokens", name, "workspaces"), why)


def roots_of(config: Config, home: str) -> dict[str, str]:
    """The directories of named workspaces that have one: absolute, by name."""
    return {name: root_of(each, home) for name, each in config.workspaces.items() if each.root}


def root_of(workspace: NamedWorkspace, home: str) -> str:
    """The directory of a workspace, absolute; empty if it has none."""
    root = workspace.root or ""
    if root.startswith("~"):
        root = posixpath.join(home, root[2:])
    return posixpath.normpath(root) if root else ""


def read_workspaces(
    reading: SectionReader,
    value: JsonValue,
    servers: Mapping[ServerName, ServerConfig],
    cap: int,
    holder: str,
) -> dict[str, NamedWorkspace]:
    """All workspaces. `servers`: those of the whole file; `cap`: most running instances; `holder`: the key of
    servers.
    """
    if not isinstance(value, dict):
        reading.add_problem(
            (WORKSPACES,), f"must be an object of names and workspaces, found {kind_of(value)}"
        )
        return {}
    found: dict[str, NamedWorkspace] = {}
    roots: dict[str, str] = {}
    for name, inner in value.items():
        path: KeyPath = (WORKSPACES, name)
        if (why := check_server_name(name, "workspace")) is not None:
            reading.add_problem(path, why)
        elif not isinstance(inner, dict):
            kind = kind_of(inner)
            reading.add_problem(path, f'must be an object like {{ "root": "~/code/shop" }}, found {kind}')
        else:
            rest = {key: each for key, each in inner.items() if key != holder}
            root: str | None = reading.section(path, rest, _KEYS, {}, others=(holder,)).get("root")
            place = posixpath.normpath(root) if root else ""
            if place in roots:
                reading.add_problem((*path, "root"), f"is the root of the workspace {roots[place]}, too")
            elif place:
                roots[place] = name
            own = reading.servers(inner.get(holder, {}), (*path, holder), name, root or "")
            if (least := least_instances({**servers, **own})) > cap:
                why = f"the pool.min of its servers and of all others add up to {least} instances"
                reading.add_problem(
                    path, f"{why}, more than max_instances ({cap}); raise that or lower a pool.min"
                )
            found[name] = NamedWorkspace(
                name=name, file=reading.file, line=reading.lines[path], root=root, servers=own
            )
    return found
