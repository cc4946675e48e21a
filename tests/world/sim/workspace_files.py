"""Where agents of the simulated world are: the files of a home, and what is to be seen at each place.

Owns what stands in the user's file, in the workspaces that it names and in the files of projects, what of
these is trusted, and the rules of docs/workspaces.md in few words, written down a second time: which servers
a session sees, and what each is run as. `tests/world/sim/workspaces` holds carpool to that.

Knows nothing of: the configuration's insides, what runs.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Literal

from msgspec import Struct

from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.reading.project import find_workspace
from carpool_protocol.config.reading.trust import grant_trust, revoke_trust
from carpool_protocol.link.messages import EraWish, Policy
from tests.world.sim.traits import Traits

VARIABLES = ("TOKEN", "PIN")
SERVERS = ("s0", "s1", "s2", "s3")
USER = "user"
NAMED = {"shop": "shop", "quiet": ""}
"""The workspaces that the user's file names, and their directories; empty: none."""
PROJECTS = ("p", "q", "shop")
"""Directories that may hold a project's file."""
CWDS = ("free", "p/deep", "q", "shop")
ITS = "its-"
"""What commands begin with that only files of projects name."""
OFFLINE = "offline"
"""The title of a tool that a file lists."""


class ServerProgram(Struct, frozen=True):
    """What a command runs."""

    traits: Traits
    policy: Policy
    era: EraWish
    stop_first: bool


class ConfiguredServer(Struct, frozen=True):
    """A server as a file has it."""

    command: str
    variable: str = ""
    """That its environment holds."""
    place: Literal["", "workspace", "cwd"] = ""
    """What its only argument is."""
    roots: Literal["", "workspace", "agent"] = ""
    at_home: bool = False
    disabled: bool = False
    offline: bool = False
    """It has a `tools_file`."""


class FileLaunch(Struct, frozen=True):
    """What is run for a session."""

    command: str
    argument: str
    variable: str
    value: str
    cwd: str
    roots: tuple[str, ...] | None


class SessionLocation(Struct, frozen=True):
    """Where a session is."""

    cwd: str
    """Of its agent; empty where nobody said it."""
    workspace: str = ""
    """As it was named, or moved to: a name, or an absolute directory."""
    roots: tuple[str, ...] | None = None
    """What its agent has named."""


Layer = dict[str, ConfiguredServer]


class WorkspaceFiles:
    """The home of one world."""

    def __init__(self, base: Path, rng: Random, people: Mapping[str, ServerProgram]) -> None:
        self.base = str(base)
        self.file = f"{base}/carpool.json"
        self.store = f"{base}/state/trust.json"
        self._rng = rng
        self._people = people
        self.layers: dict[str, Layer] = {USER: {}, **{name: {} for name in NAMED}}
        self.named = set(NAMED)
        """Those that stand in the file now."""
        self.env_file: dict[str, str] = {}
        self.env_values: set[str] = set()
        """All that it ever held."""
        self.broken = False
        self.projects: dict[str, Layer] = {name: {} for name in PROJECTS}
        self.there: set[str] = set()
        """Projects with a file."""
        self.contents: dict[tuple[str, str], Layer] = {}
        """By project and digest: what has stood in its file."""
        self.trusted: dict[str, str] = {}
        """By project: the digest that the user trusts."""
        for each in CWDS:
            os.makedirs(f"{base}/{each}")
        (base / "tools.json").write_text(self._tools())

    def _tools(self) -> str:
        tool = {"name": "t0", "title": OFFLINE, "inputSchema": {"type": "object"}}
        return json.dumps({"tools": [tool]})

    # --- files ------------------------------------------------------------------------------------------

    def write_user(self, *, broken: bool = False) -> None:
        """The user's file, as it is meant or broken."""
        self.broken = broken
        workspaces = {
            name: {
                **({"root": f"~/{NAMED[name]}"} if NAMED[name] else {}),
                "mcpServers": self._rows(self.layers[name]),
            }
            for name in sorted(self.named)
        }
        text = json.dumps(
            {
                "mcpServers": self._rows(self.layers[USER]),
                "workspaces": workspaces,
                "env_file": "env",
            }
        )
        with open(f"{self.base}/env", "w", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in self.env_file.items())
        self.env_values |= set(self.env_file.values())
        with open(self.file, "w", encoding="utf-8") as file:
            file.write("{" if broken else text)

    def file_of(self, project: str) -> str:
        """Its file."""
        return f"{self.base}/{project}/.carpool/mcp.json"

    def write_project(self, project: str, *, broken: bool = False) -> None:
        """A project's file, as it is meant or broken."""
        path = self.file_of(project)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{os.path.dirname(path)}/tools.json", "w", encoding="utf-8") as file:
            file.write(self._tools())
        with open(path, "w", encoding="utf-8") as file:
            text = json.dumps({"mcpServers": self._rows(self.projects[project])})
            file.write("{" if broken else text)
        self.there.add(project)
        if not broken:
            self.contents[project, self._digest(project)] = dict(self.projects[project])

    def remove_project(self, project: str) -> None:
        """Its file goes."""
        if project in self.there:
            os.unlink(self.file_of(project))
            self.there.discard(project)

    def _digest(self, project: str) -> str:
        return load_layer(ConfigFile(self.file_of(project), asked_for=True), self.base, project=True).digest

    def trust(self, project: str) -> None:
        """The user trusts what stands there now, if it can be read."""
        digest = self._digest(project) if project in self.there else ""
        if (project, digest) in self.contents:
            grant_trust(self.store, find_workspace(f"{self.base}/{project}", self.base), digest)
            self.trusted[project] = digest

    def revoke(self, project: str) -> None:
        """The user trusts it no longer."""
        if project in self.there:
            revoke_trust(self.store, find_workspace(f"{self.base}/{project}", self.base))
            self.trusted.pop(project, None)

    def _rows(self, layer: Layer) -> dict[str, object]:
        return {name: self._row(written) for name, written in layer.items()}

    def _row(self, written: ConfiguredServer) -> dict[str, object]:
        person = self._people[written.command]
        era = {"handshake": "legacy", "stateless": "modern", "auto": "auto", "newest": "match"}[person.era]
        row: dict[str, object] = {"command": written.command, "era": era}
        if written.variable:
            row["env"] = {"V": f"${{{written.variable}}}"}
        if written.place:
            row["args"] = [f"${{{written.place}}}"]
        if written.roots:
            row["roots"] = written.roots
        if written.at_home:
            row["cwd"] = "~"
        if written.disabled:
            row["disabled"] = True
        if written.offline:
            row["tools_file"] = "tools.json"
        if person.stop_first:
            row["replace"] = "stop_first"
        return row

    # --- the rules --------------------------------------------------------------------------------------

    def seen(
        self,
        spot: SessionLocation,
        known: Mapping[str, str],
        on: Mapping[str, bool],
        readings: Mapping[str, str],
    ) -> dict[str, FileLaunch]:
        """What a session sees that says these values of variables. `on`: servers that are switched for it;
        `readings`: by project, the digest of what was last read of it; empty where it could not be read.
        """
        named, root, cwd = self._whereabouts(spot)
        project = self._project(named, root, cwd)
        workspace = f"{self.base}/{project}" if project else root or ("" if named else cwd)
        servers: dict[str, tuple[ConfiguredServer, str]] = {
            name: (written, "") for name, written in self.layers[USER].items()
        }
        servers |= {name: (written, "named") for name, written in self.layers.get(named, {}).items()}
        if project and readings.get(project) and self.trusted.get(project) == readings[project]:
            own = self.contents[project, readings[project]]
            servers |= {name: (written, "project") for name, written in own.items()}
        found: dict[str, FileLaunch] = {}
        values = {**self.env_file, **known}
        for name, (written, layer) in servers.items():
            at = root if layer == "named" else workspace
            if on.get(name, not written.disabled):
                launch = self._launch(written, layer, (at, cwd), values, spot.roots)
                if launch is not None:
                    found[name] = launch
        return found

    def _whereabouts(self, spot: SessionLocation) -> tuple[str, str, str]:
        """The named workspace, its directory, and the agent's."""
        shop = f"{self.base}/shop"
        if spot.workspace in self.named:
            root = f"{self.base}/{NAMED[spot.workspace]}" if NAMED[spot.workspace] else ""
            return spot.workspace, root, spot.cwd if not root or spot.cwd == root else root
        cwd = spot.workspace if spot.workspace.startswith("/") else spot.cwd
        named = "shop" if cwd == shop and "shop" in self.named else ""
        return named, shop if named else "", cwd

    def _project(self, named: str, root: str, cwd: str) -> str:
        base = cwd if root or not named else ""
        for project in self.there:
            if base and f"{base}/".startswith(f"{self.base}/{project}/"):
                return project
        return ""

    def _launch(
        self,
        written: ConfiguredServer,
        layer: str,
        at: tuple[str, str],
        values: Mapping[str, str],
        named_roots: tuple[str, ...] | None,
    ) -> FileLaunch | None:
        workspace, cwd = at
        value = values.get(written.variable, "")
        argument = {"workspace": workspace, "cwd": cwd, "": ""}[written.place]
        roots: tuple[str, ...] | None = None
        if written.roots:
            roots = (f"file://{workspace}",) if workspace else ()
            if written.roots == "agent" and named_roots is not None:
                roots = named_roots
            elif not workspace:
                return None
        if (written.variable and not value) or (written.place and not argument):
            return None
        where = self.base if written.at_home or not layer else workspace or self.base
        return FileLaunch(written.command, argument, written.variable, value, where, roots)

    def may_run(self, command: str, readings: Mapping[str, str]) -> bool:
        """Whether a project that is trusted as it was last read has named this command, then or before.

        The last session that leaves a project ends the following of its file before its servers are
        dropped: a project that is not in `readings` only has to be trusted.
        """
        trusted = self.trusted
        return any(
            project in trusted
            and readings.get(project, trusted[project]) == trusted[project]
            and any(written.command == command for written in content.values())
            for (project, _), content in self.contents.items()
        )
