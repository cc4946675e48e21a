"""What a server is run as, the key of its pool, and the name of a server that `carpool run` starts.

Owns the expansion of one server for one session, and the pool key: two launches that are equal after
expansion (argv, environment, directory) share a pool, two that differ in anything do not. Invariants: the
policy is no part of the key, so a changed limit replaces no process, except where variables decide it or a
workspace or project has another one than everybody; no session's environment and no project has a say in the
pool of another; no text made here holds a value of an environment. The name of a `carpool run` is the wished
one, else that of the package or the program; words that may hold a secret are passed over.

Pure. Refuses to know: files, other servers, what agents see of one, where environments come from.
"""

import hashlib
import posixpath
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct, msgpack, structs

from carpool_protocol.carrier.attach_line import RunCommand
from carpool_protocol.carrier.remote import BRIDGE
from carpool_protocol.config.reading.late_values import fill_late_values
from carpool_protocol.config.schema.environment import is_built_in
from carpool_protocol.config.schema.expand import (
    PLACE_NAMES,
    MissingValue,
    expand,
    from_home,
    is_usable,
    references,
)
from carpool_protocol.config.schema.model import ServerConfig, takes_operator_variables
from carpool_protocol.config.schema.server_kinds import module_name_problem
from carpool_protocol.config.schema.url_servers import remote_of
from carpool_protocol.config.text.problems import ConfigProblem, KeyPath, render_path
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import EraWish, NodeTarget, Policy, PoolSpec, Root
from carpool_protocol.wire.tool_name_resolver import MAX_SERVER_NAME_CHARS, check_server_name

_ERA_WISHES: Final[dict[Literal["auto", "legacy", "modern", "match"], EraWish]] = {
    "auto": "auto",
    "legacy": "handshake",
    "modern": "stateless",
    "match": "auto",
}
"""The eras by the words of the configuration. `auto` and `match` are meant for agents of the
handshake era.
"""


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
    roots: Sequence[Root] | None = None,
    decided: Sequence[tuple[str, object]] = (),
) -> PoolKey:
    """Return the key of a pool: `server:` and 16 hexadecimal digits of a keyed hash, so that the key tells
    nothing about the values in it. `origin` tells servers of `carpool run` from configured ones, whose
    policies may differ. `capabilities` is the class of agents (docs/rules.md, rule 12), `roots` is for rule
    6. A process speaks one era as long as it lives. `decided_fields`: see `Launch`.
    """
    # A list of lists in msgpack is unambiguous: no two launches have the same bytes.
    told = None if roots is None else list(roots)
    launch = [origin, server, list(argv), sorted(env.items()), cwd, era, capabilities, told]
    data = msgpack.encode([*launch, decided] if decided else launch)
    keyed = hashlib.blake2b(data, key=hashlib.blake2b(secret, digest_size=32).digest(), digest_size=8)
    return PoolKey(f"{server}:{keyed.hexdigest()}")


class LaunchEnvironment(Struct, frozen=True, kw_only=True):
    """What a session adds to its configuration."""

    known: Mapping[str, str]
    auto_known: Mapping[str, str] | None = None
    """The variables for the user's servers with `auto_connect`; None: as `known`."""
    project_known: Mapping[str, str]
    """The variables for servers of a project, without the user's `env_file`."""
    places: Mapping[str, str]
    named_places: Mapping[str, str]
    """The places for servers of a named workspace: a project within it has a root of its own."""
    base_environment: Mapping[str, str]
    home: str
    roots: Sequence[Root] | None
    interpreter: str
    """The Python of carpool's own children, which is the daemon's."""
    project: str = ""
    """The file of the project; empty: there is none."""
    logins: str = ""
    """The directory of OAuth logins; empty if there is none."""

    def expand(self, server: ServerConfig, text: str) -> str | MissingValue:
        return expand(text, self.variables_of(server), self.directories_of(server))

    def variables_of(self, server: ServerConfig) -> Mapping[str, str]:
        if server.project:
            return self.project_known
        if self.auto_known is not None and takes_operator_variables(server):
            return self.auto_known
        return self.known

    def directories_of(self, server: ServerConfig) -> Mapping[str, str]:
        return self.named_places if server.workspace else self.places

    def layer_of(self, server: ServerConfig) -> str:
        """Return the layer that the server comes from (`PoolSpec.layer`)."""
        if server.project:
            return self.project
        return f"workspace {server.workspace}" if server.workspace else ""

    def base_directory(self, server: ServerConfig) -> str:
        """Return the directory to which a relative directory of the server is relative."""
        return self.directories_of(server)["workspace"] if server.project or server.workspace else self.home


class Launch(Struct, frozen=True, kw_only=True):
    """What is run for a server, before the class of agents is known."""

    server: ServerName
    argv: list[str]
    env: dict[str, str]
    """The whole environment, but for PATH."""
    own_env: dict[str, str]
    """The part of `env` that the pool key counts: the variables of the server's entry. The key leaves out the
    environment of carpool's own start, so another starter finds the cached catalogs as well.
    """
    cwd: str
    policy: Policy
    stop_first: bool = False
    roots: list[Root] | None = None
    era: EraWish = "handshake"
    origin: str = "config"
    bridge: bool = False
    """True if it is carpool's bridge to a URL, or carpool at another node."""
    target: NodeTarget | None = None
    """The server of other nodes that it is; None: it runs here."""
    offline: bool = False
    """True if there is nothing to run, only a list of tools."""
    layer: str = ""
    """See `PoolSpec.layer`. It is no part of the pool key."""
    secrets: list[str] = []
    """The values of variables that were expanded into it."""
    decided: tuple[tuple[str, object], ...] = ()
    """The fields of the policy that variables decide, or in which the server differs from the one of all
    sessions, and their values.
    """

    def spec(self, secret: bytes, *, asking: bool = False) -> PoolSpec:
        """Return the pool for agents that can be asked, or the plain one."""
        return PoolSpec(
            key=pool_key(
                self.server,
                self.argv,
                self.own_env,
                self.cwd,
                secret=secret,
                origin=self.origin,
                era=self.era,
                capabilities="asking" if asking else "",
                roots=self.roots,
                decided=self.decided,
            ),
            server=self.server,
            argv=self.argv,
            env=self.env,
            cwd=self.cwd,
            policy=self.policy,
            secrets=self.secrets,
            stop_first=self.stop_first,
            asking=asking,
            roots=self.roots,
            era=self.era,
            bridge=self.bridge,
            target=self.target,
            offline=self.offline,
            layer=self.layer,
        )


class CannotRun(Struct, frozen=True):
    """The reason why a server cannot be run for a session."""

    text: str
    """The reason with file and line, and what to do. It has no value of an environment."""
    unset: bool = False
    """True if only variables or places are missing here: another agent may bring them."""


def with_decided_values(server: ServerConfig, launch: LaunchEnvironment) -> ServerConfig | CannotRun:
    """Return the policy with the numbers and switches that variables decide, where they can be read."""
    if not server.late:
        return server
    filled: dict[KeyPath, str] = {}
    for path, text in server.late.items():
        value = launch.expand(server, text)
        if isinstance(value, MissingValue):
            return CannotRun(_problem(server, path, value.render()), value.cause == "unset")
        filled[path] = value
    found = fill_late_values(server, filled)
    if isinstance(found, list):
        return CannotRun("; ".join(_problem(server, path, text) for path, text in found))
    return found


def decided_fields(written: ServerConfig, server: ServerConfig) -> tuple[tuple[str, object], ...]:
    """Return `Launch.decided`. `server` is the server with its defaults, `written` the one of the file."""
    beneath = written.policy if written.beneath is None else written.beneath
    if beneath == server.policy:
        return ()
    before, now = structs.asdict(beneath), structs.asdict(server.policy)
    return tuple((field, value) for field, value in now.items() if value != before[field])


def _problem(server: ServerConfig, path: KeyPath, text: str) -> str:
    where = render_path((*server.under, *path))
    return ConfigProblem(server.file, server.lines.get(path, server.lines[()]), where, text).render()


def launch_of(server: ServerConfig, launch: LaunchEnvironment) -> Launch | CannotRun:
    """Return what to run, or why it cannot be run."""
    filled: dict[KeyPath, str] = {}
    missing: dict[KeyPath, MissingValue] = {}
    for path, text in server.templates():
        value = launch.expand(server, text)
        if isinstance(value, MissingValue):
            missing[path] = value
        else:
            filled[path] = value
    roots = _roots(server, launch)
    if isinstance(roots, MissingValue):
        missing["roots",] = roots
    if missing or isinstance(roots, MissingValue):
        problems = (_problem(server, path, each.render()) for path, each in missing.items())
        return CannotRun("; ".join(problems), all(each.cause == "unset" for each in missing.values()))
    if server.is_offline:
        policy = structs.replace(server.policy, auto_connect=False, min_instances=0)
        return Launch(
            server=server.name, argv=[], env={}, own_env={}, cwd=launch.home, policy=policy, offline=True
        )
    if server.node is not None:
        return _node_launch(server, server.node, launch)
    if server.url is not None:
        return _bridge_launch(server, filled, roots, launch)
    cwd = _directory(filled["cwd",], launch.base_directory(server), launch.home)
    if server.python is not None:
        argv = _module_argv(server, filled, cwd, launch)
    else:
        command = from_home(filled.get(("command",), ""), launch.home)
        argv = [command, *(filled["args", at] for at in range(len(server.args)))]
    if not argv[0].strip():
        key = "command" if server.python is None else "interpreter"
        return CannotRun(_problem(server, (key,), "is empty once its variables are filled in"))
    if server.python is not None and (why := module_name_problem(argv[-1])) is not None:
        return CannotRun(_problem(server, ("python",), why))
    own_env = {name: filled["env", name] for name in server.env}
    return Launch(
        server=server.name,
        secrets=_secrets(server, launch),
        argv=argv,
        env={**launch.base_environment, **own_env},
        own_env=own_env,
        cwd=cwd,
        policy=server.policy,
        stop_first=server.replace == "stop_first",
        roots=roots,
        # A child of ours needs no finding out.
        era="handshake" if server.python is not None and server.era == "auto" else _ERA_WISHES[server.era],
    )


def _bridge_launch(
    server: ServerConfig, filled: Mapping[KeyPath, str], roots: list[Root] | None, launch: LaunchEnvironment
) -> Launch | CannotRun:
    """Return the launch of carpool's bridge to a URL. All its secrets are in its environment."""
    remote = remote_of(server, filled, launch.logins)
    if isinstance(remote, list):
        return CannotRun("; ".join(_problem(server, path, text) for path, text in remote))
    own_env = {name: filled["env", name] for name in server.env} | remote.to_environment()
    return Launch(
        server=server.name,
        secrets=_secrets(server, launch),
        argv=[launch.interpreter, "-P", "-m", BRIDGE],
        env={**launch.base_environment, **own_env},
        own_env=own_env,
        cwd=launch.home,
        policy=server.policy,
        stop_first=server.replace == "stop_first",
        roots=roots,
        era=_ERA_WISHES[server.era],
        bridge=True,
    )


MAX_NODE_SESSIONS: Final = 2000
"""The most sessions of one server of another node. Each agent that uses it has one."""
NODE_RETRY_S: Final = 2.0
"""A node that did not answer is tried again this soon: it may just be started."""


def _node_launch(server: ServerConfig, node: str, launch: LaunchEnvironment) -> Launch:
    """Return the launch of a server of other nodes: a session there for each agent, and no process. The
    sharing mode in the configuration is the one of the server there.
    """
    there = server.server or server.name
    policy = structs.replace(
        server.policy,
        sharing="session",
        max_instances=server.policy.max_instances or MAX_NODE_SESSIONS,
        open_s=NODE_RETRY_S,
        max_delay_s=NODE_RETRY_S,
    )
    keeps_state = server.policy.sharing in {"auto", "session"}
    return Launch(
        server=server.name,
        # What it is called in lists of processes, and part of its pool key.
        argv=["session", node, there],
        env={},
        own_env={},
        cwd=launch.home,
        policy=policy,
        bridge=True,
        target=NodeTarget(node, there, keeps_state),
    )


def _secrets(server: ServerConfig, launch: LaunchEnvironment) -> list[str]:
    """Return the values of the variables that the server's texts refer to, without those that are no
    secrets.
    """
    known = launch.variables_of(server)
    names = {name for _, text in server.templates() for name in references(text)} - PLACE_NAMES
    return sorted({known[name] for name in names if name in known and not is_built_in(name)})


def _module_argv(
    server: ServerConfig, filled: Mapping[KeyPath, str], cwd: str, launch: LaunchEnvironment
) -> list[str]:
    """Return the command of carpool's child that offers the functions of a module, whose name is the last
    word. `-P` is needed because a file in the directory can have the name of a module that the child itself
    imports.
    """
    interpreter = filled.get(("interpreter",), launch.interpreter)
    if "/" in interpreter:
        interpreter = posixpath.join(cwd, from_home(interpreter, launch.home))
    strict = ["--strict"] if server.strict else []
    return [interpreter, "-P", "-m", "carpool.pymodule", *strict, filled["python",]]


def _roots(server: ServerConfig, launch: LaunchEnvironment) -> list[Root] | MissingValue | None:
    """Return the roots that the server is told (docs/rules.md, rule 6). None: the capability is not declared
    to it.
    """
    if server.roots is None:
        return None
    if server.roots == "agent" and launch.roots is not None:
        return list(launch.roots)
    workspace = launch.directories_of(server)["workspace"]
    if not workspace:
        return MissingValue("workspace")
    if not is_usable(workspace):
        return MissingValue("workspace", "unusable")
    return [Root(f"file://{quote(_directory(workspace, launch.home, launch.home))}")]


def _directory(path: str, base: str, home: str) -> str:
    """Return an absolute directory in one spelling, so that `/a/b/` and `/a/b` share a pool. A relative one
    begins at `base`. `..` stays, because through a symbolic link it leads elsewhere.
    """
    whole = posixpath.join(base or home, from_home(path, home))
    return whole if ".." in whole.split("/") else posixpath.normpath(whole)


_RUNNERS = frozenset(
    {"npx", "bunx", "pnpx", "uvx", "uv", "pipx", "python", "python3", "node", "bun", "deno", "ruby", "java"}
)
"""Programs that run another program, which their first plain argument names."""
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
"""Options of such programs whose value does not name the server."""
_PACKAGE = re.compile(r"[@\w./-]+", re.ASCII)
_PACKAGE_CHARS = 256


def run_name(run: RunCommand) -> ServerName:
    """Return a legal server name for a `carpool run`: the wished one, else that of the package or the
    program.
    """
    if run.name and check_server_name(run.name) is None:
        return ServerName(run.name)
    words = [run.name] if run.name else [*map(_last_part, run.argv[:1])]
    if words and words[0] in _RUNNERS:
        words = [_last_part(word) for word in _package_of(run.argv)] or words
    name = re.sub(r"[^A-Za-z0-9]+", "-", words[0][-_PACKAGE_CHARS:] if words else "").strip("-")
    return ServerName(name[:MAX_SERVER_NAME_CHARS].strip("-") or "run")


def _package_of(argv: Sequence[str]) -> list[str]:
    """Return the package that such a program runs: its first argument that is neither option nor verb. Words
    like `KEY=value` or a URL are passed over, because names are shown everywhere and these may hold a
    secret.
    """
    for before, word in pairwise(argv):
        if word.startswith("-") or word in _RUNNER_VERBS or before in _VALUE_FLAGS:
            continue
        if len(word) <= _PACKAGE_CHARS and _PACKAGE.fullmatch(word) and not word[0].isdigit():
            return [word]
    return []


def _last_part(word: str) -> str:
    """Return the name in a path or package: `@scope/server-x@1.2` and `/opt/server-x.py` both give
    `server-x`.
    """
    last = word.rstrip("/").rpartition("/")[2]
    return re.sub(r"\.(py|js|mjs|cjs|ts|sh|jar|rb|exe)$", "", last.partition("@")[0] or last)
