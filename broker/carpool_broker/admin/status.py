"""The page of `carpool status --json`, as a pure function of the reports of all processes.

Owns the keys of that page and of its rows (pools, their lists, hooks). They are a contract (docs/json.md), so
keys are only added. Knows nothing of: the origin of the facts, how they are shown to people.
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Any, Final, Literal

from msgspec import Struct

from carpool_broker.admin.counter_report import CounterFacts, counters_section
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.hooks.hook_points import CallHooks
from carpool_broker.core.model.scope import ScopeEntry
from carpool_broker.core.model.session import Session
from carpool_broker.core.updates import AWAY_STATES
from carpool_broker.hooks.runner import HookRunner
from carpool_protocol.ids import PoolKey, ServerName, SessionId, SupervisorName
from carpool_protocol.link.messages import InstanceReport, PoolReport, PoolState, Surveyed, ToolOffer

Origin = Literal["server", "earlier", "file", "unknown"]
"""`earlier`: the server sent the lists to an earlier carpool and has not been started since."""


class Lists(Struct, frozen=True):
    """Origin and age of the catalog of one pool."""

    origin: Origin = "unknown"
    tools: int = 0
    """Number of offered tools, after the server's own `tools.allow` and `tools.deny`."""
    told_at: str = ""
    """When the server sent them, in the form of `wallclock`; empty: not known."""

    def sentence(self) -> str:
        """A sentence for people about old lists. Empty if the server has sent them itself or none are
        known.
        """
        if self.origin == "earlier":
            when = f", {self.told_at[:10]} {self.told_at[11:16]} UTC" if self.told_at else ""
            return (
                f"Its lists are from an earlier start{when}: it has sent none since carpool started. "
                f"It sends new ones when it starts."
            )
        if self.origin == "file":
            return "Its tools are listed from its `tools_file` until it sends its own list."
        return ""


def freshness_by_pool(core: BrokerCore, told_at: Callable[[PoolKey], str]) -> dict[PoolKey, Lists]:
    """Origin and age of the catalog of each wanted pool."""
    away = {key for key, state in core.states.items() if state.state in AWAY_STATES}
    offline: dict[PoolKey, int] = {}
    entries: dict[PoolKey, dict[ScopeEntry, None]] = {}
    for scope in core.sources.scopes_in_force():
        for it in scope.servers:
            entries.setdefault(it.key, {})[it] = None
            if it.offline is not None:
                offline[it.key] = _visible_tools(it.offline, [it])
    found: dict[PoolKey, Lists] = {}
    for spec in core.sources.wanted_pools().pools:
        key = spec.key
        catalog, known = core.registry.told_catalog(key), core.registry.known_catalog(key)
        if key in offline and (catalog is None or key in away):
            found[key] = Lists("file", offline[key])
        elif known is not None:
            found[key] = Lists(
                "earlier" if catalog is None else "server",
                _visible_tools(known.tools, entries.get(key, {})),
                told_at(key),
            )
        else:
            found[key] = Lists()
    return found


def _visible_tools(tools: Sequence[ToolOffer], entries: Collection[ScopeEntry]) -> int:
    """Number of a server's tools that its own configuration shows to at least one agent."""
    return sum(any(entry.allows(tool.name) for entry in entries) for tool in tools)


def hook_rows(hooks: CallHooks, hooking: HookRunner) -> list[dict[str, Any]]:
    """One row per hook, in the order of the file. Counts are since this broker began."""
    found: list[dict[str, Any]] = []
    for name, rule in hooks.rules.items():
        tally, line = hooks.tallies[name], hooks.queue_of(name)
        median_s = tally.median_s
        found.append(
            {
                "name": name,
                "on": [phase for phase, on in (("before", rule.before), ("after", rule.after)) if on],
                "match": [each.text for each in rule.match],
                "profiles": list(rule.profiles),
                "on_failure": "deny" if rule.closed else "allow",
                "pid": hooking.pid_of(name),
                "running": line.running,
                "waiting": len(line.waiting),
                "allowed": tally.verdicts["allow"],
                "denied": tally.verdicts["deny"],
                "denied_in_a_row": tally.denied_in_a_row,
                "rewritten": tally.verdicts["rewrite"],
                "failed": tally.verdicts["failed"],
                "timeouts": tally.timeouts,
                "untold": tally.untold,
                "median_s": None if median_s is None else round(median_s, 6),
                "problem": hooking.problem_of(name) or (tally.last_error if tally.is_failing else ""),
            }
        )
    return found


class StatusFacts(Struct, frozen=True, kw_only=True):
    """All facts from which the page is made."""

    broker_pid: int
    launcher_pid: int
    release: str
    uptime_s: float
    restarts: int
    """Number of brokers that have died since carpool started."""
    supervisors: list[tuple[str, int]]
    """Name and pid of each linked supervisor."""
    supervisors_away: Mapping[SupervisorName, Sequence[ServerName]] = {}
    """By the name of each supervisor that is not linked: the servers that it runs."""
    surveyed: Surveyed | None
    """The supervisor's last answer; None: there is none."""
    silent_s: float | None = None
    """Seconds since the supervisor stopped answering; None: `surveyed` is current."""
    states: Sequence[tuple[PoolKey, ServerName, PoolState]] = ()
    """The state of each pool, as the supervisor last announced it."""
    wanted: Set[PoolKey] | None = None
    """Pools that are shown even if they are cold: not those that only a `carpool` verb wants. None: all."""
    sessions: list[Session]
    """Sessions of agents, without those of operators."""
    calls: int
    """Number of calls since this broker began."""
    lists: Mapping[PoolKey, Lists]
    """Origin and age of each pool's catalog."""
    servers: Mapping[ServerName, str]
    """Configured servers → why one is not run (`disabled`, a misconfiguration), or empty."""
    sharing: Mapping[ServerName, str]
    """The configured mode, for servers without a pool."""
    config_file: str
    config_problem: str
    tags: Mapping[ServerName, tuple[str, ...]] = {}
    """The configured tags."""
    nodes: Mapping[ServerName, str] = {}
    """The servers of other nodes, each with its node (`*`: any that offers it)."""
    untrusted: frozenset[ServerName] = frozenset()
    """Servers of projects that only wait for the user's trust."""
    unset: frozenset[ServerName] = frozenset()
    """Servers that lack only variables or a workspace, which the next agent may bring."""
    workspaces: list[dict[str, Any]] = []
    """Workspaces of connected sessions that have a project file."""
    places: Mapping[SessionId, Mapping[str, str]] = {}
    """The workspace of each session: `{name, root}`."""
    left_out: Mapping[SessionId, int] = {}
    """Number of tools that `max_tools` leaves out of each session's list."""
    waiting: Mapping[PoolKey, int]
    """Calls that wait in the broker's own queues."""
    switches: Mapping[ServerName, bool] = {}
    """Overrides for all sessions, until carpool stops."""
    paused: Set[ServerName] = frozenset()
    """The servers that operators have paused."""
    switches_of: Mapping[SessionId, Mapping[ServerName, bool]] = {}
    """Overrides for one session each, until it ends."""
    pinned: Mapping[ServerName, Mapping[str, Any]] = {}
    """Pinned servers: `{approved, problem, held}`."""
    last_failures: Mapping[ServerName, str] = {}
    """Why servers failed when they last ran; for those without a pool now."""
    audit: Mapping[str, Any] = {}
    """`{on, file, problem, missed}`."""
    trace: Mapping[str, Any] = {}
    """`{on, problem, exported, dropped}`."""
    disabled_in: Mapping[ServerName, list[str]] = {}
    """The files that disable a server."""
    counters: CounterFacts | None = None
    """What was counted of calls; None: it is not known."""
    hooks: list[dict[str, Any]] = []
    """Rows of `hook_rows`, in the order of the file."""
    doors: Sequence[int] = ()
    """Pids of the HTTP door and of other carriers with many sessions on one connection."""
    node_pid: int = 0
    """The pid of the node's process; 0: there is none."""
    descriptors: Mapping[str, Any] = {}
    """`{limit, used_up, refused}` of the broker; empty: not known."""


def status_page(facts: StatusFacts) -> dict[str, Any]:
    """The page as plain values."""
    pools = _pools(facts)
    servers = _servers(facts, pools)
    healthy, reason = _health(facts, servers)
    return {
        "healthy": healthy,
        "reason": reason,
        "silent": unresponsive_process("supervisor", facts.silent_s),
        "broker": {
            "pid": facts.broker_pid,
            "uptime_s": round(facts.uptime_s, 3),
            "version": facts.release,
            "restarts": facts.restarts,
        },
        "supervisors": [{"id": name, "pid": pid} for name, pid in facts.supervisors],
        "supervisors_away": [
            {"id": name, "servers": list(servers)} for name, servers in facts.supervisors_away.items()
        ],
        "servers": servers,
        "sessions": [
            {
                "id": session.id,
                "agent": session.agent,
                "pid": session.pid,
                "era": "handshake" if session.greeted else "stateless" if session.stateless else "",
                "profile": session.profile,
                "principal": session.principal,
                "tools_left_out": facts.left_out.get(session.id, 0),
                "in_flight": len(session.open_calls),
                "calls": session.calls,
                "version": session.version,
                "carrier": session.carrier,
                "switched": {
                    name: _OVERRIDE_WORDS[on] for name, on in facts.switches_of.get(session.id, {}).items()
                },
                "workspace": facts.places.get(session.id) or {"name": "", "root": ""},
                "other_config": session.other_config,
            }
            for session in facts.sessions
        ],
        "totals": _totals(facts, pools),
        "processes": _processes(facts),
        "config": {"file": facts.config_file, "problem": facts.config_problem},
        "workspaces": facts.workspaces,
        "hooks": facts.hooks,
        "audit": dict(facts.audit),
        "counters": None if facts.counters is None else counters_section(facts.counters),
        "trace": dict(facts.trace),
        "path": _search_path(facts.surveyed),
        "descriptors": dict(facts.descriptors) or None,
    }


def unresponsive_process(process: str, silent_s: float | None) -> dict[str, Any] | None:
    """The process that does not answer, and for how long; None: all answer."""
    return None if silent_s is None else {"process": process, "for_s": round(silent_s, 3)}


def _pools(facts: StatusFacts) -> list[PoolReport]:
    """The pools as the supervisor last reported them, else with the states that it announced.

    A pool that only a `carpool` verb wants is shown only while something runs or waits in it, so that the
    page equals that of `/health`, which wants no pool.
    """
    return [
        pool
        for pool in _reported_pools(facts)
        if facts.wanted is None
        or pool.key in facts.wanted
        or (pool.state, pool.instances, pool.waiting) != ("cold", [], 0)
    ]


def _reported_pools(facts: StatusFacts) -> list[PoolReport]:
    if facts.surveyed is not None:
        return facts.surveyed.pools
    return [
        PoolReport(
            key=key,
            server=server,
            state=state,
            sharing=facts.sharing.get(server, "auto"),
            waiting=0,
            restarts=0,
            last_error="",
            stderr_tail=[],
            instances=[],
            verified=False,
        )
        for key, server, state in facts.states
        if facts.silent_s is not None
    ]


def _search_path(surveyed: Surveyed | None) -> dict[str, Any] | None:
    """The directories in which programs of servers are looked up; None without a report of a supervisor."""
    if surveyed is None:
        return None
    return {"directories": surveyed.search_path, "login_shell": surveyed.login_shell}


def _health(facts: StatusFacts, servers: Mapping[str, Any]) -> tuple[bool, str]:
    """True or False, and the `reason`: one of these words, for programs."""
    if facts.supervisors_away or not facts.supervisors:
        return False, "supervisor_away"
    if facts.surveyed is None or facts.silent_s is not None:
        return False, "supervisor_silent"
    if facts.descriptors.get("used_up"):
        return True, "descriptors_used_up"
    if any(server["shortage"] for server in servers.values()):
        return True, "no_room_to_start"
    if facts.config_problem:
        return True, "config_broken"
    if not all(server["well"] for server in servers.values()):
        return True, "servers_failing"
    if any(hook.get("problem") for hook in facts.hooks):
        return True, "hooks_failing"
    if facts.counters is not None and any(each.mostly_failed for each in facts.counters.recent.values()):
        return True, "calls_failing"
    return True, "ok"


def _state_without_pool(facts: StatusFacts, name: ServerName, why: str, *, is_away: bool) -> str:
    """Return the state of a server of which no pool is known. `why`: why it cannot be used; empty: it can.
    `is_away`: its supervisor is away.
    """
    if not why:
        return "away" if is_away else "cold"
    if why == "disabled":
        return "disabled"
    if name in facts.untrusted:
        return "untrusted"
    return "unset" if name in facts.unset else "misconfigured"


def _servers(facts: StatusFacts, pools: list[PoolReport]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    away = {name for servers in facts.supervisors_away.values() for name in servers}
    for name, why in facts.servers.items():
        state = _state_without_pool(facts, name, why, is_away=name in away)
        error = why if state in ("misconfigured", "untrusted", "unset") else ""
        if state == "cold":
            error = facts.last_failures.get(name, "")
        sharing = facts.sharing.get(name, "auto")
        found[name] = _server_row(state, sharing, verified=sharing != "auto", last_error=error)
    by_server: dict[ServerName, list[PoolReport]] = {}
    for pool in pools:
        by_server.setdefault(pool.server, []).append(pool)
    sessions = {session.id: session for session in facts.sessions}
    for name, its_pools in by_server.items():
        found[name] = _pooled_server(facts, its_pools, sessions)
    for each, server in found.items():
        name = ServerName(each)
        server["tags"] = list(facts.tags.get(name, ()))
        server["pinned"] = facts.pinned.get(name)
        server["paused"] = name in facts.paused
        server["switched"] = _OVERRIDE_WORDS[facts.switches.get(name)]
        server["disabled_in"] = list(facts.disabled_in.get(name, ()))
        server["node"] = facts.nodes.get(name, "")
        server["well"] = _is_healthy(server)
    return found


_FAILING = frozenset({"given_up", "breaker_open", "half_open", "backing_off", "misconfigured"})
SLOW_START_AFTER_S: Final = 30.0
"""A server that has not greeted for this long is not well, even if it may be installing."""


def _is_healthy(server: Mapping[str, Any]) -> bool:
    """False for a server that fails, or that has been starting for long or after an error. One that does not
    answer its greeting may be installing itself, and is not well once that takes long.

    A server of another node is judged at that node. Here it has sessions only, and a node that drains or is
    away refuses those, so only its configuration can be wrong here.
    """
    if server["node"]:
        return bool(server["state"] != "misconfigured")
    if server["state"] == "starting":
        is_silent = server["last_error"] in {each["why"] for each in server["instances"]}
        return (not server["last_error"] or is_silent) and all(
            each["uptime_s"] < SLOW_START_AFTER_S for each in server["instances"]
        )
    return server["state"] not in _FAILING


def _pooled_server(
    facts: StatusFacts, pools: list[PoolReport], sessions: Mapping[SessionId, Session]
) -> dict[str, Any]:
    """A server with pools: their sums, and the state and mode of the liveliest pool."""
    liveliest = max(pools, key=lambda pool: _STATE_RANK[pool.state])
    server = _server_row(liveliest.state, liveliest.sharing, verified=liveliest.verified, last_error="")
    for pool in pools:
        waiting = pool.waiting + facts.waiting.get(pool.key, 0)
        server["waiting"] += waiting
        server["restarts"] += pool.restarts
        lists = facts.lists.get(pool.key, Lists())
        server["tools"] = max(server["tools"], lists.tools)
        if pool is liveliest:
            server["lists"] = {"from": lists.origin, "told_at": lists.told_at}
        server["shortage"] = server["shortage"] or pool.shortage
        if pool.last_error:
            server["last_error"] = pool.last_error
            server["stderr"] = pool.stderr_tail
        server["left_out"] = server["left_out"] or pool.left_out
        server["instances"] += [_instance_row(each, sessions.get(each.holder)) for each in pool.instances]
        server["pools"].append(
            {
                "key": pool.key,
                "state": pool.state,
                "sharing": pool.sharing,
                "verified": pool.verified,
                "asking": pool.asking,
                "waiting": waiting,
                "restarts": pool.restarts,
                "last_error": pool.last_error,
                "breaker": pool.breaker,
                "retry_after_s": None if pool.retry_after_s is None else round(pool.retry_after_s, 1),
                "instances": [each.id for each in pool.instances],
            }
        )
    return server


def _instance_row(instance: InstanceReport, holder: Session | None) -> dict[str, Any]:
    return {
        "id": instance.id,
        "pid": instance.pid,
        "state": instance.state,
        "generation": instance.generation,
        "era": instance.era,
        "in_flight": instance.in_flight,
        "calls": instance.calls,
        "rss_bytes": instance.rss_bytes,
        "pss_bytes": instance.pss_bytes,
        "cpu_percent": instance.cpu_percent,
        "uptime_s": round(instance.uptime_s, 3),
        "holder": instance.holder,
        "holder_agent": holder.agent if holder is not None else "",
        "holder_pid": holder.pid if holder is not None else 0,
        "asks": instance.asks,
        "why": instance.why,
        "node": instance.node,
    }


_OVERRIDE_WORDS: Mapping[bool | None, str] = {True: "on", False: "off", None: ""}

_STATE_RANK: Mapping[str, int] = {
    "draining": 0,
    "cold": 1,
    "stopped": 2,
    "given_up": 3,
    "offline": 3,
    "breaker_open": 4,
    "half_open": 5,
    "backing_off": 6,
    "starting": 7,
    "serving": 8,
}
"""Order of states. Of several pools of one server (environments, classes of agents) the highest is shown."""


def _server_row(state: str, sharing: str, *, verified: bool, last_error: str) -> dict[str, Any]:
    return {
        "state": state,
        "sharing": sharing,
        "verified": verified,
        "waiting": 0,
        "restarts": 0,
        "tools": 0,
        "lists": {"from": "unknown", "told_at": ""},
        "last_error": last_error,
        "shortage": "",
        "left_out": "",
        "stderr": [],
        "instances": [],
        "pools": [],
    }


def _processes(facts: StatusFacts) -> list[dict[str, Any]]:
    if facts.surveyed is None:
        return []
    roles = {facts.broker_pid: "broker", facts.launcher_pid: "launcher"}
    roles |= {facts.node_pid: "node"} if facts.node_pid else {}
    roles |= dict.fromkeys(facts.doors, "door") | {hook["pid"]: "hook" for hook in facts.hooks}
    return [
        {
            "role": process.role or roles.get(process.pid, "shim"),
            "pid": process.pid,
            "rss_bytes": process.rss_bytes,
            "pss_bytes": process.pss_bytes,
            "cpu_s": round(process.cpu_s, 3),
        }
        for process in facts.surveyed.processes
    ]


def _totals(facts: StatusFacts, pools: list[PoolReport]) -> dict[str, Any]:
    """The saving by sharing: otherwise each session would run a copy of each server that it has called.

    Servers of other nodes save and cost nothing here: their processes run there.
    """
    everything = [(pool.server, instance) for pool in pools for instance in pool.instances]
    instances = [(server, instance) for server, instance in everything if not instance.node]
    pss_of: dict[ServerName, list[int]] = {}
    for server, instance in instances:
        if instance.pss_bytes:
            pss_of.setdefault(server, []).append(instance.pss_bytes)
    mean = {server: sum(sizes) // len(sizes) for server, sizes in pss_of.items()}
    private = [
        server
        for session in facts.sessions
        for server, use in session.servers.items()
        if use.is_called and server not in facts.nodes
    ]
    ours = sum(instance.pss_bytes for _, instance in instances)
    ours += sum(process.pss_bytes for process in (facts.surveyed.processes if facts.surveyed else []))
    return {
        "instances": len(instances),
        "node_sessions": len(everything) - len(instances),
        "sessions": len(facts.sessions),
        "in_flight": sum(len(session.open_calls) for session in facts.sessions),
        "calls": facts.calls,
        "private_processes_avoided": max(len(private) - len(instances), 0),
        "memory_saved_bytes": sum(mean.get(server, 0) for server in private) - ours,
    }
