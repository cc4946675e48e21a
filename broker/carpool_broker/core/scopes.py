"""What one session's configuration comes to: which pools it uses and what may be seen of them.

Owns the expansion of a configuration for a session, and the pool key: two launches that are equal after
expansion (argv, environment, directory) share a pool, two that differ in anything do not. Invariants: the
policy is no part of the key, so a changed limit replaces no process; a server that cannot be expanded is
misconfigured and concerns no other server; no text made here holds a value of an environment.

A launch has two pools, a plain one and one for agents that can be asked (rule 12). A server that must not run
twice (`stop_first`: it holds a port or a lock) has one, greeted for agents that can be asked. With
`"era": "match"` there is a third, for agents of the stateless era, which say what they can with each call.

Pure. Knows nothing of: files, sockets, catalogs, where environments come from.
"""

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct, msgpack
from msgspec.structs import replace

from carpool_broker.core.run_name import run_name
from carpool_broker.core.scope import ScopeEntry
from carpool_protocol.attach import RunCommand
from carpool_protocol.config.environment import is_volatile, of_caller
from carpool_protocol.config.expand import Missing, expand, is_usable
from carpool_protocol.config.late import fill
from carpool_protocol.config.model import Config, ServerConfig
from carpool_protocol.config.problems import ConfigProblem, KeyPath, render_path
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.messages import EraWish, Policy, PoolSpec

_ERAS: Final[dict[Literal["auto", "legacy", "modern", "match"], EraWish]] = {
    "auto": "auto",
    "legacy": "handshake",
    "modern": "stateless",
    "match": "auto",
}
"""By the words of the configuration; of `match`, for agents of the handshake era."""


class Resolution(Struct, frozen=True, kw_only=True):
    """All servers of one session. Every server of the configuration is in exactly one of the three."""

    specs: list[PoolSpec]
    entries: list[ScopeEntry]
    """One for each spec, in the same order: that of the file."""
    misconfigured: dict[ServerName, str]
    """Why, with file and line, the variable's name and what to do."""
    disabled: list[ServerName]
    twins: dict[PoolKey, PoolSpec]
    """By the key of a plain spec: the same launch, greeted for agents that can be asked."""
    own_roots: frozenset[ServerName] = frozenset()
    """Servers with `roots: agent` that are not disabled."""
    stateless: dict[PoolKey, PoolSpec] = {}
    """By the key of a spec: the same launch, for agents of the stateless era."""
    untrusted: frozenset[ServerName] = frozenset()
    """Those among `misconfigured` that only wait for the user's trust; `resolve` knows of none."""


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
    roots: Sequence[str] | None = None,
) -> Resolution:
    """Expand a configuration for one session.

    `environment`: the session's values of `model.variables(config)`; `env_file`: for names not in that;
    `project_env_file`: the same for a project's own servers, before `env_file`.
    `base_environment`: the daemon's own, scrubbed; all servers get it. `workspace` and `cwd` are absolute, or
    empty where the agent did not say them. `secret` keys the hash in pool keys: one per daemon. `roots`: the
    file URIs that the agent names, for servers with `roots: agent`; None where it names none.
    """
    scope = _Scope(
        known={**env_file, **environment},
        project_known={**env_file, **(project_env_file or {}), **environment},
        places={"workspace": workspace, "cwd": cwd},
        base_environment=base_environment,
        home=home or "/",
        roots=roots,
    )
    specs: list[PoolSpec] = []
    entries: list[ScopeEntry] = []
    misconfigured: dict[ServerName, str] = dict(config.unusable)
    disabled: list[ServerName] = []
    twins: dict[PoolKey, PoolSpec] = {}
    stateless: dict[PoolKey, PoolSpec] = {}
    for written in config.servers.values():
        server = _settled(written, scope)
        if isinstance(server, str):
            misconfigured[written.name] = server
            continue
        if server.disabled:
            disabled.append(server.name)
            continue
        launch = _launch(server, scope)
        if isinstance(launch, str):
            misconfigured[server.name] = launch
            continue
        if server.replace == "stop_first":
            spec = launch.spec(secret, asking=True)
        else:
            spec = launch.spec(secret)
            twins[spec.key] = launch.spec(secret, asking=True)
            if server.era == "match":
                stateless[spec.key] = replace(launch, era="newest").spec(secret)
        specs.append(spec)
        entries.append(_entry(config, server, spec.key))
    return Resolution(
        specs=specs,
        entries=entries,
        misconfigured=misconfigured,
        disabled=disabled,
        twins=twins,
        own_roots=frozenset(
            each.name for each in config.servers.values() if each.roots == "agent" and not each.disabled
        ),
        stateless=stateless,
    )


def resolve_run(run: RunCommand, *, secret: bytes, policy: Policy | None = None) -> Resolution:
    """The one server of a `carpool run`: the caller's command, directory and environment, names untouched.

    The key ignores volatile names (`environment.VOLATILE`) and never equals that of a configured server.
    """
    server = run_name(run)
    if not run.argv or not all(map(is_usable, (*run.argv, run.cwd))):
        why = "the command is empty, or it or its directory holds a NUL character or is not UTF-8"
        return Resolution(specs=[], entries=[], misconfigured={server: why}, disabled=[], twins={})
    launch = _Launch(
        server=server,
        argv=list(run.argv),
        env=of_caller(run.env),
        cwd=run.cwd,
        policy=policy or Policy(),
        era="auto",
        origin="run",
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
    twins = {spec.key: launch.spec(secret, asking=True)}
    return Resolution(specs=[spec], entries=[entry], misconfigured={}, disabled=[], twins=twins)


def only(found: Resolution, server: ServerName) -> Resolution:
    """One server of these, its names untouched as in `resolve_run`. The pools stay those that all share."""
    entries = [
        replace(entry, prefix="", description_prefix=False)
        for entry in found.entries
        if entry.server == server
    ]
    return replace(
        found,
        specs=[spec for spec in found.specs if spec.server == server],
        entries=entries,
        misconfigured={name: why for name, why in found.misconfigured.items() if name == server},
        disabled=[name for name in found.disabled if name == server],
        twins={key: twin for key, twin in found.twins.items() if twin.server == server},
        stateless={key: spec for key, spec in found.stateless.items() if spec.server == server},
        own_roots=found.own_roots & {server},
        untrusted=found.untrusted & {server},
    )


def pool_key(
    server: ServerName,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    *,
    secret: bytes,
    origin: str = "config",
    era: EraWish = "handshake",
    capabilities: str = "",
    roots: Sequence[str] | None = None,
) -> PoolKey:
    """`server:` and 16 hex digits of a keyed hash, so that a key tells nothing about the values in it.

    `origin` keeps servers of `carpool run` apart from configured ones, whose policies may differ.
    `capabilities` is the class of agents (rule 12), `roots` is rule 6's. A process speaks one era for as long
    as it lives.
    """
    # A list of lists in msgpack is unambiguous: no two launches have the same bytes.
    told = None if roots is None else list(roots)
    launch = msgpack.encode([origin, server, list(argv), sorted(env.items()), cwd, era, capabilities, told])
    keyed = hashlib.blake2b(launch, key=hashlib.blake2b(secret, digest_size=32).digest(), digest_size=8)
    return PoolKey(f"{server}:{keyed.hexdigest()}")


class _Scope(Struct, frozen=True, kw_only=True):
    """What a session brings to its configuration."""

    known: Mapping[str, str]
    project_known: Mapping[str, str]
    """For servers of a project: its own `env_file` is none of the user's."""
    places: Mapping[str, str]
    base_environment: Mapping[str, str]
    home: str
    roots: Sequence[str] | None

    def expand(self, server: ServerConfig, text: str) -> str | Missing:
        return expand(text, self.project_known if server.project else self.known, self.places)


class _Launch(Struct, frozen=True, kw_only=True):
    """What is run, before it is known for which agents."""

    server: ServerName
    argv: list[str]
    env: dict[str, str]
    cwd: str
    policy: Policy
    stop_first: bool = False
    roots: list[str] | None = None
    era: EraWish = "handshake"
    origin: str = "config"

    def spec(self, secret: bytes, *, asking: bool = False) -> PoolSpec:
        """The pool of agents that can be asked, or the plain one."""
        env = self.env
        if self.origin == "run":
            env = {name: value for name, value in env.items() if not is_volatile(name)}
        return PoolSpec(
            key=pool_key(
                self.server,
                self.argv,
                env,
                self.cwd,
                secret=secret,
                origin=self.origin,
                era=self.era,
                capabilities="asking" if asking else "",
                roots=self.roots,
            ),
            server=self.server,
            argv=self.argv,
            env=self.env,
            cwd=self.cwd,
            policy=self.policy,
            stop_first=self.stop_first,
            asking=asking,
            roots=self.roots,
            era=self.era,
        )


def _settled(server: ServerConfig, scope: _Scope) -> ServerConfig | str:
    """With the numbers and switches that variables decide; a text where one of them cannot be read."""
    if not server.late:
        return server
    filled: dict[KeyPath, str] = {}
    for path, text in server.late.items():
        value = scope.expand(server, text)
        if isinstance(value, Missing):
            return _problem(server, path, value.render())
        filled[path] = value
    found = fill(server, filled)
    if isinstance(found, list):
        return "; ".join(_problem(server, path, text) for path, text in found)
    return found


def _problem(server: ServerConfig, path: KeyPath, text: str) -> str:
    where = render_path((*server.under, *path))
    return ConfigProblem(server.file, server.lines.get(path, server.lines[()]), where, text).render()


def _launch(server: ServerConfig, scope: _Scope) -> _Launch | str:
    """What to run, or why it cannot be."""
    filled: dict[KeyPath, str] = {}
    problems: list[str] = []

    def problem(path: KeyPath, text: str) -> None:
        problems.append(_problem(server, path, text))

    for path, text in server.templates():
        value = scope.expand(server, text)
        if isinstance(value, Missing):
            problem(path, value.render())
        else:
            filled[path] = value
    roots = _roots(server, scope)
    if isinstance(roots, Missing):
        problem(("roots",), roots.render())
    if problems or isinstance(roots, Missing):
        return "; ".join(problems)
    command = _from_home(filled["command",], scope.home)
    if not command.strip():
        problem(("command",), "is empty once its variables are filled in")
        return problems[0]
    return _Launch(
        server=server.name,
        argv=[command, *(filled["args", at] for at in range(len(server.args)))],
        env={**scope.base_environment, **{name: filled["env", name] for name in server.env}},
        cwd=_directory(
            filled["cwd",], scope.places["workspace"] if server.project else scope.home, scope.home
        ),
        policy=server.policy,
        stop_first=server.replace == "stop_first",
        roots=roots,
        era=_ERAS[server.era],
    )


def _roots(server: ServerConfig, scope: _Scope) -> list[str] | Missing | None:
    """What the server is told as roots (rule 6). None: they are not declared to it."""
    if server.roots is None:
        return None
    if server.roots == "agent" and scope.roots is not None:
        return list(scope.roots)
    workspace = scope.places["workspace"]
    if not workspace:
        return Missing("workspace")
    if not is_usable(workspace):
        return Missing("workspace", "unusable")
    return [f"file://{quote(_directory(workspace, scope.home, scope.home))}"]


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
        tags=server.tags,
    )


def _from_home(path: str, home: str) -> str:
    if path == "~":
        return home
    return posixpath.join(home, path[2:]) if path.startswith("~/") else path


def _directory(path: str, base: str, home: str) -> str:
    """An absolute directory in one spelling, so that `/a/b/` and `/a/b` share. `base`: of a relative one.

    `..` stays: through a symbolic link it is not what it looks like.
    """
    whole = posixpath.join(base or home, _from_home(path, home))
    return whole if ".." in whole.split("/") else posixpath.normpath(whole)
