"""What one session's configuration comes to: which pools it uses and what may be seen of them.

Owns which servers of a configuration a session has, and in which pools; `launches` says what each is run
as. Invariants: a server that cannot be expanded is misconfigured and concerns no other server; no text made
here holds a value of an environment.

A launch has two pools, a plain one and one for agents that can be asked (rule 12). A server that must not
run twice (`stop_first`: it holds a port or a lock), or that has nothing to run, has one, greeted for agents
that can be asked. Where the era is not configured there is a third, for agents of the stateless era, which
say what they can with each call: not for a server with `pool.max` 1, unless `"era": "match"` asks for it. It
is started when it is used, never before, so `auto_connect` and `pool.min` do not count for it.

Pure. Knows nothing of: files, sockets, catalogs, where environments come from.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from carpool_broker.core.configuration.launches import (
    CannotRun,
    Launch,
    LaunchEnvironment,
    decided_fields,
    launch_of,
    run_name,
    with_decided_values,
)
from carpool_broker.core.model.approval import pin_of
from carpool_broker.core.model.scope import ScopeEntry
from carpool_protocol.carrier.attach_line import RunCommand
from carpool_protocol.config.schema.environment import is_volatile, of_caller
from carpool_protocol.config.schema.expand import is_usable
from carpool_protocol.config.schema.model import Config, ServerConfig
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Policy, PoolSpec, Root


class Resolution(Struct, frozen=True, kw_only=True):
    """All servers of one session. Every server of the configuration is in exactly one of `entries`,
    `misconfigured` and the disabled ones.
    """

    specs: list[PoolSpec]
    entries: list[ScopeEntry]
    """One entry for each spec, in the order of the file."""
    misconfigured: dict[ServerName, str]
    """The reasons, with file and line, the variable's name and what to do."""
    disabled: list[ServerName]
    twins: dict[PoolKey, PoolSpec]
    """By the key of a plain spec: the same launch, greeted for agents that can be asked."""
    own_roots: frozenset[ServerName] = frozenset()
    """The servers with `roots: agent` that are not disabled."""
    stateless: dict[PoolKey, PoolSpec] = {}
    """By the key of a spec: the same launch, for agents of the stateless era."""
    untrusted: frozenset[ServerName] = frozenset()
    """The servers among `misconfigured` that only wait for the user's trust; `resolve` adds none."""
    unset: frozenset[ServerName] = frozenset()
    """The servers among `misconfigured` that lack nothing but variables or places, which another session may
    have.
    """


def resolve(
    config: Config,
    *,
    environment: Mapping[str, str],
    base_environment: Mapping[str, str],
    env_file: Mapping[str, str],
    project_env_file: Mapping[str, str] | None = None,
    workspace: str,
    cwd: str,
    home: str,
    secret: bytes,
    roots: Sequence[Root] | None = None,
    interpreter: str,
    named_root: str = "",
    project: str = "",
    logins: str = "",
    operator: Mapping[str, str] | None = None,
) -> Resolution:
    """Expand a configuration for one session.

    `environment`: the session's values of `model.variables(config)`; `env_file`: for names not in that;
    `project_env_file`: the same for a project's own servers, before `env_file`.
    `base_environment`: the daemon's own, scrubbed; all servers get it. `workspace` and `cwd` are absolute, or
    empty where the agent did not say them. `secret` keys the hash in pool keys: one per daemon. `roots`: the
    file URIs that the agent names, for servers with `roots: agent`; None where it names none.
    `interpreter`: the Python of servers that are not a command. `named_root`: the `${workspace}` of servers
    that are written under a named workspace. `project`: the file of the project. `logins`: the
    directory of OAuth logins. `operator`: variables of an explicit `carpool up`, for the user's servers with
    `auto_connect`: after the session's own, before `env_file`.
    """
    scope = LaunchEnvironment(
        known={**env_file, **environment},
        auto_known={**env_file, **(operator or {}), **environment},
        project_known={**env_file, **(project_env_file or {}), **environment},
        places={"workspace": workspace, "cwd": cwd},
        named_places={"workspace": named_root, "cwd": cwd},
        base_environment=base_environment,
        home=home or "/",
        roots=roots,
        interpreter=interpreter,
        project=project,
        logins=logins,
    )
    specs: list[PoolSpec] = []
    entries: list[ScopeEntry] = []
    disabled: list[ServerName] = []
    twins: dict[PoolKey, PoolSpec] = {}
    stateless: dict[PoolKey, PoolSpec] = {}
    lame: dict[ServerName, CannotRun] = {}
    for written in config.servers.values():
        server = with_decided_values(written, scope)
        if isinstance(server, CannotRun):
            lame[written.name] = server
            continue
        if server.disabled:
            disabled.append(server.name)
            continue
        launch = launch_of(server, scope)
        if isinstance(launch, CannotRun):
            lame[server.name] = launch
            continue
        launch = replace(launch, decided=decided_fields(written, server), layer=scope.layer_of(server))
        if server.replace == "stop_first" or launch.offline:
            spec = launch.spec(secret, asking=True)
        else:
            spec = launch.spec(secret)
            twins[spec.key] = launch.spec(secret, asking=True)
            if launch.era == "auto" and (server.era == "match" or server.policy.max_instances != 1):
                stateless[spec.key] = _for_stateless_agents(launch, secret)
        specs.append(spec)
        entries.append(_entry(config, server, spec.key))
    return Resolution(
        specs=specs,
        entries=entries,
        misconfigured={**config.unusable, **{name: why.text for name, why in lame.items()}},
        disabled=disabled,
        twins=twins,
        own_roots=frozenset(
            each.name for each in config.servers.values() if each.roots == "agent" and not each.disabled
        ),
        stateless=stateless,
        unset=frozenset(name for name, why in lame.items() if why.unset),
    )


def resolve_run(run: RunCommand, *, secret: bytes, policy: Policy | None = None) -> Resolution:
    """Return the server of a `carpool run`: the caller's command, directory and environment, names
    unchanged. The key ignores volatile names (`environment.VOLATILE`) and never equals that of a configured
    server.
    """
    server = run_name(run)
    if not run.argv or not all(map(is_usable, (*run.argv, run.cwd))):
        why = "the command is empty, or it or its directory holds a NUL character or is not UTF-8"
        return Resolution(specs=[], entries=[], misconfigured={server: why}, disabled=[], twins={})
    env = of_caller(run.env)
    launch = Launch(
        server=server,
        argv=list(run.argv),
        env=env,
        own_env={name: value for name, value in env.items() if not is_volatile(name)},
        cwd=run.cwd,
        policy=policy or Policy(),
        era="auto",
        origin="run",
        layer="run",
    )
    spec = launch.spec(secret)
    entry = ScopeEntry(
        server=server,
        key=spec.key,
        prefix="",
        description_prefix=False,
        tools_allow=("*",),
        tools_deny=(),
        tags=(),
    )
    return Resolution(
        specs=[spec],
        entries=[entry],
        misconfigured={},
        disabled=[],
        twins={spec.key: launch.spec(secret, asking=True)},
        stateless={spec.key: _for_stateless_agents(launch, secret)},
    )


def only_server(found: Resolution, server: ServerName) -> Resolution:
    """Return one of these servers alone, its names unchanged as in `resolve_run`. The pools stay the shared
    ones.
    """
    just = filter_servers(found, lambda name: name == server)
    return replace(
        just, entries=[replace(entry, prefix="", description_prefix=False) for entry in just.entries]
    )


def filter_servers(found: Resolution, keep: Callable[[ServerName], bool]) -> Resolution:
    """Return those of these servers for which `keep` is true. The pools stay the shared ones."""
    return replace(
        found,
        specs=[spec for spec in found.specs if keep(spec.server)],
        entries=[entry for entry in found.entries if keep(entry.server)],
        misconfigured={name: why for name, why in found.misconfigured.items() if keep(name)},
        disabled=[name for name in found.disabled if keep(name)],
        twins={key: twin for key, twin in found.twins.items() if keep(twin.server)},
        stateless={key: spec for key, spec in found.stateless.items() if keep(spec.server)},
        own_roots=frozenset(filter(keep, found.own_roots)),
        untrusted=frozenset(filter(keep, found.untrusted)),
        unset=frozenset(filter(keep, found.unset)),
    )


def _for_stateless_agents(launch: Launch, secret: bytes) -> PoolSpec:
    policy = replace(launch.policy, auto_connect=False, min_instances=0)
    # Its process may turn out to know the handshake only, and then serves them until the others' does.
    return replace(launch, era="newest", policy=policy).spec(secret, asking=True)


def _entry(config: Config, server: ServerConfig, key: PoolKey) -> ScopeEntry:
    return ScopeEntry(
        server=server.name,
        key=key,
        prefix=server.tools_prefix,
        description_prefix=config.description_prefix
        if server.description_prefix is None
        else server.description_prefix,
        tools_allow=server.tools_allow,
        tools_deny=server.tools_deny,
        max_tools=server.max_tools,
        pin=pin_of(server),
        tags=server.tags,
        project=bool(server.project),
        offline=server.offline,
    )
