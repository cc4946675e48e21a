"""What sessions see now, and how long it is worth waiting for more.

Owns the way from a session to its view, what is said of all its servers together, what the supervisor last
said of each pool, and the patience with catalogs that are on their way (rule 18): nobody waits for a failing
pool, and no list waits twice for a slow one. While an agent is asked for its roots, what its session sees of
the servers that are told them is not final: nobody starts them, and what concerns them waits (rule 6).

Invariant (`check`): a session looks through the scope that is in force for it.
Knows nothing of: what waits, and for whom.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from carpool_broker.core.configuration.effective_sources import EffectiveSources
from carpool_broker.core.model.effects import AnyEffect
from carpool_broker.core.model.events import SourceId
from carpool_broker.core.model.pagination import Family
from carpool_broker.core.model.scope import LeftPools, Scope, pools_left
from carpool_broker.core.model.session import Session
from carpool_broker.core.registry.approvals import INSTRUCTIONS
from carpool_broker.core.registry.builtin_tools import usage_instructions
from carpool_broker.core.registry.registry import Registry
from carpool_broker.core.registry.request_target import denied_by_profile
from carpool_broker.core.registry.view import View
from carpool_broker.core.registry.view_builder import changed_families
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import DiscoverCatalog, PoolChanged
from carpool_protocol.wire.tool_name_resolver import may_be_of

MAX_FAILURES: Final = 256
"""Servers of which the last failure is kept."""
MAX_AT_NODES: Final = 10_000
"""Servers that are noted as running at other nodes."""
FAILING_WORDS: Final = {
    "given_up": "it failed too often",
    "stopped": "stopped",
    "backing_off": "it failed and is started again",
    "breaker_open": "it failed several times",
    "half_open": "it failed several times",
    "offline": "its tools are listed and cannot be called",
}
"""The words for these states in texts that an agent's model reads."""
FAILING_STATES: Final = frozenset(FAILING_WORDS)
"""The states in which no request waits for a pool's catalog."""

RETRIED_STATES: Final = frozenset({"breaker_open", "half_open"})
"""The states in which an instance starts if a request needs the pool: now, or after the pause
(docs/rules.md, rule 8).
"""

UNRUNNABLE_REASONS: Final = {
    "misconfigured": "misconfigured",
    "unset": "unset: lacks a variable or a workspace",
}
"""By state: what instructions say of a server that cannot be run. Servers that await trust are
only counted.
"""

NOTHING_CONFIGURED: Final = (
    "carpool has no MCP server yet, so there are no tools. The user can run `carpool setup`, which moves the "
    "servers of other programs here, or `carpool add`."
)
"""The instructions for an agent of a user who has configured nothing."""

NO_SERVERS: Final[frozenset[ServerName]] = frozenset()

T = TypeVar("T")


class ScopeChanged(NamedTuple):
    """A session that sees another scope now."""

    session: Session
    before: Scope
    families: frozenset[Family]
    """The families whose lists differ."""
    left_pools: LeftPools
    """See `pools_left`."""


class SessionViews:
    """The views of all sessions, and how long requests wait for catalogs."""

    def __init__(self, registry: Registry, out: Callable[[AnyEffect], None]) -> None:
        self._registry = registry
        self._emit = out
        self.states: dict[PoolKey, PoolChanged] = {}
        self.last_failures: dict[ServerName, str] = {}
        """Why a server failed when it last ran, until it serves again: also after its pool is gone, as that
        of a project is once its agents have left.
        """
        self._at_nodes: dict[ServerName, None] = {}
        """Servers that other nodes offer, or offered: one that is gone may come back."""
        self.sources = EffectiveSources(registry, self.states)
        self.retry_at: dict[PoolKey, float] = {}
        """The time at which a failing pool may start again."""
        self.slow: set[PoolKey] = set()
        """The pools for which a list has waited in vain once."""
        self._shared: dict[Hashable, Any] | None = None
        """The findings of the present pass over many sessions (`sharing_findings`)."""

    def state_changed(self, state: PoolChanged, now: float) -> None:
        """The supervisor told the state of a pool."""
        self.states[state.key] = state
        self._note_failure(state)
        self._note_node(state)
        self.retry_at.pop(state.key, None)
        if state.retry_after_s is not None:
            self.retry_at[state.key] = now + state.retry_after_s

    def _note_node(self, state: PoolChanged) -> None:
        server = ServerName(state.key.partition(":")[0])
        self._at_nodes.pop(server, None)
        if state.is_remote:
            self._at_nodes[server] = None
            if len(self._at_nodes) > MAX_AT_NODES:
                del self._at_nodes[next(iter(self._at_nodes))]

    def _note_failure(self, state: PoolChanged) -> None:
        server = ServerName(state.key.partition(":")[0])
        if state.state == "serving":
            self.last_failures.pop(server, None)
        elif state.state in FAILING_STATES and state.state != "stopped" and state.reason:
            self.last_failures.pop(server, None)
            self.last_failures[server] = state.reason
            if len(self.last_failures) > MAX_FAILURES:
                del self.last_failures[next(iter(self.last_failures))]

    def pool_refusal(self, state: PoolChanged, now: float) -> tuple[str, str, float | None]:
        """Return the fault, the detail and `retry_after_s` for a pool in this failing state."""
        if state.cannot_start and state.state != "stopped":
            return "not_offered" if state.is_remote else "cannot_start", state.reason, None
        fault: str = "breaker_open" if state.state == "half_open" else state.state
        if state.is_remote and state.state != "stopped":
            fault = "node_away"
        at = self.retry_at.get(state.key)
        return fault, state.reason, None if at is None else max(at - now, 0.1)

    @contextmanager
    def sharing_findings(self) -> Iterator[None]:
        """Find once for all sessions what depends on their view alone. No state of a pool, no catalog and no
        configuration may change meanwhile.
        """
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    def find_once(self, subject: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns. In a pass over many sessions it is called once for each subject."""
        shared = self._shared
        if shared is None:
            return find()
        if subject not in shared:
            shared[subject] = find()
        found: T = shared[subject]
        return found

    # --- who sees what ---------------------------------------------------------------------------------

    def session_opened(self, session: Session) -> None:
        """A session was opened: give it its scope."""
        session.scope, session.seen_servers = self._effective_scope(session)
        self._registry.retain_scope(session.scope)

    def _effective_scope(self, session: Session) -> tuple[Scope, Mapping[ServerName, str | None]]:
        """Return what the session sees now, and the servers that it has seen then. Names of servers that are
        no longer configured stay reserved, because its agent may still use them.
        """
        scope = self.sources.scope(session.source, asking=session.asking, stateless=session.stateless)
        seen = session.seen_servers
        # Sessions that have seen the same servers share one mapping, so it is its identity that counts.
        return self.find_once(("scope", scope, id(seen)), lambda: (_reserve_names(scope, seen), seen))[0]

    def session_closed(self, session: Session) -> None:
        """The session has closed."""
        self._registry.release_scope(session.scope)

    def apply_scopes(self, sessions: Iterable[Session]) -> list[ScopeChanged]:
        """Give each session the scope that is in force for it. Returns the sessions whose scope changed."""
        moved: list[ScopeChanged] = []
        with self.sharing_findings():
            for session in sessions:
                before = session.scope
                scope, seen = self._effective_scope(session)
                if scope == before:
                    continue
                view = self._registry.retain_scope(scope)
                former = self._registry.view(before)
                families, left = self.find_once(("way", before, scope), partial(_differences, former, view))
                self._registry.release_scope(before)
                moved.append(ScopeChanged(session, before, families, left))
                session.scope, session.seen_servers = scope, seen
        return moved

    def view_of(self, session: Session) -> View:
        """Return what this session sees."""
        return self._registry.view(session.scope)

    def absent_server(self, session: Session, name: str) -> tuple[ServerName, str, str] | None:
        """Return the server that an unknown name is a name of and that the session does not see, with the
        fault (empty if the server is gone) and the reason. Servers that wait for trust come last; of several
        the longest name counts.
        """
        scope = session.scope
        disabled = self.sources.disabled_servers(session.source)
        lame = self.sources.unrunnable(session.source)
        for server in sorted(scope.name_prefixes.servers_of(name)):
            if server in disabled:
                return server, "disabled", disabled[server].why
            if server in lame:
                return server, lame[server][0], f"{lame[server][1]}."
        if (barred := scope.barred_server(name)) is not None:
            return barred, "not_permitted", denied_by_profile(scope)
        if former := [each for each, _ in scope.former if each in scope.name_prefixes.servers_of(name)]:
            if former[0] in self._at_nodes:
                return former[0], "node_away", f"No node that is reached offers {former[0]}."
            return former[0], "", f"The server {former[0]} is not in the configuration any more."
        meant = [
            (len(server), server, state, f"{why}.")
            for server, (state, why) in lame.items()
            if may_be_of(name, server, scope.separator)
        ]
        return max(meant)[1:] if meant else None

    def broken_files(self, session: Session) -> str:
        """Return sentences about files that may name what the session does not find; empty: all are read."""
        why = self.sources.project_problem(session.source)
        of_project = f"The servers of this project are not known: {why}." if why else ""
        return " ".join(filter(None, (self.sources.user_problem(session.source), of_project)))

    def unprefixed_server(self, session: Session) -> tuple[ServerName, str, str] | None:
        """Return a disabled server that shows its tools without a prefix: any unknown name can be one of its
        tools.
        """
        for server, off in self.sources.disabled_servers(session.source).items():
            if off.prefix == "":
                return server, "disabled", off.why
        return None

    def instructions(self, session: Session) -> str:
        """Return the instructions of the servers, and which servers are missing (docs/rules.md, rule 18)."""
        subject = ("instructions", self.view_of(session), session.source, bool(session.profile), session.note)
        return self.find_once(subject, lambda: self._instructions(session))

    def _instructions(self, session: Session) -> str:
        if not session.profile and not self.sources.has_servers(session.source):
            return session.note or self.sources.user_problem(session.source) or NOTHING_CONFIGURED
        view = self.view_of(session)
        parts = (
            [usage_instructions(view.builtin_tools.values(), [it.server for it in view.scope.servers])]
            if view.builtin_tools
            else []
        )
        parts += [session.note, self.sources.user_problem(session.source), view.instructions]
        parts = [part for part in parts if part]
        missing = [
            f"{entry.server} ({FAILING_WORDS[self.states[entry.key].state]})"
            for entry in view.scope.servers
            if entry.key in self.states and self.states[entry.key].state in FAILING_STATES
        ]
        missing += [
            f"{server} ({UNRUNNABLE_REASONS[state]})"
            for server, (state, _) in self.sources.unrunnable(session.source).items()
            if state in UNRUNNABLE_REASONS
        ]
        # Counted, never named: a stranger has chosen the names, and this is text in the agent's prompt.
        if count := len(self.sources.untrusted_servers(session.source)):
            servers = "1 server" if count == 1 else f"{count} servers"
            missing.append(
                f"{servers} of this project's file, which awaits the user's trust (`carpool trust`)"
            )
        if why := self.sources.project_problem(session.source):
            missing.append(f"the servers of this project ({why})")
        held = Counter(server for server, tool in view.held_tools if tool != INSTRUCTIONS)
        if servers := ", ".join(sorted(server for server, tool in view.held_tools if tool == INSTRUCTIONS)):
            parts.append(
                f"Instructions that are held back until the user approves them: those of {servers}. The user "
                "can run `carpool pin diff SERVER`."
            )
        if held:
            each = ", ".join(f"{count} of {server}" for server, count in sorted(held.items()))
            parts.append(
                f"Tools that are held back until the user approves them: {each}. The user can run "
                "`carpool pin diff SERVER`."
            )
        if missing:
            parts.append(f"Not available now: {', '.join(missing)}. The user can run `carpool status`.")
        return "\n\n".join(parts)

    # --- patience --------------------------------------------------------------------------------------

    def is_settled(self, key: PoolKey) -> bool:
        """True if waiting for this pool's catalog is useless."""
        state = self.states.get(key)
        return state is not None and state.state in FAILING_STATES

    def has_pending_servers(self, session: Session, view: View) -> bool:
        """True if a list should wait for a catalog or for the roots of this session."""
        if session.awaits_roots and self.servers_awaiting_roots(session):
            return True
        return self.find_once(("pending", view), lambda: self._has_pending_pools(view))

    def _has_pending_pools(self, view: View) -> bool:
        return any(not self.is_settled(key) and key not in self.slow for key in view.unknown_pools)

    def has_starting_servers(self, view: View) -> bool:
        """True if some server of this view has not told its list yet and does not fail."""
        return self.find_once(
            ("starting", view), lambda: any(not self.is_settled(key) for key in view.unknown_pools)
        )

    def servers_awaiting_roots(self, session: Session) -> frozenset[ServerName]:
        """Return the servers whose pool for this session is known only once its agent has said its roots."""
        return self.sources.servers_with_roots(session.source) if session.awaits_roots else NO_SERVERS

    def discover_catalogs(self, session: Session, view: View) -> None:
        """Ask for the unknown catalogs of this view, and report pools that are away."""
        subject = ("discover", view, session.source if session.awaits_roots else None)
        self.find_once(subject, lambda: self._discover_catalogs(session, view))

    def _discover_catalogs(self, session: Session, view: View) -> None:
        for key in sorted(view.unknown_pools - self._pools_after_roots(session, view)):
            if not self.is_settled(key):
                self._emit(DiscoverCatalog(key))
        self.report_missed(view)

    def discover_first(self, session: Session, view: View, suspects: Iterable[PoolKey]) -> None:
        """Ask for the catalogs of these pools before others, because a call waits for one of them; also for
        those that are known from a file only, which did not have the wanted name.
        """
        sought = (view.unconfirmed | view.unknown_pools) - self._pools_after_roots(session, view)
        for key in suspects:
            if key in sought and not self.is_settled(key):
                self._emit(DiscoverCatalog(key, first=True))

    def _pools_after_roots(self, session: Session, view: View) -> set[PoolKey]:
        """Return the pools of this view that may not be the session's, because its agent has not said its
        roots.
        """
        unrooted = self.servers_awaiting_roots(session)
        return {entry.key for entry in view.scope.servers if entry.server in unrooted} if unrooted else set()

    def report_missed(self, view: View) -> None:
        """Tell the supervisor that a request needs pools of this view that are away."""
        self.find_once(("missed", view), lambda: self._report_missed(view))

    def _report_missed(self, view: View) -> None:
        for key in sorted(view.hidden_pools):
            if key in self.states and self.states[key].state in RETRIED_STATES:
                self._emit(DiscoverCatalog(key))

    def check(self, sessions: Iterable[Session]) -> None:
        """Assert every invariant."""
        self.sources.check()
        agents = Counter[SourceId]()
        for session in sessions:
            assert session.scope == self._effective_scope(session)[0]
            agents[session.source] += not session.control
        for source, each in self.sources.sources.items():
            assert each.agents == agents[source], f"{agents[source]} agents use {source}"


def _reserve_names(
    scope: Scope, seen: Mapping[ServerName, str | None]
) -> tuple[Scope, Mapping[ServerName, str | None]]:
    """Return the scope for sessions that have seen these servers, and what they have seen then."""
    prefixes = scope.prefixes
    if seen.keys() <= prefixes.keys():
        return scope, prefixes
    known = dict(scope.known)
    former = tuple((server, seen[server]) for server in sorted(seen.keys() - known.keys()))
    return replace(scope, former=former) if former else scope, {**seen, **prefixes}


def _differences(before: View, now: View) -> tuple[frozenset[Family], LeftPools]:
    return changed_families(before, now), pools_left(before.scope, now.scope)
