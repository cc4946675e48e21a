"""Hooks on calls: which hooks get a call or its answer, and what follows from their verdicts.

Owns the choice of hooks for a call, in the order of the configuration file, where each hook gets what the
hook before it made; every run of a hook from its start to its verdict or time limit; how many run at once;
and how the call goes on (docs/decisions/0025, docs/hooks.md). A call is *hooked* from the moment at which it
could be sent until the last hook has let it pass, and *told* from its server's answer until the last hook
has let that pass. Both count as in flight. A call that ends with an error of ours is answered at once: hooks
hear of it and change nothing.

Invariants (`check`): a call is `hooked` or `told` exactly while it is held here, and has one run then; every
run has a time limit; a hook has at most `MAX_RUNNING` runs at once, and none waits while another could
start. Refuses to know: processes, what is in arguments and results, how a hook is called and answers.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from carpool_broker.core.calls.call_table import CallTable
from carpool_broker.core.hooks.runs import QUEUE_TIMEOUT_S, BrokerHookRun, HookCounts, HookRunQueue
from carpool_broker.core.model.effects import AnyEffect, BeginHook, EndHook, LogLine
from carpool_broker.core.model.events import HookAnswered, HookRule, HookVerdict, RunId
from carpool_broker.core.model.session import OpenCall
from carpool_broker.core.model.timer_kinds import BrokerTimers
from carpool_protocol.config.schema.capability import Kind
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import CallId, RawJson, call_name
from carpool_protocol.link.messages import CallAnswered
from carpool_protocol.wire.uri_normalization import without_query

MAX_HELD_BYTES: Final = 256 * 1024 * 1024
"""The limit of all answers that hooks hold. An answer beyond it counts as a failure of its hooks."""
MAX_CACHED_RULES: Final = 4096
"""The number of tools and profiles whose hooks are cached."""
MAX_NAME_CHARS: Final = 256
"""Names and URIs longer than this are not cached."""

_KIND_OF: Final[dict[str, Kind]] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
}
"""The methods that hooks get. Completions and requests about tasks are not for hooks."""
_NO_RUN: Final = RunId(0)
_NO_ROOM: Final = "there was no room to keep more answers for hooks to look at"

Names = tuple[str, ...]


class HeldCall:
    """A call that waits for hooks."""

    __slots__ = ("answer", "left", "open_call", "run")

    def __init__(self, open_call: OpenCall, names: Names, answer: CallAnswered | None = None) -> None:
        self.open_call = open_call
        self.left = deque(names)
        """The hooks that have not got it yet."""
        self.answer = answer
        """The server's answer; None if the call has not been sent."""
        self.run = _NO_RUN


class CallHooks:
    """All hooks of one broker. It is the call table's `call_listeners.HookPoints`."""

    def __init__(
        self,
        call_table: CallTable,
        out: Callable[[AnyEffect], None],
        timers: BrokerTimers,
        *,
        may_leave: Callable[[OpenCall], bool],
        strays: Callable[[OpenCall], bool],
    ) -> None:
        """`may_leave` tells whether a call that has passed may still be sent where it was to go, and ends it
        if not. `strays` tells whether it is unclear which resource the URI of a call leads to.
        """
        self._call_table = call_table
        self._timers = timers
        self._emit = out
        self._may_leave = may_leave
        self._strays = strays
        self.rules: dict[str, HookRule] = {}
        self.tallies: dict[str, HookCounts] = {}
        """The counts of each hook of this broker's configurations, since the broker began."""
        self.pending: list[tuple[HookRule, BeginHook]] = []
        """The ends of calls that hooks must be told of (`send_outcomes`)."""
        self.held_bytes = 0
        self._held: dict[CallId, HeldCall] = {}
        self._passed: dict[CallId, RawJson] = {}
        """The calls that hooks have let pass, and their arguments as hooks left them."""
        self._rules_cache: dict[tuple[str, str, str, str, Names, bool], tuple[Names, Names]] = {}
        self._by_tag = False
        self._runs: dict[RunId, BrokerHookRun] = {}
        self._queues: dict[str, HookRunQueue] = {}
        self._count = 0

    # --- which hooks -----------------------------------------------------------------------------------

    def hooks_read(self, rules: Iterable[HookRule]) -> None:
        """These hooks are in force from now on. Runs that are under way go on to their verdicts."""
        self.rules = {rule.name: rule for rule in rules}
        self._by_tag = any(each.tag is not None for rule in self.rules.values() for each in rule.match)
        self._rules_cache.clear()
        for name in self.rules:
            self.tallies.setdefault(name, HookCounts())
        self._call_table.hook_points = self if self.rules or self._held or self._passed else None

    def _find_rules(self, open_call: OpenCall) -> tuple[Names, Names]:
        """Return the hooks before this call, and those after it."""
        tags = _tags_of(open_call) if self._by_tag else ()
        method = open_call.asked.method
        strays = bool(self.rules) and _KIND_OF.get(method) == "resource" and self._strays(open_call)
        key = (open_call.session.profile, method, open_call.server, open_call.target, tags, strays)
        found = self._rules_cache.get(key)
        if found is None:
            kind = _KIND_OF.get(method)
            rules = (
                []
                if kind is None
                else [
                    each
                    for each in self.rules.values()
                    if _rule_matches(each, open_call, kind, tags, strays=strays)
                ]
            )
            found = (
                tuple(each.name for each in rules if each.before),
                tuple(each.name for each in rules if each.after),
            )
            if len(self._rules_cache) >= MAX_CACHED_RULES:
                self._rules_cache.clear()
            if len(open_call.target) <= MAX_NAME_CHARS:
                self._rules_cache[key] = found
        return found

    def concerns(self, open_call: OpenCall) -> bool:
        """See `HookPoints`."""
        return any(self._find_rules(open_call))

    def concerns_answer(self, open_call: OpenCall) -> bool:
        """See `HookPoints`."""
        return bool(self._find_rules(open_call)[1])

    # --- the course of a call --------------------------------------------------------------------------

    def hold_call(self, open_call: OpenCall, now: float) -> bool:
        """See `HookPoints`."""
        if open_call.asked.method not in _KIND_OF or open_call.call in self._passed:
            return False
        names = self._find_rules(open_call)[0]
        if not names:
            return False
        open_call.stage = "hooked"
        open_call.session.count_in_flight()
        held = self._held[open_call.call] = HeldCall(open_call, names)
        self._run_next(held, now)
        return True

    def hold_answer(self, open_call: OpenCall, answer: CallAnswered, now: float) -> bool:
        """See `HookPoints`. An answer that sends the agent to URLs first does not end its call."""
        if open_call.stage != "sent" or open_call.asked.method not in _KIND_OF or answer.urls_first:
            return False
        names = self._find_rules(open_call)[1]
        if not names:
            return False
        self._timers.disarm("sent_call", open_call.call)
        open_call.stage, open_call.answered_at = "told", now
        held = self._held[open_call.call] = HeldCall(open_call, names, answer)
        self.held_bytes += len(answer.body)
        if self.held_bytes > MAX_HELD_BYTES:
            self._emit(LogLine("warning", f"{_NO_ROOM}: call {call_name(open_call.call)}"))
            strict = next((name for name in names if self.rules[name].closed), "")
            held.left.clear()
            if strict:
                self._deny_call(held, strict, "failed", _NO_ROOM, now)
                return True
        self._run_next(held, now)
        return True

    def call_failed(self, open_call: OpenCall, slug: str) -> None:
        """See `HookPoints`. A hook that has got the answer already is not told of the end."""
        if not open_call.server or open_call.stage == "told" or open_call.asked.method not in _KIND_OF:
            return
        kind = KINDS.get(slug)
        for name in self._find_rules(open_call)[1]:
            run = self._make_run(open_call, name)
            family = "lost" if kind is None else kind.family
            self.pending.append((self.rules[name], replace(run, outcome=family, code=slug)))

    def call_closed(self, open_call: OpenCall) -> None:
        """See `HookPoints`. A run before a call that no agent wants is ended; a run after it goes on."""
        self._passed.pop(open_call.call, None)
        held = self._held.pop(open_call.call, None)
        if not (self.rules or self._held or self._passed):
            self._call_table.hook_points = None  # there were some
        if held is None:
            return
        if held.answer is not None:
            self.held_bytes -= len(held.answer.body)
        run = self._runs.get(held.run)
        if run is None or held.answer is not None:
            return
        if run.began is None:
            self._forget_run(run)
        else:
            self._emit(EndHook(run.id, run.rule.name))  # it has its place until that is over

    def _run_next(self, held: HeldCall, now: float) -> None:
        """Start the next hook of this call; after the last one the call goes on."""
        while held.left:
            name = held.left.popleft()
            rule = self.rules.get(name)
            if rule is None or not (rule.before if held.answer is None else rule.after):
                continue  # it is no more since the call came
            what = self._make_run(held.open_call, name)
            if held.answer is not None:
                answer = held.answer
                what = replace(what, outcome="answered", body=answer.body, is_error=answer.is_error)
            held.run = self._queue_run(rule, what, now)
            return
        open_call = held.open_call
        if held.answer is None:
            del self._held[open_call.call]
            if self._may_leave(open_call):
                self._passed[open_call.call] = open_call.asked.rest
                self._call_table.admission.admit_again(open_call, now)
            else:
                self._call_table.admission.send_queued(open_call.session, now)
        else:
            self._call_table.call_answered(held.answer, now)

    def _apply_verdict(self, held: HeldCall, rule: HookRule, said: HookAnswered, now: float) -> None:
        """Act on the verdict of a hook about this call."""
        if said.verdict == "rewrite":
            self._rewrite_call(held, said.body)
        elif said.verdict == "deny" or (said.verdict == "failed" and rule.closed):
            self._deny_call(held, rule.name, said.verdict, said.reason, now)
            return
        self._run_next(held, now)

    def _rewrite_call(self, held: HeldCall, body: RawJson) -> None:
        open_call, answer = held.open_call, held.answer
        if answer is not None:
            self.held_bytes += len(body) - len(answer.body)
            held.answer = replace(answer, is_error=False, body=body, ttl_ms=-1, public=False)
            return
        self._call_table.arguments.call_closed(open_call)
        open_call.asked = replace(open_call.asked, rest=body)
        open_call.size_bytes = len(body) + len(open_call.asked.meta)
        self._call_table.arguments.call_opened(open_call)

    def _deny_call(self, held: HeldCall, name: str, verdict: HookVerdict, reason: str, now: float) -> None:
        open_call = held.open_call
        if verdict == "deny":
            slug = "denied_by_hook" if held.answer is None else "answer_denied"
            detail = f"The hook {name} says: {_sentence(reason)}" if reason else f"The hook is {name}."
        else:
            slug = "hook_failed" if held.answer is None else "answer_hook_failed"
            detail = f"The hook is {name}: {reason}."
        self._call_table.fail(open_call, slug, detail)
        self._call_table.admission.send_queued(open_call.session, now)

    # --- runs ------------------------------------------------------------------------------------------

    def _make_run(self, open_call: OpenCall, name: str) -> BeginHook:
        asked = open_call.asked
        arguments = self._passed.get(open_call.call, asked.rest)
        return BeginHook(
            run=_NO_RUN, hook=name, call=open_call.call, session=open_call.session.id, method=asked.method,
            server=open_call.server, target=open_call.target, arguments=arguments,
        )  # fmt: skip

    def _queue_run(self, rule: HookRule, what: BeginHook, now: float) -> RunId:
        self._count += 1
        run = BrokerHookRun(rule, replace(what, run=RunId(self._count)))
        self._runs[run.id] = run
        line = self._queues.setdefault(rule.name, HookRunQueue())
        if line.is_full:
            line.add(run)
            self._timers.arm("hook_run", run.id, now, QUEUE_TIMEOUT_S)
        else:
            self._start_run(line, run, now)
        return run.id

    def _start_run(self, line: HookRunQueue, run: BrokerHookRun, now: float) -> None:
        line.running += 1
        run.began = now
        self._timers.arm("hook_run", run.id, now, run.rule.timeout_s)
        self._emit(run.what)
        run.what = replace(run.what, arguments=RawJson(b""), body=RawJson(b""))

    def _forget_run(self, run: BrokerHookRun) -> None:
        """Forget a run that is over or never began."""
        del self._runs[run.id]
        self._timers.disarm("hook_run", run.id)
        line = self._queues[run.rule.name]
        if run.began is None:
            line.remove(run)
        else:
            line.running -= 1

    def _start_waiting(self, name: str, now: float) -> None:
        """Start the next run of this hook that waits, if it may have one more."""
        line = self._queues[name]
        while line.waiting and not line.is_full:
            self._start_run(line, line.remove(line.waiting[0]), now)
        if line.is_empty:
            del self._queues[name]

    def run_ended(self, event: HookAnswered, now: float) -> None:
        """A run is over. The result of a run that was given up is dropped."""
        run = self._runs.get(event.run)
        if run is not None:
            self._forget_run(run)
            self._end_run(run, event, now)

    def _end_run(self, run: BrokerHookRun, said: HookAnswered, now: float, *, late: bool = False) -> None:
        held = self._held.get(run.what.call)
        if held is not None and held.run != run.id:
            held = None
        if said.verdict == "rewrite" and not run.rule.rewrite:
            said = HookAnswered(said.run, "failed", "it rewrites, and its `rewrite` is not true")
        if held is not None or run.what.outcome:  # a run that was ended says nothing of its hook
            self.tallies[run.rule.name].timeouts += late
            began = now if run.began is None else run.began
            if (
                news := self.tallies[run.rule.name].count_run(said.verdict, now - began, said.reason)
            ) is not None:
                self._log_change(run, news, said.reason)
        self._start_waiting(run.rule.name, now)
        if held is not None:
            self._apply_verdict(held, run.rule, said, now)

    def _log_change(self, run: BrokerHookRun, news: bool, reason: str) -> None:
        if news:
            what = "let calls through" if not run.rule.closed else "refuse calls"
            call = call_name(run.what.call)
            self._emit(LogLine("warning", f"the hook {run.rule.name} fails, so we {what}: {reason} ({call})"))
        else:
            self._emit(LogLine("info", f"the hook {run.rule.name} works again"))

    def queue_of(self, name: str) -> HookRunQueue:
        """Return the runs of this hook."""
        return self._queues.get(name) or HookRunQueue()

    def send_outcomes(self, now: float) -> None:
        """Tell hooks how calls ended about which they have no verdict."""
        pending, self.pending = self.pending, []
        for rule, what in pending:
            line = self._queues.get(rule.name)
            if line is not None and line.is_full and not line.has_room(what):
                self.tallies[rule.name].untold += 1
            else:
                self._queue_run(rule, what, now)

    def end_runs(self, runs: Iterable[RunId], now: float) -> None:
        """End the runs that waited too long to start, then those that took too long: where one of these
        ends, the next one starts.
        """
        for run in sorted([self._runs[each] for each in runs], key=_has_begun):
            if run.began is None:
                why = f"it has had too much to look at for {QUEUE_TIMEOUT_S:g} s"
            else:
                why = f"it gave no answer within {run.rule.timeout_s:g} s"
                self._emit(EndHook(run.id, run.rule.name))
            self._forget_run(run)
            self._end_run(run, HookAnswered(run.id, "failed", why), now, late=_has_begun(run))

    def check(self) -> None:
        """Assert every invariant."""
        calls = self._call_table.calls
        hooked = {call for call, open_call in calls.items() if open_call.stage in {"hooked", "told"}}
        assert hooked == self._held.keys(), "a call waits for no hook"
        assert not hooked or self._call_table.hook_points is self
        for call, held in self._held.items():
            assert held.open_call is calls[call]
            assert (held.open_call.stage == "told") == (held.answer is not None)
            assert self._runs[held.run].what.call == call, "nobody looks at a call that waits for that"
        assert self._passed.keys() <= calls.keys()
        assert self.held_bytes == sum(len(h.answer.body) for h in self._held.values() if h.answer is not None)
        assert self._timers.keys("hook_run") == self._runs.keys()
        for name, line in self._queues.items():
            line.check([run for run in self._runs.values() if run.rule.name == name])


def _has_begun(run: BrokerHookRun) -> bool:
    return run.began is not None


def _rule_matches(rule: HookRule, open_call: OpenCall, kind: Kind, tags: Names, *, strays: bool) -> bool:
    """True if a hook gets a call. `strays`: the call can be about any resource of its server."""
    if rule.profiles and open_call.session.profile not in rule.profiles:
        return False
    names = without_query(open_call.target) if kind == "resource" else (open_call.target,)
    return any(
        (strays and each.kind in (None, kind) and each.is_of(open_call.server, tags))
        or any(each.covers(kind, open_call.server, tags, name) for name in names)
        for each in rule.match
    )


def _tags_of(open_call: OpenCall) -> Names:
    servers = open_call.session.scope.servers
    return next((entry.tags for entry in servers if entry.server == open_call.server), ())


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
