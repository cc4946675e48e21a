"""Performs runs of hooks: chooses the process of each, and turns its answers into events of the core.

Owns one process per hook. It is started when the configuration has the hook. It is replaced when it dies (at
the next run, after a pause that grows with failures), when the configuration changes it, and when a run in it
does not end although it was cancelled. Other hooks and the broker continue meanwhile: no part of a hook runs
in the broker's process.

Knows nothing of: which calls have hooks, the effect of a verdict (`hook_points`).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio
from msgspec import Raw
from msgspec.json import encode
from msgspec.structs import replace

from carpool_broker.core.model.effects import BeginHook, EndHook
from carpool_broker.core.model.events import HookAnswered, RunId
from carpool_broker.core.model.session import Session
from carpool_broker.hooks.child_handle import HookProcess
from carpool_broker.hooks.spec import HookSpec
from carpool_protocol.hooks.lines import NOTHING, HookAnswer
from carpool_protocol.hooks.verdicts import (
    DUPLICATE_NAME,
    HookDescription,
    arguments_of,
    is_plain,
    read_verdict,
    with_arguments,
)
from carpool_protocol.ids import ABSENT, RawJson, SessionId, call_name

log = logging.getLogger("carpool.hooks")

HANG_TIMEOUT_S: Final = 1.0
"""A cancelled run that does not end within this time has its process replaced."""
READY_TIMEOUT_S: Final = 60.0
"""How long a process may import its module: another process would have to start that again."""
PATH_TIMEOUT_S: Final = 10.0
"""How long the first start of a hook waits for the PATH of servers, for which the login shell is asked."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0


class _HookSlot:
    """One hook as configured, and its process."""

    def __init__(self, spec: HookSpec) -> None:
        self.spec = spec
        self.process: HookProcess | None = None
        self.deaths = 0
        """Number of processes in a row that gave no verdict."""
        self.not_before = 0.0
        self.why = ""
        """The reason of the last death."""


class HookRunner:
    """All hooks of one broker. `feed`: takes events for the core; `settle`: ends a burst."""

    def __init__(
        self,
        sessions: Mapping[SessionId, Session],
        workspace_of: Callable[[SessionId], str],
        environment: Mapping[str, str],
        feed: Callable[[HookAnswered], None],
        settle: Callable[[], None],
        *,
        search_path: Sequence[str],
        runtime_id: str,
    ) -> None:
        """`environment`: variables of each process, in addition to its hook's own. `search_path`: the
        directories of its PATH if no supervisor tells those of servers in time.
        """
        self._sessions = sessions
        self._workspace_of = workspace_of
        self._environment = environment
        self._search_path = search_path
        self._is_path_told = trio.Event()
        self._feed = feed
        self._settle = settle
        self._runtime_id = runtime_id
        self._hooks: dict[str, _HookSlot] = {}
        self._runs: dict[RunId, tuple[HookProcess, BeginHook]] = {}
        self._nursery: trio.Nursery | None = None

    def hooks_read(self, specs: Sequence[HookSpec]) -> None:
        """Use these hooks from now on. A process of a changed hook ends after its open runs."""
        before, self._hooks = self._hooks, {}
        for spec in specs:
            found = before.get(spec.name)
            self._hooks[spec.name] = found if found is not None and found.spec == spec else _HookSlot(spec)
        kept = {id(each) for each in self._hooks.values()}
        for each in before.values():
            if id(each) not in kept and each.process is not None:
                each.process.end_after_open()
        for each in self._hooks.values() if self._nursery is not None else ():
            if each.process is None and not each.spec.problem:
                self._process_of(each)  # otherwise the first call would wait for its start

    def search_path_told(self, directories: Sequence[str]) -> None:
        """Processes that start from now on get this PATH, unless their hook has one of its own."""
        self._search_path = directories
        self._is_path_told.set()

    def problem_of(self, name: str) -> str:
        """Why this hook cannot be run; empty: no problem is known."""
        hook = self._hooks.get(name)
        return "" if hook is None else hook.spec.problem or hook.why

    def pid_of(self, name: str) -> int:
        """The pid of its process; 0: it has none."""
        hook = self._hooks.get(name)
        return 0 if hook is None or hook.process is None else hook.process.pid

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then every process is ended."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    # --- effects ---------------------------------------------------------------------------------------

    def begin_run(self, effect: BeginHook) -> None:
        """Let a hook check a call."""
        hook = self._hooks.get(effect.hook)
        if hook is None:
            self._feed(HookAnswered(effect.run, "failed", "the configuration no longer has it"))
            return
        why = hook.spec.problem if self._nursery is not None else "carpool is ending"
        if not why and hook.process is None and trio.current_time() < hook.not_before:
            why = hook.why
        if why:
            self._feed(HookAnswered(effect.run, "failed", why))
            return
        if not effect.outcome and not is_plain(effect.arguments):
            self._feed(HookAnswered(effect.run, "deny", DUPLICATE_NAME))
            return
        process = self._process_of(hook)
        self._runs[effect.run] = (process, replace(effect, body=ABSENT))
        process.begin(effect.run, encode(self._hook_call(effect)))

    def end_run(self, effect: EndHook) -> None:
        """End a run that is no longer needed."""
        found = self._runs.get(effect.run)
        if found is not None and self._nursery is not None:
            found[0].end_run(effect.run)
            self._nursery.start_soon(self._end_overdue, effect.run, effect.hook)

    def _hook_call(self, effect: BeginHook) -> HookDescription:
        session = self._sessions.get(effect.session)
        telling = HookDescription(
            hook=effect.hook,
            phase="after" if effect.outcome else "before",
            call=call_name(effect.call),
            method=effect.method,
            server=effect.server,
            name=effect.target,
            session=effect.session,
            agent="" if session is None else session.agent,
            profile="" if session is None else session.profile,
            workspace=self._workspace_of(effect.session),
            arguments=Raw(arguments_of(effect.arguments)),
            outcome=effect.outcome,
            code=effect.code,
        )
        if effect.outcome == "answered":
            if effect.is_error:
                telling.error = Raw(effect.body)
            else:
                telling.result = Raw(effect.body)
        return telling

    # --- processes -------------------------------------------------------------------------------------

    def _process_of(self, hook: _HookSlot) -> HookProcess:
        if hook.process is None:
            environment = {**self._environment, **hook.spec.env}
            hook.process = process = HookProcess(
                hook.spec, environment, lambda told: self._run_ended(hook, told), self._runtime_id
            )
            assert self._nursery is not None
            self._nursery.start_soon(self._run_process, hook, process)
        return hook.process

    async def _run_process(self, hook: _HookSlot, process: HookProcess) -> None:
        """Run a process from start to end. It has the PATH of servers, for which the login shell is asked."""
        try:
            with trio.move_on_after(PATH_TIMEOUT_S):
                await self._is_path_told.wait()
            await process.run(self._search_path)
        finally:
            if hook.process is process:
                hook.process = None
                hook.why = process.why
                pause_s = min(FIRST_PAUSE_S * 2**hook.deaths, LONGEST_PAUSE_S)
                hook.deaths = min(hook.deaths + 1, 10)
                hook.not_before = trio.current_time() + pause_s
            process.process_ended()  # now, because it may begin another run of this hook
            self._settle()
            with trio.CancelScope(shield=True):
                await process.end_leftovers()

    async def _end_overdue(self, run: RunId, name: str) -> None:
        if (begun := self._runs.get(run)) is not None:
            with trio.move_on_after(READY_TIMEOUT_S):
                await begun[0].ready.wait()
        await trio.sleep(HANG_TIMEOUT_S)
        found = self._runs.get(run)
        hook = self._hooks.get(name)
        if found is None:
            return
        process, effect = found
        if hook is not None and hook.process is process and self._nursery is not None:
            call = call_name(effect.call)
            log.warning("hook %s hangs in call %s: its process is replaced", name, call, extra={"call": call})
            hook.process = None
            self._process_of(hook)
        process.end_without(run)

    def _run_ended(self, hook: _HookSlot, answer: HookAnswer) -> None:
        """Feed the outcome of a run to the core."""
        found = self._runs.pop(RunId(answer.run), None)
        if found is None:
            return
        effect = found[1]
        if answer.verdict is NOTHING:
            self._feed(HookAnswered(effect.run, "failed", answer.failed))
        else:
            hook.deaths, hook.why = 0, ""
            before = not effect.outcome
            output = read_verdict(bytes(answer.verdict), effect.method, before=before)
            body = output.body
            if before and output.verdict == "rewrite":
                body = with_arguments(effect.arguments, RawJson(body))
            self._feed(HookAnswered(effect.run, output.verdict, output.reason, body))
        self._settle()
