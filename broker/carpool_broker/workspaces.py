"""The workspaces of the sessions that are here, and what their projects' own files say.

Owns the readings of project files, from the first session in a workspace to the last, what is trusted of
them, and what on disk all that comes from. A file that breaks leaves its last good reading in
force; one that changes waits for trust again. A trusted reading is kept for the brokers after this one, until
another one that is not trusted takes its place. It comes back only where its very bytes are trusted then.

Knows nothing of: sessions, sources, the user's own file.
"""

import logging
from typing import Final

from carpool_protocol.config.last_good import LastGood
from carpool_protocol.config.load import ConfigFile, Layer, Texts, load_layer
from carpool_protocol.config.model import Config
from carpool_protocol.config.project import Workspace, find_workspace
from carpool_protocol.config.stamps import Stamp, stamp
from carpool_protocol.config.trust import Trust, complaint, read_listed, read_trust, trust_of

MAX_KEPT_PROJECTS: Final = 64
"""Of so many trusted projects the last good reading outlives a broker."""

log = logging.getLogger("carpool.broker")

Place = tuple[str, str]
"""A directory, and the root of the named workspace that it is in."""


class Project:
    """One project file and its last good reading."""

    def __init__(self) -> None:
        self.workspace = Workspace("")
        self.config: Config | None = None
        """None: it never was good."""
        self.env: dict[str, str] = {}
        self.digest = ""
        self.trust: Trust = "untrusted"
        self.listed: frozenset[str] = frozenset()
        """Servers that were named as taking the place of the user's when trust was asked for."""
        self.problems: list[str] = []
        """Why the file as it is now is not in force."""
        self.warnings: list[str] = []
        self.seen: dict[str, Stamp] = {}

    def take(self, workspace: Workspace, layer: Layer) -> None:
        """It was read."""
        self.workspace = workspace
        self.seen = layer.seen
        self.problems = [each.render() for each in layer.loaded.problems]
        if layer.loaded.config is not None:
            self._stand_on(layer)

    def inherit(self, layer: Layer) -> None:
        """It never was good here, and this is what it was before: an earlier broker has kept it."""
        self._stand_on(layer)
        self.seen = {**layer.seen, **self.seen}

    def _stand_on(self, layer: Layer) -> None:
        assert layer.loaded.config is not None
        self.config, self.env, self.digest = layer.loaded.config, layer.env, layer.digest
        self.warnings = [each.render() for each in layer.loaded.warnings]

    def said(self) -> list[str]:
        """What its author should know."""
        return [*self.problems, *self.notes()]

    def notes(self) -> list[str]:
        """The same without what keeps the file as it is now from being in force."""
        over = [f"{each} is not read: {self.workspace.file} shadows it" for each in self.workspace.shadowed]
        return [*over, *self.warnings]

    def holds_servers(self) -> bool:
        """Whether there is anything in it that could be run."""
        return self.config is not None and bool(self.config.servers or self.config.unusable)

    def is_lost(self) -> bool:
        """Whether it is broken and nothing of an earlier reading could be run either."""
        return bool(self.problems) and not self.holds_servers()

    def awaits(self) -> str:
        """Why its servers may not run yet; empty: they may."""
        if self.trust == "trusted":
            return ""
        path = self.workspace.file
        what = "has changed since it was trusted" if self.trust == "changed" else "is not trusted yet"
        return f"{path} {what}; look at it with `carpool trust {self.workspace.root}`"


class Workspaces:
    """All that sessions are in."""

    def __init__(self, home: str, store: str, last_good: LastGood) -> None:
        """`store`: the file of trust; empty: nothing is trusted. `last_good`: what is kept."""
        self._home = home
        self._store = store
        self._last_good = last_good
        self._unkept = ""
        """Why the last one that was to be kept is not."""
        self._store_seen: Stamp = stamp(store)
        self._store_wrong = ""
        """What was last said of it."""
        self._by_place: dict[Place, Workspace] = {}
        self.projects: dict[str, Project] = {}
        """By the path of the project file."""

    def at(self, cwd: str, within: str = "") -> Workspace:
        """The workspace of a directory. `within`: see `find_workspace`."""
        found = self._by_place.get((cwd, within))
        if found is None:
            found = self._by_place[cwd, within] = find_workspace(cwd, self._home, within)
            if found.file not in self.projects:
                self._read(found)
        return found

    def project(self, cwd: str, within: str = "") -> Project | None:
        """The project of a directory, if it has a file with servers, or one that is broken."""
        found = self.projects.get(self.at(cwd, within).file) if cwd else None
        return found if found is not None and (found.holds_servers() or found.is_lost()) else None

    def keep(self, places: set[Place]) -> None:
        """Forget every directory but these."""
        for place in self._by_place.keys() - places:
            del self._by_place[place]
        for file in self.projects.keys() - {each.file for each in self._by_place.values()}:
            del self.projects[file]

    def seen(self) -> dict[str, Stamp]:
        """Everything on disk that was looked at, as it was then."""
        seen: dict[str, Stamp] = {}
        for workspace in self._by_place.values():
            seen |= workspace.seen
        for project in self.projects.values():
            seen |= project.seen
        if self.projects:
            seen[self._store] = self._store_seen
        return seen

    def reload(self) -> None:
        """Search and read everything again."""
        self._store_seen = stamp(self._store)
        self._by_place = {
            (cwd, within): find_workspace(cwd, self._home, within) for cwd, within in self._by_place
        }
        self.keep(set(self._by_place))
        for workspace in {each.file: each for each in self._by_place.values()}.values():
            self._read(workspace)

    def _read(self, workspace: Workspace) -> None:
        if not workspace.file:
            return
        project = self.projects.setdefault(workspace.file, Project())
        before = set(project.said())
        layer = self._load(workspace)
        project.take(workspace, layer)
        trusted = read_trust(self._store) if self._store else {}
        if project.config is None and (earlier := self._last_good.find(workspace.file)) is not None:
            kept = self._load(workspace, earlier)
            if kept.loaded.config is not None and trust_of(trusted, workspace, kept.digest) == "trusted":
                project.inherit(kept)
        wrong = complaint(self._store) if self._store else ""
        if wrong and wrong != self._store_wrong:
            log.warning("%s", wrong)
        self._store_wrong = wrong
        project.trust = trust_of(trusted, workspace, project.digest)
        project.listed = read_listed(self._store, workspace) if self._store else frozenset()
        self._keep(project, layer)
        for text in project.said():
            if text not in before:
                log.warning("%s", text)

    def _load(self, workspace: Workspace, earlier: Texts | None = None) -> Layer:
        file = ConfigFile(workspace.file, asked_for=True)
        return load_layer(file, self._home, project=True, earlier=earlier)

    def _keep(self, project: Project, layer: Layer) -> None:
        """For the brokers after this one: what stands is trusted, or nothing is to come back."""
        if project.trust != "trusted":
            self._last_good.forget(project.workspace.file)
        elif layer.loaded.config is not None:
            why = self._last_good.keep(layer)
            if why and why != self._unkept:
                log.warning("%s: if carpool dies while a project's file is broken, that has no servers", why)
            self._unkept = why
