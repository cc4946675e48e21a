"""The configuration in force, and the servers that it gives each session.

Owns the sources (one per distinct `source_key` of sessions), which session uses which, and the files that
they were read from. A source that its last session has left stays, with its workspace, until the core
forgets it (`unused_sources`); only that of `carpool run` goes at once, and one that a change of the
configuration replaces. Changes for the core are returned as events, to be fed in order.

The servers of an untrusted project are named to its sessions and never run. The user's own server of the same
name stays in force meanwhile, so that visiting a repository takes over no name (rule 19).

Invariant: after construction it reads nothing from disk. It gets the results of scans (`scan`); a place that
was not scanned yet counts as empty.

Knows nothing of: sockets, calls, how scopes come into force (`effective_sources`), the content of the user's
file and of the layers above it (`layers`), the inputs of a source (`source_key`), when files are read
(`watcher`).
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set

from msgspec.structs import replace

from carpool_broker.config.layers import EffectiveLayers, UserFile
from carpool_broker.config.locations import (
    Location,
    SessionContext,
    WorkspaceRequest,
    profile_objection,
    workspace_objection,
    workspace_request,
)
from carpool_broker.config.other_config import other_config_note
from carpool_broker.config.scan import WorkspaceScan
from carpool_broker.config.source_key import FindCatalog, SourceBasis, make_source_read
from carpool_broker.config.workspaces import WatchedFiles, safe_path
from carpool_broker.core.configuration.overrides import SessionOverrides
from carpool_broker.core.configuration.profiles import is_visible, limits_of, permitted_servers, profile_scope
from carpool_broker.core.configuration.resolve_servers import Resolution, only_server, resolve, resolve_run
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.core.model.bounds import SessionBounds
from carpool_broker.core.model.events import (
    SessionSourceChanged,
    SourceDropped,
    SourceId,
    SourceRead,
    SourceUnused,
)
from carpool_broker.hooks.spec import HookSpec, spec_of
from carpool_broker.storage.override_store import OverrideStore
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.attach_line import Attach, WorkspaceChanged
from carpool_protocol.carrier.streams import StreamRefused
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, ConfigLayer, home_of
from carpool_protocol.config.schema.environment import scrub
from carpool_protocol.config.schema.expand import references
from carpool_protocol.config.schema.model import Config, ServerConfig, variables
from carpool_protocol.faults.kinds import USER_FILE_UNREAD
from carpool_protocol.ids import ServerName, SessionId
from carpool_protocol.link.messages import Root
from carpool_protocol.wire.tool_name_resolver import check_name_length

DEFAULT_SOURCE = SourceId("daemon")
"""The source without a session, for servers with `auto_connect` or `pool.min`."""

ConfigurationChange = SourceRead | SessionSourceChanged | SourceUnused | SourceDropped


class Configuration:
    """The configuration in force, and the sources in use."""

    def __init__(
        self,
        file: ConfigFile,
        environ: Mapping[str, str],
        trust: str = "",
        secret: bytes = b"",
        *,
        kept: FindCatalog = lambda _: None,
        board: OverrideStore | None = None,
        pins: Callable[[PinId], Approved | None] = lambda _: None,
        last_good: LastGoodReadings | None = None,
        trusted_good: LastGoodReadings | None = None,
        operator: Mapping[str, str] | None = None,
    ) -> None:
        """Read the user's file. Raises `BrokenConfigError`.

        `trust`: the file of trusted projects; empty: none. `secret` keys the hashes in pool keys: with an
        earlier broker's secret its pools stay in use. `kept`: returns the cached catalog of a pool, `pins`:
        the approvals of a pinned server. `last_good`, `trusted_good`: storage of good readings of the user's
        file and of projects' files. `operator`: variables of an explicit `carpool up`, for servers with
        `auto_connect`.
        """
        self._own_environment = scrub(environ)
        # The supervisor sets PATH, because it asks the login shell.
        self._base_environment = {
            name: value for name, value in self._own_environment.items() if name != "PATH"
        }
        self._home = home_of(environ)
        self._secret = secret or os.urandom(32)
        self.operator_environment = dict(operator or {})
        """The variables of an explicit `carpool up`."""
        self._kept = kept
        self._approvals = pins
        self._sources: dict[SourceId, SourceBasis] = {DEFAULT_SOURCE: SourceBasis({}, "", "")}
        self._contexts: dict[SessionId, SessionContext] = {}
        self._workspace_requests = Counter[WorkspaceRequest]()
        """How many sessions ask for each workspace, and sources without a session hold it. Thousands of
        sessions may end at once.
        """
        self.override_store = board or OverrideStore()
        self.overrides = self.override_store.overrides
        self._logins = paths.logins_dir(os.path.dirname(trust)) if trust else ""
        self.user_file = UserFile(file, self._home, last_good or LastGoodReadings())
        self.layers = EffectiveLayers(
            self.user_file.config, self._home, trust, trusted_good or LastGoodReadings()
        )

    @property
    def config(self) -> Config:
        """The last good reading of the user's file."""
        return self.layers.config

    @property
    def problem(self) -> str:
        """Why the present user's file is not in force; empty: it is."""
        return self.user_file.problem

    @property
    def warnings(self) -> list[str]:
        """Notes about ignored parts of other programs' files."""
        return self.user_file.warnings

    # --- what is on disk -------------------------------------------------------------------------------

    def watched_files(self) -> list[WatchedFiles]:
        """Every file that was read, with its stamp."""
        return [WatchedFiles("", self.user_file.seen_files), *self.layers.workspaces.watched_files()]

    def workspace_requests(self) -> Set[WorkspaceRequest]:
        """The workspaces that sessions ask for, and those of sources without a session, as a view."""
        return self._workspace_requests.keys()

    def reload(self, layer: ConfigLayer | None, scans: Iterable[WorkspaceScan]) -> list[ConfigurationChange]:
        """Apply new readings: the user's file (None: it could not be read) and the scans that follow from it.

        A session moves to another source if its directory, project or roots matter only now.
        """
        before = self.layers.server_names()
        if layer is not None:
            self.user_file.apply(layer)
        self.layers.config = self.user_file.config
        return self.workspaces_scanned(scans, before)

    def workspaces_scanned(
        self, scans: Iterable[WorkspaceScan], before: set[ServerName] | None = None
    ) -> list[ConfigurationChange]:
        """Apply scans of the sessions' workspaces; all others are forgotten. `before`: the servers until
        then.
        """
        before = self.layers.server_names() if before is None else before
        self.layers.workspaces.replace_scans(scans)
        # A new server keeps an override of its name: it was meant for the server of sessions that have ended.
        if self.overrides.servers_removed(before - self.layers.server_names()):
            self.override_store.save()
        followed = self.resolve_all()
        self.layers.workspaces.retain(self.workspace_requests())
        return followed

    def missing_profiles(self) -> list[str]:
        """Profiles of sessions that are no longer in the file: they grant nothing."""
        profiles = {context.attach.profile for context in self._contexts.values()}
        return sorted(profiles - {"", *self.config.profiles})

    def overrides_changed(self) -> list[ConfigurationChange]:
        """Save the overrides and return the changes that follow."""
        self.override_store.save()
        return self.resolve_all()

    def resolve_all(self) -> list[ConfigurationChange]:
        """Resolve every source again. A session moves to another source if its own has changed."""
        found: list[ConfigurationChange] = [self.resolve_source(source) for source in self._sources]
        for session in self._contexts:
            found += self._assign_source(session)
        return found

    def bounds(self) -> SessionBounds:
        """The limits for a session's open and waiting calls."""
        session = self.config.session
        return SessionBounds(
            max_open_calls=session.max_open_calls,
            max_waiting_calls=session.max_waiting_calls,
            max_waiting_bytes=session.max_waiting_bytes,
            argument_budget_bytes=self.config.argument_budget_bytes,
            unread_budget_bytes=self.config.unread_budget_bytes,
            park_s=session.park_s,
            return_s=session.return_s,
            profiles=limits_of(self.config),
        )

    def wanted_variables(self, attach: Attach) -> list[str]:
        """The variables that the carrier is asked for: exactly those that the configuration uses.

        Those of servers that may not run yet are included: not every carrier can be asked again, and they are
        not used until then.
        """
        if attach.run is not None:
            return []
        return self.layers.variables_at(self._locate(self.initial_request(attach)))

    def attach_objection(self, attach: Attach) -> StreamRefused | None:
        """Why a session that asks for a part of the configuration is refused; None: it is not."""
        resumes = attach.resume is not None  # its workspace or profile may have left the file meanwhile
        if attach.profile and attach.profile not in self.config.profiles and not resumes:
            return StreamRefused(profile_objection(self.config, attach.profile), "unknown_profile")
        if (attach.workspace or attach.workspaces) and not resumes:
            scan = self.layers.workspaces.scan_of(self.initial_request(attach))
            if why := self.workspace_objection(attach, attach.workspace) or scan.objection:
                return StreamRefused(why, "unknown_workspace")
        if not attach.server:
            return None
        location = self._locate(self.initial_request(attach))
        project = self.layers.project_at(location)
        config, name = self.layers.merged_config(location.name, project), ServerName(attach.server)
        on = {each.name for each in config.servers.values() if not each.disabled}
        # An override may enable the server again; until then the session sees nothing.
        on |= self.overrides.global_overrides.keys() & config.servers.keys()
        there = name in {*on, *config.unusable, *self.layers.servers_not_run(location.name, project)[0]}
        shadowing = self.layers.shadowing_servers(location.name, project)
        # One answer for all cases, so that a client cannot find out what its profile hides.
        if not there or not (resumes or is_visible(config, attach.profile, name, shadowing)):
            return StreamRefused(
                "the configuration has no server of that name, or it is disabled, or the profile grants "
                "nothing of it: see `carpool status`",
                "unknown_server",
            )
        return None

    def attach_note(self, attach: Attach) -> str:
        """The sentence for a carrier whose environment names another configuration; empty: it does not."""
        return other_config_note(self.user_file.path, attach.config)

    def session_opened(
        self, session: SessionId, attach: Attach, environment: dict[str, str]
    ) -> tuple[SourceId, list[ConfigurationChange]]:
        """The source of a new session, with its reading if it is new."""
        context = self._contexts[session] = SessionContext(attach, environment, DEFAULT_SOURCE)
        self._add_request(context.workspace_request)
        context.requested_variables.update(self.wanted_variables(attach))
        self._sources[DEFAULT_SOURCE].sessions += 1
        followed = self._assign_source(session)
        return context.source, [event for event in followed if not isinstance(event, SessionSourceChanged)]

    def workspace_objection(self, attach: Attach, workspace: str) -> str:
        """Why a session that attached in this way cannot be in this workspace; empty: it can."""
        if attach.workspaces and workspace not in attach.workspaces:
            return f"the token of this session is for these workspaces only: {', '.join(attach.workspaces)}"
        return workspace_objection(self.config, workspace, by_name_only=attach.streams)

    def roots_received(self, session: SessionId, roots: tuple[Root, ...]) -> list[ConfigurationChange]:
        """Apply the roots of the session's agent. The result always has a move of the session, perhaps to the
        same source.
        """
        context = self._contexts.get(session)
        if context is None:
            return []
        context.roots = roots
        return self._assign_source(session) or [SessionSourceChanged(session, context.source)]

    def unknown_variables(self, session: SessionId, change: WorkspaceChanged | None) -> list[str]:
        """Variables that servers use there and that the carrier was not asked for. None: the session's
        present workspace.
        """
        context = self._contexts.get(session)
        if context is None or context.attach.run is not None:
            return []
        location = self._locate(workspace_request(context.attach, change or context.workspace_change))
        return [
            name for name in self.layers.variables_at(location) if name not in context.requested_variables
        ]

    def session_context(self, session: SessionId) -> SessionContext | None:
        """The facts about an existing session, or None."""
        return self._contexts.get(session)

    def add_environment(self, session: SessionId, environment: dict[str, str]) -> list[ConfigurationChange]:
        """Add variables of a session."""
        context = self._contexts.get(session)
        if context is None:
            return []
        context.environment |= {
            name: each for name, each in environment.items() if name in context.requested_variables
        }
        return self._assign_source(session)

    def move_session(self, session: SessionId, change: WorkspaceChanged) -> list[ConfigurationChange]:
        """Put the session into another workspace."""
        context = self._contexts[session]
        before = context.workspace_request
        context.workspace_change = change
        self._add_request(context.workspace_request)
        followed = self._assign_source(session, left=before)
        self._remove_request(before)
        return followed

    def session_closed(self, session: SessionId) -> list[ConfigurationChange]:
        """Forget a session, and release its source if no other session uses it."""
        if self.overrides.session_closed(session):
            self.override_store.save()
        context = self._contexts.pop(session)
        left = context.workspace_request if context.attach.run is None else None
        followed = self._release_source(context.source, left)
        self._remove_request(context.workspace_request)
        self._forget_unasked(context.workspace_request)
        return followed

    def forget_source(self, source: SourceId, why: str) -> list[ConfigurationChange]:
        """Forget a source without a session. `why`: why its servers end, as a clause for logs."""
        basis = self._sources.get(source)
        if basis is None or basis.sessions:
            return []
        request = basis.held_request
        self._release_request(basis)
        if request is not None:
            self._forget_unasked(request)
        del self._sources[source]
        return [SourceDropped(source, why)]

    def _forget_unasked(self, request: WorkspaceRequest) -> None:
        """Forget the scan of this workspace if nobody asks for it."""
        workspaces = self.layers.workspaces
        if request not in self._workspace_requests:
            workspaces.forget(request)
        if len(workspaces.scans) > len(self._workspace_requests):  # of sessions that left on their way here
            workspaces.retain(self.workspace_requests())

    def _add_request(self, request: WorkspaceRequest) -> None:
        if request != WorkspaceRequest():
            self._workspace_requests[request] += 1

    def _remove_request(self, request: WorkspaceRequest) -> None:
        self._workspace_requests[request] -= 1
        if self._workspace_requests[request] <= 0:
            del self._workspace_requests[request]

    def _assign_source(
        self, session: SessionId, *, left: WorkspaceRequest | None = None
    ) -> list[ConfigurationChange]:
        """Find the source for the facts about a session. `left`: it has moved from this workspace to another
        one.
        """
        context = self._contexts[session]
        source, basis = self._basis_of(context, self.overrides.of_session(session))
        if source == context.source:
            return []
        before, context.source = context.source, source
        followed: list[ConfigurationChange] = []
        if source not in self._sources:
            self._sources[source] = basis
            followed.append(self.resolve_source(source))
        self._sources[source].sessions += 1
        self._release_request(self._sources[source])
        moved = SessionSourceChanged(session, source, left is not None)
        return [*followed, moved, *self._release_source(before, left)]

    def _release_source(self, source: SourceId, left: WorkspaceRequest | None) -> list[ConfigurationChange]:
        """A session uses the source no more. Without another one the source stays, and this workspace is
        watched for it; None: it goes at once.
        """
        basis = self._sources[source]
        basis.sessions -= 1
        if basis.sessions > 0 or source == DEFAULT_SOURCE:
            return []
        if left is not None:
            basis.held_request = left
            self._add_request(left)
            return [SourceUnused(source)]
        del self._sources[source]
        return [SourceDropped(source)]

    def _release_request(self, basis: SourceBasis) -> None:
        """The source needs no workspace to be watched for it."""
        if basis.held_request is not None:
            self._remove_request(basis.held_request)
            basis.held_request = None

    def _basis_of(self, context: SessionContext, own: SessionOverrides) -> tuple[SourceId, SourceBasis]:
        attach = context.attach
        length = attach.tool_name_length if check_name_length(attach.tool_name_length) is None else 0
        if attach.run is not None:  # only its own server counts
            basis = SourceBasis(
                context.environment,
                "",
                "",
                run=attach.run,
                server=attach.server,
                profile=attach.profile,
                tool_name_length=length,
            )
        else:
            location = context.location = self._locate(context.workspace_request)
            project = self.layers.project_at(location)
            merged = self.layers.merged_config(location.name, project)
            config = self.overrides.apply_to_config(merged, own)
            servers = [each for each in config.servers.values() if not each.disabled]
            places = {name for each in servers for _, text in each.templates() for name in references(text)}
            environment = {each.roots for each in servers}
            placed = "workspace" in places or bool(environment - {None})
            names = variables(config)
            basis = SourceBasis(
                {name: value for name, value in context.environment.items() if name in names},
                self.layers.root_of(location) if placed or merged is not self.config else "",
                location.cwd if "cwd" in places else "",
                roots=context.roots if "agent" in environment else None,
                location=location if merged is not self.config else None,
                project=self.layers.workspaces.workspace_at(location).file if project is not None else "",
                server=attach.server,
                own=own,
                profile=attach.profile,
                tool_name_length=length,
            )
        return DEFAULT_SOURCE if basis.is_empty else basis.source_id(self._secret), basis

    def initial_request(self, attach: Attach) -> WorkspaceRequest:
        """The workspace that a session with this attach line asks for."""
        if attach.run is not None:
            return WorkspaceRequest()
        return workspace_request(attach, attach.resume.moved if attach.resume else None)

    def _locate(self, request: WorkspaceRequest) -> Location:
        return self.layers.workspaces.scan_of(request).location

    def resolve_source(self, source: SourceId) -> SourceRead:
        """Resolve this source with the present configuration."""
        basis = self._sources[source]
        if basis.run is not None:
            return self._source_read(source, basis, self.config, resolve_run(basis.run, secret=self._secret))
        project = self.layers.workspaces.projects.get(basis.project)
        config = self.overrides.apply_to_config(self.layers.merged_config(basis.name, project), basis.own)
        found = resolve(
            config,
            environment=basis.environment,
            base_environment=self._base_environment,
            env_file=self.user_file.env,
            operator=self.operator_environment,
            project_env_file=project.env if project is not None else {},
            workspace=basis.workspace,
            cwd=basis.cwd,
            home=self._home,
            secret=self._secret,
            roots=basis.roots,
            interpreter=sys.executable,
            named_root=basis.named_root,
            project=basis.project,
            logins=self._logins,
        )
        kept_out, untrusted = self.layers.servers_not_run(basis.name, project)
        found = replace(
            found,
            misconfigured={**found.misconfigured, **kept_out},
            untrusted=untrusted,
            unset=found.unset - kept_out.keys(),
        )
        return self._source_read(source, basis, config, found)

    # --- what others see ---------------------------------------------------------------------------------

    def configured_server(self, session: SessionId, name: ServerName) -> ServerConfig | None:
        """The server that a session would see under this name without overrides. None for sessions of
        `carpool run`.
        """
        context = self._contexts.get(session)
        if context is None or context.attach.run is not None:
            return None
        return self.layers.config_at(context.location).servers.get(name)

    def secrets(self) -> Iterator[str]:
        """Values of variables in use: nothing kept on disk may hold one.

        Those of an untrusted project are left out: no server gets them, and they may be words that every list
        holds.
        """
        yield from self.user_file.env.values()
        yield from self.operator_environment.values()
        for project in self.layers.workspaces.projects.values():
            if not project.trust_needed():
                yield from project.env.values()
        for basis in self._sources.values():
            yield from basis.environment.values()

    def own_environment(self) -> Mapping[str, str]:
        """The daemon's own environment, scrubbed: every server has it, with another PATH."""
        return self._own_environment

    def hook_specs(self) -> list[HookSpec]:
        """How the hooks are run. The `env_file` counts before the daemon's own environment."""
        variables = {**self._own_environment, **self.user_file.env}
        config = self.config
        return [spec_of(hook, config.file, variables, self._home) for hook in config.hooks]

    def workspace_rows(self) -> list[dict[str, object]]:
        """The named workspaces and the workspaces of sessions that have a project file, for `status`."""
        requests = {context.workspace_request for context in self._contexts.values()}
        scans = [self.layers.workspaces.scan_of(each) for each in requests]
        return self.layers.workspace_rows(
            {key for scan in scans for key in (scan.workspace.file, scan.location.lost)}
        )

    def workspace_of(self, session: SessionId) -> dict[str, str]:
        """The workspace of a session: `{name, root}`; both are empty if it has none."""
        context = self._contexts.get(session)
        if context is None or context.attach.run is not None:
            return {"name": "", "root": ""}
        return {"name": context.location.name, "root": self.layers.root_of(context.location)}

    def _source_read(
        self, source: SourceId, basis: SourceBasis, config: Config, found: Resolution
    ) -> SourceRead:
        project = self.layers.workspaces.projects.get(basis.project)
        shadowing = self.layers.shadowing_servers(basis.name, project)
        scope = profile_scope(config, basis.profile, shadowing)
        found = permitted_servers(found, config, scope.rights, shadowing)
        if basis.server:
            found = only_server(found, ServerName(basis.server))
        # no other server is visible, and names are the server's own
        if basis.server or basis.run is not None:
            scope = replace(scope, barred=tuple(each for each in scope.barred if each[0] == basis.server))
        if basis.tool_name_length:
            scope = replace(scope, name_chars=basis.tool_name_length)
        reasons = {
            name: self.overrides.disabled_reason(config.servers[name], basis.own)
            for name in found.disabled
            if name in config.servers
        }
        read = make_source_read(
            source, config, found, reasons, find=self._kept, base_scope=scope, pins=self._approvals
        )
        broken = project.lost_reason() if project is not None else ""
        user_broken = self._user_problem(basis)
        return replace(read, broken=broken, user_broken=user_broken, of_sessions=source != DEFAULT_SOURCE)

    def _user_problem(self, basis: SourceBasis) -> str:
        """Return the sentence for agents that the user's file cannot be read. One with a profile does not
        learn where it is.
        """
        if not self.problem or basis.run is not None:
            return ""
        place = self.user_file.problem_place
        at = "" if basis.profile or not safe_path(place.replace(":", "")) else f" ({place})"
        why = "so servers that it names may be missing. The user can run `carpool check`."
        return f"{USER_FILE_UNREAD}{at}, {why}"
