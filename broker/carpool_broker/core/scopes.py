"""What one session's configuration comes to: which pools it uses and what may be seen of them.

Owns the expansion of a configuration for a session, and the pool key: two launches that are equal after
expansion (argv, environment, directory) share a pool, two that differ in anything do not. Invariants: the
policy is no part of the key, so a changed limit replaces no process; a server that cannot be expanded is
misconfigured and concerns no other server; no text made here holds a value of an environment.

Pure. Knows nothing of: files, sockets, catalogs, where environments come from.
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct, msgpack

from carpool_broker.core.scope import ScopeEntry
from carpool_protocol.attach import RunCommand
from carpool_protocol.config.environment import is_volatile, of_caller
from carpool_protocol.config.expand import Missing, expand, is_usable
from carpool_protocol.config.model import Config, ServerConfig
from carpool_protocol.config.problems import ConfigProblem, render_path
from carpool_protocol.config.shape import SERVERS
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.messages import Policy, PoolSpec
from carpool_protocol.names import MAX_SERVER_NAME_CHARS, check_server_name

_RUNNERS = frozenset(
    {"npx", "bunx", "pnpx", "uvx", "uv", "pipx", "python", "python3", "node", "bun", "deno", "ruby", "java"}
)
"""Programs that say nothing about the server: their first plain argument does."""
_RUNNER_VERBS = frozenset({"run", "exec", "x", "tool", "dlx"})
_VALUE_FLAGS = frozenset(
    {
        "--directory",
        "--project",
        "--python",
        "--with",
        "--from",
        "--package",
        "-p",
        "--registry",
        "-r",
        "--require",
    }
)
"""Options of runners whose value is not the server."""
_PACKAGE = re.compile(r"[@\w./-]+", re.ASCII)
_PACKAGE_CHARS = 256


class Resolution(Struct, frozen=True, kw_only=True):
    """All servers of one session. Every server of the configuration is in exactly one of the three."""

    specs: list[PoolSpec]
    entries: list[ScopeEntry]
    """One for each spec, in the same order: that of the file."""
    misconfigured: dict[ServerName, str]
    """Why, with file and line, the variable's name and what to do."""
    disabled: list[ServerName]


def resolve(
    config: Config,
    *,
    environment: Mapping[str, str],
    base_environment: Mapping[str, str],
    env_file: Mapping[str, str],
    workspace: str,
    cwd: str,
    home: str,
    secret: bytes,
) -> Resolution:
    """Expand a configuration for one session.

    `environment`: the session's values of `model.variables(config)`; `env_file`: for names not in that.
    `base_environment`: the daemon's own, scrubbed; all servers get it. `workspace` and `cwd` are absolute, or
    empty where the agent did not say them. `secret` keys the hash in pool keys: one per daemon.
    """
    scope = _Scope(
        known={**env_file, **environment},
        places={"workspace": workspace, "cwd": cwd},
        base_environment=base_environment,
        home=home or "/",
        secret=secret,
    )
    specs: list[PoolSpec] = []
    entries: list[ScopeEntry] = []
    misconfigured: dict[ServerName, str] = {}
    disabled: list[ServerName] = []
    for server in config.servers.values():
        if server.disabled:
            disabled.append(server.name)
            continue
        spec = _launch(config.file, server, scope)
        if isinstance(spec, str):
            misconfigured[server.name] = spec
            continue
        specs.append(spec)
        entries.append(_entry(config, server, spec.key))
    return Resolution(specs=specs, entries=entries, misconfigured=misconfigured, disabled=disabled)


def resolve_run(run: RunCommand, *, secret: bytes, policy: Policy | None = None) -> Resolution:
    """The one server of a `carpool run`: the caller's command, directory and environment, names untouched.

    The key ignores volatile names (`environment.VOLATILE`) and never equals that of a configured server.
    """
    server = run_name(run)
    if not run.argv or not all(map(is_usable, (*run.argv, run.cwd))):
        why = "the command is empty, or it or its directory holds a NUL character or is not UTF-8"
        return Resolution(specs=[], entries=[], misconfigured={server: why}, disabled=[])
    env = of_caller(run.env)
    keyed = {name: value for name, value in env.items() if not is_volatile(name)}
    key = pool_key(server, run.argv, keyed, run.cwd, secret=secret, origin="run")
    spec = PoolSpec(
        key=key, server=server, argv=list(run.argv), env=env, cwd=run.cwd, policy=policy or Policy()
    )
    entry = ScopeEntry(
        server=server,
        key=key,
        prefix="",
        description_prefix=False,
        tools_allow=("*",),
        tools_deny=(),
        tags=(),
    )
    return Resolution(specs=[spec], entries=[entry], misconfigured={}, disabled=[])


def pool_key(
    server: ServerName,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    *,
    secret: bytes,
    origin: str = "config",
    era: str = "",
    capabilities: str = "",
) -> PoolKey:
    """`server:` and 16 hex digits of a keyed hash, so that a key tells nothing about the values in it.

    `origin` keeps servers of `carpool run` apart from configured ones, whose policies may differ. `era` and
    `capabilities` (rule 12) have one value each until servers of both kinds exist.
    """
    # A list of lists in msgpack is unambiguous: no two launches have the same bytes.
    launch = msgpack.encode([origin, server, list(argv), sorted(env.items()), cwd, era, capabilities])
    keyed = hashlib.blake2b(launch, key=hashlib.blake2b(secret, digest_size=32).digest(), digest_size=8)
    return PoolKey(f"{server}:{keyed.hexdigest()}")


def run_name(run: RunCommand) -> ServerName:
    """A legal server name for a `carpool run`: the wished one, else the package's or the program's."""
    if run.name and check_server_name(run.name) is None:
        return ServerName(run.name)
    words = [run.name] if run.name else [*map(_last_part, run.argv[:1])]
    if words and words[0] in _RUNNERS:
        words = [_last_part(word) for word in _package_of(run.argv)] or words
    name = re.sub(r"[^A-Za-z0-9]+", "-", words[0][-_PACKAGE_CHARS:] if words else "").strip("-")
    return ServerName(name[:MAX_SERVER_NAME_CHARS].strip("-") or "run")


def _package_of(argv: Sequence[str]) -> list[str]:
    """What a runner runs: its first argument that is neither option nor verb.

    Anything odd is passed over: names are shown everywhere, and `KEY=value` or a URL may hold a secret.
    """
    for before, word in pairwise(argv):
        if word.startswith("-") or word in _RUNNER_VERBS or before in _VALUE_FLAGS:
            continue
        if len(word) <= _PACKAGE_CHARS and _PACKAGE.fullmatch(word) and not word[0].isdigit():
            return [word]
    return []


def _last_part(word: str) -> str:
    """`@scope/server-x@1.2` and `/opt/server-x.py` are both `server-x`."""
    last = word.rstrip("/").rpartition("/")[2]
    return re.sub(r"\.(py|js|mjs|cjs|ts|sh|jar|rb|exe)$", "", last.partition("@")[0] or last)


class _Scope(Struct, frozen=True, kw_only=True):
    """What a session brings to its configuration."""

    known: Mapping[str, str]
    places: Mapping[str, str]
    base_environment: Mapping[str, str]
    home: str
    secret: bytes


def _launch(file: str, server: ServerConfig, scope: _Scope) -> PoolSpec | str:
    """What to run, or why it cannot be."""
    filled: dict[tuple[str | int, ...], str] = {}
    problems: list[str] = []
    for path, text in server.templates():
        value = expand(text, scope.known, scope.places)
        if isinstance(value, Missing):
            where = render_path((SERVERS, server.name, *path))
            line = server.lines.get(path, server.lines[()])
            problems.append(ConfigProblem(file, line, where, value.render()).render())
            continue
        filled[path] = value
    if problems:
        return "; ".join(problems)
    command = _from_home(filled["command",], scope.home)
    if not command.strip():
        line = server.lines["command",]
        where = render_path((SERVERS, server.name, "command"))
        return ConfigProblem(file, line, where, "is empty once its variables are filled in").render()
    argv = [command, *(filled["args", at] for at in range(len(server.args)))]
    env = {**scope.base_environment, **{name: filled["env", name] for name in server.env}}
    cwd = _directory(filled["cwd",], scope.home)
    key = pool_key(server.name, argv, env, cwd, secret=scope.secret)
    return PoolSpec(
        key=key,
        server=server.name,
        argv=argv,
        env=env,
        cwd=cwd,
        policy=server.policy,
        stop_first=server.replace == "stop_first",
    )


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


def _directory(path: str, home: str) -> str:
    """An absolute directory in one spelling, so that `/a/b/` and `/a/b` share.

    `..` stays: through a symbolic link it is not what it looks like.
    """
    whole = posixpath.join(home, _from_home(path, home))
    return whole if ".." in whole.split("/") else posixpath.normpath(whole)
