"""The methods `carpool/status`, which `carpool status` and `/health` use, and `carpool/counters`.

Owns the collection of the facts on the page, and the limit on waiting for supervisors: if the answer of one
does not arrive in time, its last answer is shown. Supervisors are asked once for all who ask at once, and a
page is made once for all who read it at once (`shared_query`). A file of its own because `status`, which has
the keys of the page, is a pure function of these facts.

Knows nothing of: the keys of the page.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from carpool_broker.admin.approval_commands import ApprovalCommands
from carpool_broker.admin.counter_report import CounterReport
from carpool_broker.admin.methods import Methods
from carpool_broker.admin.shared_query import Answers, SharedPages, SharedQuery
from carpool_broker.admin.status import StatusFacts, freshness_by_pool, status_page
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_broker.config.configuration import DEFAULT_SOURCE, Configuration
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.session import Session
from carpool_broker.storage.audit_log import AuditLog
from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.counters.snapshot import ServersProblem
from carpool_protocol.ids import PoolKey, ServerName, SessionId, SupervisorName
from carpool_protocol.link.messages import PoolState, ProcessReport, Survey, Surveyed

SURVEY_TIMEOUT_S = 5.0
"""`status` waits this long for the supervisor, unless the request names a shorter time."""


Outcome = Literal["told", "silent", "unknown"]
"""All supervisors have told how they are; or one has not; or they are away, or others than were asked."""


class StatusParams(Struct):
    """Params of `carpool/status`."""

    within_s: float = SURVEY_TIMEOUT_S
    """The longest time to wait for the supervisor."""


class Process(Struct, frozen=True):
    """Facts about the broker's own process that `status` shows."""

    release: str
    restarts: int = 0
    """The number of brokers that have died since carpool started."""
    warnings: Callable[[], list[str]] = list
    """Returns sentences about settings that have no effect, or none before a restart."""
    hooks: Callable[[], list[dict[str, Any]]] = list
    """Returns the rows of `status` about hooks."""
    audit: AuditLog | None = None
    trace: Callable[[], dict[str, Any]] = dict
    """Returns what is known of the export of traces."""
    carriers: Callable[[], list[int]] = list
    """Returns the pids of carriers that have many sessions on one connection."""
    descriptors: Callable[[], dict[str, Any]] = dict
    """Returns the section `descriptors`; empty: it is not known."""
    node_pid: Callable[[], int] = int
    """Returns the pid of the node's process; 0: there is none."""
    peer_uid: Callable[[SessionId], int | None] = lambda _: None
    """Returns the user at the other end of a session's socket."""
    told_at: Callable[[PoolKey], str] = lambda _: ""
    """Returns the time at which a pool last sent its catalog."""
    run: str = ""
    """Names this broker among all, for its counters."""
    clock: Callable[[], float] = trio.current_time
    """The clock of the core."""


class StatusQuery:
    """Collects the facts of one broker."""

    def __init__(
        self,
        core: BrokerCore,
        configuration: Configuration,
        inquiries: SupervisorQueries,
        pinning: ApprovalCommands,
        process: Process,
        *,
        counters: CounterReport,
    ) -> None:
        self._core = core
        self._counters = counters
        self._configuration = configuration
        self._inquiries = inquiries
        self._pinning = pinning
        self._process = process
        self._began_at = trio.current_time()
        self._surveyed: dict[str, Surveyed] = {}
        """The last answers of the supervisors in `_surveyed_of`."""
        self._surveyed_of: dict[str, int] = {}
        self._silent_since: float | None = None
        """The time of the first survey that a supervisor has not answered."""
        self._told = 0
        """How often all supervisors have answered a survey."""
        self._surveys = SharedQuery(inquiries, lambda token: Survey(token, self._pids()), self._survey_heard)
        self._counts = SharedQuery(inquiries, lambda token: Survey(token, [], counts_only=True))
        self._pages = SharedPages()

    def register(self, methods: Methods) -> None:
        """Put `carpool/status` and `carpool/counters` into the table."""
        methods.add("carpool/status", StatusParams, self.status)
        methods.add("carpool/counters", StatusParams, lambda _, params: self.counters(params))

    async def status(self, asker: SessionId, params: StatusParams) -> Raw:
        """The page, with the supervisor's answer if it arrives in time. What a server lacks is judged by the
        variables and the directory of the session that asks.
        """
        outcome = await self._survey(max(0.0, min(params.within_s, SURVEY_TIMEOUT_S)))
        source = self._core.sessions[asker].source if asker in self._core.sessions else None
        return await self._pages.page((source, outcome), lambda: self._page(outcome, source))

    def _page(self, outcome: Outcome, asker: SourceId | None) -> Raw:
        surveyed = None
        if outcome != "unknown" and self._surveyed:
            surveyed = merge_surveys(list(self._surveyed.values()))
        silent_s = None
        if outcome == "silent":
            now = trio.current_time()
            silent_s = now - (now if self._silent_since is None else self._silent_since)
        return Raw(msgspec.json.encode(status_page(self._facts(surveyed, silent_s, asker))))

    def _pids(self) -> list[int]:
        """The processes of carpool that supervisors measure."""
        hooks = [hook["pid"] for hook in self._process.hooks() if hook["pid"]]
        node = [pid] if (pid := self._process.node_pid()) else []
        shims = [each.pid for each in self._agents() if each.carrier in ("shim", "run") and each.pid]
        return [os.getpid(), os.getppid(), *self._process.carriers(), *node, *hooks, *shims]

    def _agents(self) -> list[Session]:
        """The sessions of agents."""
        return [each for each in self._core.sessions.values() if not each.control]

    async def counters(self, params: StatusParams) -> Raw:
        """All counters, with those of supervisors whose answers arrive in time.

        Without a supervisor the answer comes at once, and says that this part is missing.
        """
        limit_s = max(0.0, min(params.within_s, SURVEY_TIMEOUT_S))
        found = await self._counts.ask(limit_s)
        answers = [each for each in found.values() if isinstance(each, Surveyed)]
        problem: ServersProblem = ""
        if not found or len(answers) < len(found):
            problem = "supervisor_silent" if "late" in found.values() else "supervisor_away"

        def page() -> Raw:
            surveyed = None if problem else merge_surveys(answers)
            return Raw(msgspec.json.encode(self._counters.snapshot(surveyed, problem)))

        return await self._pages.page(("counters", problem), page)

    def _facts(
        self, surveyed: Surveyed | None, silent_s: float | None, asker: SourceId | None
    ) -> StatusFacts:
        core, layers = self._core, self._configuration.layers
        sessions = self._agents()
        switches, process = self._configuration.overrides, self._process
        known = switches.apply(layers.configured_servers())
        of_agents = {each.source for each in core.sessions.values() if not each.control} | {DEFAULT_SOURCE}
        of_operators = core.sources.sources.keys() - of_agents
        problems = core.sources.problems(of_operators, asker)
        return StatusFacts(
            broker_pid=os.getpid(),
            launcher_pid=os.getppid(),
            release=process.release,
            uptime_s=trio.current_time() - self._began_at,
            restarts=process.restarts,
            supervisors=list(self._inquiries.supervisors().items()),
            supervisors_away=self._supervisors_away(known),
            surveyed=surveyed,
            silent_s=silent_s,
            states=self._pool_states(),
            wanted=core.sources.pools_of_agents(of_operators),
            sessions=sessions,
            left_out={each.id: core.view_of(each.id).dropped_tools for each in sessions},
            calls=core.call_table.opened,
            lists=freshness_by_pool(core, process.told_at),
            servers=_servers(known, problems.misconfigured),
            sharing={name: server.policy.sharing for name, server in known.items()},
            tags={name: server.tags for name, server in known.items()},
            nodes={name: server.node for name, server in known.items() if server.node is not None},
            untrusted=problems.untrusted,
            unset=problems.unset,
            workspaces=self._configuration.workspace_rows(),
            places={each.id: self._configuration.workspace_of(each.id) for each in sessions},
            config_file=self._configuration.config.file,
            config_problem=self._configuration.problem,
            switches=switches.global_overrides,
            paused=switches.paused,
            switches_of=switches.session_overrides,
            disabled_in={name: layers.disabled_in(name) for name in known},
            waiting=_waiting(sessions),
            hooks=process.hooks(),
            doors=process.carriers(),
            descriptors=process.descriptors(),
            node_pid=process.node_pid(),
            audit=self._audit_facts(),
            counters=self._counters.facts(surveyed),
            trace=process.trace(),
            pinned=self._pinning.summary(),
            last_failures=core.session_views.last_failures,
        )

    def _supervisors_away(self, known: Iterable[ServerName]) -> dict[SupervisorName, list[ServerName]]:
        """The servers of each supervisor that is not linked."""
        links, linked = self._core.links, self._inquiries.supervisors()
        return {
            name: [server for server in known if links.owner_of_server(server) == name]
            for name in links.names
            if name not in linked
        }

    def _pool_states(self) -> list[tuple[PoolKey, ServerName, PoolState]]:
        """Key, server and state of each wanted pool whose state is known."""
        states = self._core.states
        wanted = self._core.sources.wanted_pools().pools
        return [(spec.key, spec.server, states[spec.key].state) for spec in wanted if spec.key in states]

    async def _survey(self, limit_s: float) -> Outcome:
        """Ask the supervisors, and return what came of it."""
        linked = dict(self._inquiries.supervisors())
        if linked != self._surveyed_of:  # the answer of another supervisor no longer holds
            self._surveyed = {
                name: known
                for name, known in self._surveyed.items()
                if linked.get(name) == self._surveyed_of[name]
            }
            self._surveyed_of, self._silent_since = linked, None
        if not linked:
            return "unknown"
        began, told = trio.current_time(), self._told
        found = await self._surveys.ask(limit_s)
        if linked != self._inquiries.supervisors():
            return "unknown"
        self._surveyed |= _surveys_in(found)
        if not any(isinstance(each, str) for each in found.values()) or self._told != told:
            return "told"  # also where a survey of before was answered meanwhile: who works is not silent
        if self._silent_since is None:
            self._silent_since = began
        return "silent"

    def _survey_heard(self, found: Answers) -> None:
        """A survey is complete, in time for somebody or not."""
        self._surveyed |= _surveys_in(found)
        if not any(isinstance(each, str) for each in found.values()):
            self._told += 1
            self._silent_since = None

    def _audit_facts(self) -> dict[str, Any]:
        audit = self._process.audit
        on = self._core.call_table.audit_trail is not None
        if audit is None:
            return {"on": on, "file": "", "problem": "", "missed": 0}
        return {"on": on, "file": audit.path, "problem": audit.problem, "missed": audit.missed}


def _surveys_in(answers: Answers) -> dict[str, Surveyed]:
    """The surveys among the answers of supervisors."""
    return {name: each for name, each in answers.items() if isinstance(each, Surveyed)}


def merge_surveys(answers: Sequence[Surveyed]) -> Surveyed:
    """Return the answers of several supervisors as one. Each runs other servers; every one measures the
    processes of carpool that it was asked about, and the first measurement of each counts.
    """
    first, *others = answers
    if not others:
        return first
    processes: dict[int, ProcessReport] = {}
    for row in (row for each in answers for row in each.processes):
        processes.setdefault(row.pid, row)
    return replace(
        first,
        pools=[pool for each in answers for pool in each.pools],
        processes=list(processes.values()),
        counts={server: counts for each in answers for server, counts in each.counts.items()},
    )


def _servers(
    known: Mapping[ServerName, ServerConfig], misconfigured: Mapping[ServerName, str]
) -> dict[ServerName, str]:
    """Why each server cannot be used as configured; empty: it can."""
    found = {name: "disabled" if server.disabled else "" for name, server in known.items()}
    for name, why in misconfigured.items():
        found[name] = found.get(name) or why
    return found


def _waiting(sessions: Iterable[Session]) -> dict[PoolKey, int]:
    """How many calls wait in the queues of these sessions, by pool."""
    waiting: dict[PoolKey, int] = {}
    for session in sessions:
        for open_call in session.waiting:
            waiting[open_call.key] = waiting.get(open_call.key, 0) + 1
    return waiting
