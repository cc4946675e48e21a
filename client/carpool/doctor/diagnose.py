"""`diagnose`: from facts about this machine to the problems that `carpool doctor` shows.

Owns which fact is which problem, its sentence, and the line that repairs it. A pure function;
`cli.doctor_facts` collects the facts. Knows nothing of: files, processes, terminals.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, structs

from carpool.check.open_files import OpenFile
from carpool.check.programs import MissingProgram
from carpool.cluster.node_facts import NodeFacts
from carpool.doctor.cluster_problems import MissingFile, cluster_problems, server_at_node
from carpool.doctor.kinds import KINDS, RESTART_COSTS
from carpool.doctor.symptoms import (
    HEADERS,
    SILENT_CAUSES,
    expects_headers,
    is_lasting,
    is_silent_greeting,
    stdout_noise,
    symptom,
)
from carpool.launcher.other_carpools import OtherCarpool, other_carpool_text
from carpool.readings.config_here import agents_elsewhere
from carpool.readings.health_line import MANY_DENIALS
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.node_servers import PLACED_NOWHERE
from carpool_protocol.wire.capabilities import OFFERS_NOTHING

FREE_BYTES: Final = 50 * 1024 * 1024
"""Less free space than this is a problem."""

START_S: Final = 10.0
"""Supervisors may take this long to connect to a new broker."""

_NEXT_START: Final = "Nothing is needed: the next start takes its place. `carpool doctor --fix` removes it."

_UNSHADOW: Final = (
    "If you want both, rename one of the two servers, or move the servers of the file that is not read."
)

EVERYTHING: Final = "*"
"""The `match` of a hook that gets the calls of all servers."""

Fix = Literal["", "restart", "remove_socket", "restrict"]
"""A repair that `--fix` can do: restart carpool with the installed version, remove a socket on which nothing
listens, take the rights of other users away from a file or directory.
"""


class WrittenDirectory(Struct, frozen=True):
    """One directory that carpool writes to."""

    path: str
    variable: str
    """The variable that chooses another place."""
    writable: bool
    free_bytes: int


class NotPrivate(Struct, frozen=True):
    """A directory of carpool that other users could use."""

    path: str
    text: str
    """What is wrong; and after the last `; ` what to do."""
    may_restrict: bool
    """True if it is this user's directory and only its mode is wrong."""


class Facts(Struct, frozen=True, kw_only=True):
    """What was found on this machine."""

    installed: str
    """The version of this command."""
    config_problems: tuple[str, ...] = ()
    misconfigured: Mapping[str, str] = {}
    """By server: the reason."""
    absent: Mapping[str, MissingProgram] = {}
    """By server: the program or package that is missing."""
    unset: tuple[str, ...] = ()
    waiting: str = ""
    """Why the servers of the project here are not in force."""
    warnings: tuple[str, ...] = ()
    """The other warnings of `carpool check`."""
    shadowed: tuple[str, ...] = ()
    """Servers that others replace, and project files that others hide."""
    open_files: tuple[OpenFile, ...] = ()
    door: str = ""
    """Why the HTTP door cannot open; and after the last `; ` what to do."""
    names_cut: tuple[str, ...] = ()
    not_private: tuple[NotPrivate, ...] = ()
    places: tuple[WrittenDirectory, ...] = ()
    status: Mapping[str, Any] | None = None
    """The answer to `carpool/status`; None if carpool does not run, or does not answer."""
    config_named: bool = False
    """True if somebody has named a configuration file, for the carpool that runs or here."""
    config_way: str = ""
    """The commands that make carpool run with the configuration of this environment."""
    last_warnings: Mapping[str, str] = {}
    """By server whose calls fail: the last warning in its log."""
    held: bool = False
    """True if a process holds the lock of the runtime directory."""
    node: NodeFacts | None = None
    """The facts of the node's process; None: there is none."""
    cluster_files: tuple[MissingFile, ...] = ()
    """Files that the settings of the cluster need and that are not there."""
    socket: Literal["", "socket", "other"] = ""
    """The kind of file at the path of the socket; empty: there is none."""


class Problem(Struct, frozen=True):
    """One problem that was found."""

    id: str
    fault: str
    text: str
    repair: str
    """A command or an instruction."""
    server: str = ""
    fix: Fix = ""
    path: str = ""
    """The file or directory of `fix`."""
    may_be_meant: bool = False
    """True if nothing is wrong should the user mean it."""


def diagnose(facts: Facts) -> list[Problem]:
    """Return the problems, in the order of `KINDS`, which begins with the most serious."""
    of_cluster = cluster_problems(facts.node, facts.cluster_files, facts.installed)
    found = [
        *_of_configuration(facts),
        *_of_daemon(facts),
        *_of_places(facts),
        *(_problem(*each) for each in of_cluster),
    ]
    order = {kind: number for number, kind in enumerate(KINDS)}
    return sorted(found, key=lambda problem: order[problem.id])


def _problem(kind: str, text: str, repair: str, server: str = "", fix: Fix = "") -> Problem:
    found = KINDS[kind]
    return Problem(kind, found.fault, text, repair, server, fix, may_be_meant=found.may_be_meant)


def _of_open_file(file: OpenFile) -> Problem:
    names = ", ".join(file.names)
    text = f"Every user of this machine can read {file.path}, which holds {names}."
    fix: Fix = "restrict" if file.may_restrict else ""
    found = _problem("secrets-readable", text, f"Run `chmod 600 {file.path}`.", fix=fix)
    return structs.replace(found, path=file.path if fix else "")


def _of_not_private(directory: NotPrivate) -> Problem:
    text, _, repair = directory.text.rpartition("; ")
    fix: Fix = "restrict" if directory.may_restrict else ""
    found = _problem("not-private", f"{text}.", f"{repair[:1].upper()}{repair[1:]}.", fix=fix)
    return structs.replace(found, path=directory.path if fix else "")


def _of_configuration(facts: Facts) -> Iterator[Problem]:
    for text in facts.config_problems:
        yield _problem("config-broken", text, "Mend that line; `carpool check` says when it is right.")
    for server, text in facts.misconfigured.items():
        yield _problem(
            "server-misconfigured", text, "Mend the entry; `carpool check` reads it again.", server
        )
    for server, missing in facts.absent.items():
        repair = f"{missing.repair}. Then run `carpool start {server}`."
        yield _problem("program-missing", missing.text, repair, server)
    for name in facts.unset:
        text = f"{name} is not set here, and a server uses ${{{name}}} without a default."
        yield _problem(
            "variable-unset", text, f"Set {name} where the agent starts, or put it into the `env_file`."
        )
    if facts.waiting:
        yield _problem("project-untrusted", facts.waiting, "Run `carpool trust` here.")
    if facts.door:
        text, _, repair = facts.door.rpartition("; ")
        yield _problem("door-closed", f"{text[:1].upper()}{text[1:]}.", f"{repair[:1].upper()}{repair[1:]}.")
    for text in facts.shadowed:
        yield _problem("shadowed", text, _UNSHADOW)
    yield from map(_of_open_file, facts.open_files)
    for text in facts.names_cut:
        yield _problem("names-cut", text, "Give the server a shorter `tools_prefix`.")
    for text in facts.warnings:
        yield _problem("configuration-warning", text, "See `carpool check`.")


def _of_descriptors(descriptors: Mapping[str, Any]) -> Iterator[Problem]:
    if descriptors.get("used_up"):
        text = (
            f"All {descriptors['limit']} descriptors of the broker are in use, but those for operators: new "
            f"agents are refused ({descriptors['refused']} so far)."
        )
        repair = (
            "End some agents (`carpool status`, `carpool disconnect SESSION`), or raise the limit of open "
            f"files (`ulimit -n`) and run `carpool restart --all`. {RESTART_COSTS}"
        )
        yield _problem("descriptors-used-up", text, repair)


def _of_shortage(servers: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    short = {name: server["shortage"] for name, server in servers.items() if server.get("shortage")}
    if short:
        text = f"Calls wait for a process of {', '.join(short)}. {next(iter(short.values()))}"
        repair = (
            "End what is not needed (`carpool status`, `carpool stop SERVER`), or raise the limits of open "
            f"files and processes (`ulimit -n`, `ulimit -u`) and run `carpool restart --all`. {RESTART_COSTS}"
        )
        yield _problem("no-room-to-start", text, repair)


def _of_daemon(facts: Facts) -> Iterator[Problem]:
    status = facts.status
    if status is None:
        if facts.held:
            text = "carpool runs, and its broker does not answer."
            yield _problem("broker-silent", text, "See `carpool logs --daemon`; `carpool down` ends it.")
        elif facts.socket == "socket":
            text = "There is a socket of carpool, and nothing listens on it."
            yield _problem("socket-stale", text, _NEXT_START, fix="remove_socket")
        elif facts.socket == "other":
            text = "A file that is no socket stands where the socket of carpool should be."
            yield _problem(
                "socket-stale", text, "Move the file away if you need it: the next start removes it."
            )
        return
    reason, uptime_s = status.get("reason"), (status.get("broker") or {}).get("uptime_s", START_S)
    if reason == "supervisor_silent" or (reason == "supervisor_away" and uptime_s >= START_S):
        silent_s = (status.get("silent") or {}).get("for_s")
        away = [name for each in status.get("supervisors_away") or () for name in each["servers"]]
        waiting = ", ".join(away) or "the servers that it runs"
        text = (
            f"A supervisor of carpool is not connected: calls to {waiting} wait."
            if silent_s is None
            else f"A supervisor of carpool has not answered for {silent_s:.0f} s: calls to its servers wait."
        )
        repair = f"See `carpool logs --daemon`; if it stays so, run `carpool restart --all`. {RESTART_COSTS}"
        yield _problem("supervisor-silent", text, repair)
    yield from _of_other_configurations(facts, status)
    yield from _of_descriptors(status.get("descriptors") or {})
    running = str((status.get("broker") or {}).get("version", ""))
    if running and running != facts.installed:
        text = f"carpool {running} is running, and {facts.installed} is installed."
        yield _problem("old-daemon", text, f"Run `carpool restart --all`. {RESTART_COSTS}", fix="restart")
    servers: Mapping[str, Mapping[str, Any]] = status.get("servers") or {}
    yield from _of_shortage(servers)
    told = {*facts.absent, *facts.misconfigured}
    for name, server in servers.items():
        if name not in told:
            yield from _of_server(name, server, facts.node)
    yield from _of_hooks(status.get("hooks") or ())
    for name, calls in failing_calls(status).items():
        if name not in told and not _is_told(servers.get(name)):
            text = f"{calls['failed']} of the latest {calls['ended']} calls for {name} failed."
            if warning := facts.last_warnings.get(name):
                text += f" The last warning in its log: {warning}"
            repair = f"See `carpool stats --by tool` and `carpool logs {name}`."
            yield _problem("calls-failing", text, repair, name)


def _of_other_configurations(facts: Facts, status: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what differs between the carpool that runs and what this terminal and agents expect."""
    config = status.get("config") or {}
    file = config.get("file") or ""
    if here := config.get("here"):
        text = f"carpool runs with the configuration {file}; that of this terminal is {here}."
        repair = f"Run {facts.config_way}, if this one is meant. {_SAY_PLACES}"
        found = _problem("other-configuration", text, repair)
        yield structs.replace(found, may_be_meant=facts.config_named)
    for text in agents_elsewhere(status):
        found = _problem("other-configuration", f"{text}; carpool runs with {file}.", _SAY_PLACES)
        yield structs.replace(found, may_be_meant=facts.config_named)
    for each in config.get("elsewhere") or ():
        other = OtherCarpool(**each)
        text = other_carpool_text(other)
        repair = (
            f"`{paths.RUNTIME_VARIABLE}={other.directory} carpool down` ends that one. Write "
            f"`{paths.RUNTIME_VARIABLE}` into the `env` of every program's entry, or set it nowhere."
        )
        yield _problem("second-carpool", f"{text[:1].upper()}{text[1:]}.", repair)


_SAY_PLACES: Final = (
    "Write the variable that leads to the right file (`XDG_CONFIG_HOME` or `CARPOOL_CONFIG`) into the `env` "
    "of each program's entry: programs do not all pass it on."
)


def _of_hooks(hooks: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield the problem of each hook that fails, or that denies every call of every server."""
    for hook in hooks:
        name, denied = hook["name"], hook.get("denied_in_a_row", 0)
        if hook.get("problem"):
            effect = "refuses" if hook.get("on_failure") == "deny" else "lets through"
            text = f"The hook {name} fails, and carpool {effect} the calls that it should check: "
            yield _problem("hook-failing", text + hook["problem"], _HOOK_REPAIR)
        elif denied >= MANY_DENIALS and _has_passed_nothing(hook):
            text = f"The hook {name} gets the calls of all servers and has denied all so far, {denied}."
            yield _problem("hook-denies-all", text, _DENIAL_REPAIR)


def _has_passed_nothing(hook: Mapping[str, Any]) -> bool:
    """True if a hook gets the calls of all servers and has let none pass."""
    passed: int = hook.get("allowed", 0) + hook.get("rewritten", 0)
    return not passed and EVERYTHING in (hook.get("match") or ())


_HOOK_REPAIR: Final = (
    "Mend its program: `carpool logs --daemon` has what it wrote. "
    "`carpool restart --all` loads a changed module; or take the hook out of `hooks`."
)
_DENIAL_REPAIR: Final = (
    "If that is not meant, mend its program, or give it a `match`. `carpool audit` has the calls."
)


def _is_told(server: Mapping[str, Any] | None) -> bool:
    """True if a server has a problem of its own, which is why its calls fail."""
    return server is not None and (
        not server.get("well", True) or _lacks_node(server) or is_silent_greeting(server)
    )


def _lacks_node(server: Mapping[str, Any]) -> bool:
    """True for a server of other nodes with which no node opens a session."""
    return bool(server.get("node")) and is_lasting(server)


def failing_calls(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the latest calls of each server of which at least half failed: `{ended, failed}`.

    `status` calls such a server failing only after some failures. Who asks the doctor wants to know of one.
    """
    recent = (status.get("counters") or {}).get("recent") or {}
    servers: Mapping[str, Mapping[str, Any]] = recent.get("servers") or {}
    return {name: each for name, each in servers.items() if 0 < each["failed"] >= each["ended"] / 2}


_NOWHERE_REPAIR: Final = (
    "Give a node the label (`cluster.labels`), start carpool there, or correct `on`. "
    "`carpool cluster status` shows the labels of all nodes."
)
_SERVER_REPAIRS: Final = {
    "stdout-noise": "Let it log to stderr (an option such as `--quiet`?). `carpool logs {0}` has the line.",
    "version-wrong": "Install that version, or give the server an `env` with a `PATH` in which it is first. "
    "Then run `carpool start {0}`.",
    "package-not-found": "Correct the name of the package in `args`. Then run `carpool start {0}`.",
    "offers-nothing": "Correct the server: its answer to `initialize` must declare `tools`. "
    "Then run `carpool restart {0}`.",
    "lists-shortened": "Tell the author of the server. `carpool tools NAME --json` shows what agents get.",
    "server-failing": "See `carpool logs {0}`, then run `carpool start {0}`.",
}


def _of_server(name: str, server: Mapping[str, Any], node: NodeFacts | None) -> Iterator[Problem]:
    """Yield the problem of a server that fails, or that writes to stdout what is no message."""
    left_out, error = str(server.get("left_out") or ""), str(server.get("last_error") or "")
    if left_out:
        text = f"{name} works, and agents do not get all of its lists: {left_out}."
        yield _problem("lists-shortened", text, _SERVER_REPAIRS["lists-shortened"].format(name), name)
        error = error.removesuffix(left_out).removesuffix("; ")
        server = {**server, "last_error": error}
    state = server.get("state", "")
    if state == "misconfigured" and PLACED_NOWHERE in error:
        yield _problem("server-nowhere", f"{name}: {error}.", _NOWHERE_REPAIR, name)
        return
    if server.get("node"):
        if _lacks_node(server):
            yield _problem("server-at-node", *server_at_node(name, server["node"], error, node), name)
        return
    if server.get("well", True) and not is_silent_greeting(server):
        if not is_lasting(server):
            return
        if error == OFFERS_NOTHING:
            text = f"{name} runs, and agents see nothing of it: it {error}."
            yield _problem("offers-nothing", text, _SERVER_REPAIRS["offers-nothing"].format(name), name)
        elif why := stdout_noise(error):
            text = f"{name} works, and has written to stdout: {why}."
            yield _problem("stdout-noise", text, _SERVER_REPAIRS["stdout-noise"].format(name), name)
        else:
            known = symptom(error, ())
            kind = "server-failing" if known is None else known.kind
            text = f"{name} does not run, and failed when it was last started: {error}"
            yield _problem(kind, text, _SERVER_REPAIRS[kind].format(name), name)
        return
    known = symptom(error, server.get("stderr") or ())
    text = f"{name} is {state}: {error or 'it has not answered yet'}"
    if known is not None:
        text += "" if known.line in error else f" ({known.line})"
    if is_silent_greeting(server):
        text += SILENT_CAUSES if "has answered nothing" in error else ""
    elif expects_headers(error, server.get("stderr") or ()):
        text += HEADERS
    kind = "server-failing" if known is None else known.kind
    yield _problem(kind, text, _SERVER_REPAIRS[kind].format(name), name)


def _of_places(facts: Facts) -> Iterator[Problem]:
    yield from map(_of_not_private, facts.not_private)
    for place in facts.places:
        if not place.writable:
            text = f"{place.path} cannot be written."
            repair = f"Give yourself the right to write there, or set {place.variable} to another directory."
            yield _problem("not-writable", text, repair)
        elif place.free_bytes < FREE_BYTES:
            text = f"{place.free_bytes // 2**20} MB are free in {place.path}."
            repair = f"Make room there, or set {place.variable} to a directory on another disk."
            yield _problem("disk-full", text, repair)
