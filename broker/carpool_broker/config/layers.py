"""The user's configuration and the layers above it: a named workspace, then a trusted project's own file.

Owns the last good reading of the user's file, why the present file is not in force, the merge of all layers
at one location, and the file of each server. A broken file leaves the last good reading in force, also that
of an earlier broker; without one carpool does not start. Overrides do not count here (`overrides`).

Invariants: the servers of a project that may not run are in no configuration that is returned; `load` keeps
nothing, so that a thread may run it while it waits for the disk. Knows nothing of: sessions, sources,
environments, the time of readings.
"""

from collections.abc import Sequence, Set
from typing import Final

from carpool_broker.config.locations import Location
from carpool_broker.config.workspace_report import named_workspace_rows, project_rows
from carpool_broker.config.workspaces import Project, Workspaces
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, ConfigLayer, load_layer
from carpool_protocol.config.reading.merge import cap_problem, merge_configs, taken_over
from carpool_protocol.config.schema.model import Config, NamedWorkspace, ServerConfig, variables
from carpool_protocol.config.text.file_stamps import Stamp
from carpool_protocol.config.text.problems import ConfigProblem
from carpool_protocol.ids import ServerName

_NO_STAMP: Final = (-1, -1, -1)
"""A stamp that no file has, so that a later check always finds a change."""


class BrokenConfigError(Exception):
    """The file cannot be used. The text has one line per problem."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("\n".join(problem.render() for problem in problems))
        first = problems[0]
        self.place = f"{first.file}:{first.line}" if first.line else first.file


class UserFile:
    """The user's file with the files that belong to it."""

    def __init__(self, file: ConfigFile, home: str, last_good: LastGoodReadings) -> None:
        """Read the file, or the last good reading. Raises `BrokenConfigError`."""
        self._file = file
        self._home = home
        self._last_good = last_good
        self.problem = ""
        """Why the present file is not in force; empty: it is."""
        self.problem_place = ""
        """The file that is wrong, with the line of its first problem, as far as it has one."""
        self.env: dict[str, str] = {}
        """Variables of its `env_file`. Secrets: in memory only."""
        self.seen_files: dict[str, Stamp] = {}
        """Every file that was read, with its stamp."""
        self.warnings: list[str] = []
        """Notes about ignored parts of other programs' files."""
        self.config = self._read_at_first()

    @property
    def path(self) -> str:
        """The file itself, absolute."""
        return self._file.path

    def load(self) -> ConfigLayer:
        """Read the files from disk."""
        return load_layer(self._file, self._home)

    def apply(self, layer: ConfigLayer) -> None:
        """Use a reading. If it is broken, `problem` says why and the last good one stays."""
        try:
            self.config = self._apply(layer)
            self.problem = self.problem_place = ""
        except BrokenConfigError as error:
            self.problem, self.problem_place = str(error), error.place

    def load_timed_out(self, why: str) -> None:
        """Note that reading takes too long. `why`: a clause."""
        self.problem, self.problem_place = f"{self._file.path} {why}", self._file.path
        self.seen_files = dict.fromkeys(self.seen_files, _NO_STAMP)

    def _read_at_first(self) -> Config:
        """The configuration of the file; if it is broken, the last good reading of an earlier broker."""
        kept = self._last_good.find(self._file.path)
        try:
            return self._apply(self.load())
        except BrokenConfigError as error:
            layer = None if kept is None else load_layer(self._file, self._home, earlier=kept)
            if layer is None or layer.loaded.config is None:
                raise
            self.problem, self.problem_place = str(error), error.place
            self.seen_files = layer.seen | self.seen_files
            self.env = layer.env
            return layer.loaded.config

    def _apply(self, layer: ConfigLayer) -> Config:
        self.seen_files = layer.seen
        loaded = layer.loaded
        if loaded.config is None:
            raise BrokenConfigError(loaded.problems)
        self.env = layer.env
        self.warnings = [each.render() for each in loaded.warnings]
        if trouble := self._last_good.save(layer):
            self.warnings.append(
                f"{trouble}: if carpool dies while the file is broken, it cannot start again"
            )
        return loaded.config


class EffectiveLayers:
    """All layers. `config`: the last good reading of the user's file."""

    def __init__(self, config: Config, home: str, trust: str, last_good: LastGoodReadings) -> None:
        """`trust`: the file of trusted projects; empty: none is. `last_good`: storage of good readings of
        projects.
        """
        self.config = config
        self.home = home
        self.workspaces = Workspaces(home, trust, last_good)

    def project_at(self, location: Location) -> Project | None:
        """The project of a location, if it has a file with servers, or a broken one."""
        return self.workspaces.project_at(location)

    def root_of(self, location: Location) -> str:
        """The directory of the workspace at a location; empty if it has none."""
        return self.workspaces.workspace_at(location).root

    def named_workspace(self, name: str) -> Config:
        """The user's configuration with a named workspace laid over it. An empty or unknown name adds
        nothing.
        """
        workspace = self.config.workspaces.get(name)
        return self.config if workspace is None else merge_configs(self.config, workspace)

    def merged_config(self, name: str, project: Project | None) -> Config:
        """`named_workspace` with a project laid over it, if the project may run."""
        config = self.named_workspace(name)
        if project is None or project.config is None or project.trust_needed():
            return config
        merged = merge_configs(config, project.config)
        return merged if cap_problem(merged, project.workspace.file) is None else config

    def config_at(self, location: Location) -> Config:
        """The configuration in force at a location."""
        return self.merged_config(location.name, self.project_at(location))

    def servers_not_run(
        self, name: str, project: Project | None
    ) -> tuple[dict[ServerName, str], frozenset[ServerName]]:
        """Servers of a project that may not run, with the reason; and those that wait for trust."""
        if project is None or project.config is None:
            return {}, frozenset()
        user, config = self.named_workspace(name), project.config
        on = (name for name, server in config.servers.items() if not server.disabled)
        names = frozenset((*on, *config.unusable)) - {*user.servers, *user.unusable}
        if why := project.trust_needed():
            return dict.fromkeys(names, why), names
        too_many = cap_problem(merge_configs(user, config), project.workspace.file)
        return (
            ({}, frozenset()) if too_many is None else (dict.fromkeys(names, too_many.render()), frozenset())
        )

    def shadowing_servers(self, name: str, project: Project | None) -> frozenset[ServerName]:
        """Servers of a trusted project with the name of one of the user's that the trust question did not
        name (rule 19).
        """
        if project is None or project.config is None:
            return frozenset()
        return taken_over(self.named_workspace(name), project.config) - project.listed

    def variables_at(self, location: Location) -> list[str]:
        """The variables that servers use at a location, also those that may not run yet."""
        project = self.project_at(location)
        names = variables(self.named_workspace(location.name), disabled=True)
        return sorted(names | project.variables if project is not None else names)

    # --- what operators see ----------------------------------------------------------------------------

    def _all_configs(self) -> list[Config | NamedWorkspace]:
        """The user's configuration, each named workspace, and each project in use."""
        projects = (each.config for each in self.workspaces.projects.values())
        return [self.config, *self.config.workspaces.values(), *filter(None, projects)]

    def configured_servers(self) -> dict[ServerName, ServerConfig]:
        """Every configured server, also of untrusted projects, as its file has it."""
        servers: dict[ServerName, ServerConfig] = {}
        for each in reversed(self._all_configs()):
            servers |= each.servers
        return servers

    def has_servers_that_stay(self) -> bool:
        """True if a server runs also while no agent is there: one of the user's own, in no workspace."""
        policies = (each.policy for each in self.config.servers.values() if not each.disabled)
        return any(policy.auto_connect or policy.min_instances for policy in policies)

    def server_names(self) -> set[ServerName]:
        """Names of all configured servers, also of those that cannot be run as written."""
        return {*self.configured_servers(), *(name for each in self._all_configs() for name in each.unusable)}

    def servers_named(self, name: ServerName) -> list[ServerConfig]:
        """Every server with this name, as its file has it."""
        return [each.servers[name] for each in self._all_configs() if name in each.servers]

    def disabled_in(self, name: ServerName) -> list[str]:
        """The files that disable a server with this name, for people."""
        return sorted({each.written_in for each in self.servers_named(name) if each.disabled})

    def workspace_rows(self, used: Set[str]) -> list[dict[str, object]]:
        """The named workspaces and the workspaces with a project file that is `used`, for `status`."""
        projects = [project for key, project in sorted(self.workspaces.projects.items()) if key in used]
        return named_workspace_rows(self.config, self.home) + project_rows(self.config, projects)
