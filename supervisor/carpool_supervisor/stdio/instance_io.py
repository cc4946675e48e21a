"""Pipes, era adapter and stderr log of each instance, and the table of all instances.

Owns the order of events when an instance ends: all its output is read before the core hears of the exit, and
the lines that it never received are named by wire id, so that "not delivered" is exact. Owns the choice of
the era adapter, the instances that have output to flush, and the log file of each server's stderr.

Knows nothing of: the link, the spawner, why an instance runs, which call belongs to which agent.
"""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.remote import secrets_of
from carpool_protocol.files.redaction import Mask
from carpool_protocol.ids import InstanceId, RawJson, ServerName, WireId
from carpool_protocol.link.messages import Call, Era, PoolSpec
from carpool_protocol.runtime.poller import ReadySet
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.core.model.events import (
    AnswerUnreadable,
    CatalogRead,
    EraRefused,
    GreetingFailed,
    InstanceGreeted,
    ListRequestChanged,
    OwnEvent,
    ServerLineRejected,
    StdinBlocked,
    StdinBroken,
    StdoutClosed,
    StdoutPaused,
    StdoutReceived,
)
from carpool_supervisor.era.adapter import EraAdapter
from carpool_supervisor.era.era_detection import EraDetection
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.server_requests import Declared
from carpool_supervisor.era.stateless import StatelessAdapter
from carpool_supervisor.spawn.request import Pipes
from carpool_supervisor.stdio.child_io import ChildIo, PipeBudget
from carpool_supervisor.stdio.read_budget import ReadBudget
from carpool_supervisor.stdio.stderr_log import TAIL_LINE_CHARS, StderrLog

REMEMBERED_LINES = 8192
"""Lines whose wire id is remembered until they are written; far more than may be in flight."""
MAX_UNREAD, MAX_UNREAD_BYTES = 100, 1000
"""Limits for each instance: invalid lines on stdout that are copied to its log, and bytes of each."""
_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warning": "warning",
}
"""Levels of MCP's log messages in a log of carpool; the rest are errors."""
MIN_SECRET_CHARS = 6
"""Shorter environment values (`1`, `true`, `en`) are not masked, because they occur in every text."""


def mask_of(values: Iterable[str]) -> Mask:
    """A mask that writes these values as `***`, except those of fewer than `MIN_SECRET_CHARS` characters."""
    return Mask(values, "***", MIN_SECRET_CHARS)


class InstanceIo:
    """The pipes and the adapter of one instance. `feed` receives its events in order."""

    def __init__(
        self,
        instance: InstanceId,
        adapter: EraAdapter | EraDetection,
        pipes: Pipes,
        *,
        ready: ReadySet,
        budget: PipeBudget,
        log: StderrLog,
        given: Iterable[str],
        variables: Iterable[str],
        feed: Callable[[Iterable[OwnEvent]], None],
        on_dirty: Callable[["InstanceIo"], None],
        intake: ReadBudget,
    ) -> None:
        self.instance = instance
        self._detection = adapter if isinstance(adapter, EraDetection) else None
        """The detection of an unknown era, until the server has greeted."""
        self._adapter: EraAdapter = adapter.adapter if isinstance(adapter, EraDetection) else adapter
        self._log = log
        self._feed = feed
        self._on_dirty = on_dirty
        self._mask = mask_of(given)
        self._written: deque[WireId] = deque(maxlen=REMEMBERED_LINES)
        """The wire id of each line written to the pipe; 0 for lines that are no calls."""
        self._list_out = self._adapter.open_list_request
        self._dirty = False
        self._unflushed = 0
        self._left_out = ""
        """The sentence in the log on entries of its lists that are over a limit."""
        self._unread = 0
        """Invalid lines on stdout that are in the log."""
        self._read_budget = intake
        self._read_on_soon = False
        """The next slice of a long list is due in the next turn."""
        self._ready = ready
        self.io = ChildIo(
            ready,
            pipes.stdin_fd,
            pipes.stdout_fd,
            budget,
            on_lines=self._lines_received,
            on_stdout_closed=lambda: feed((StdoutClosed(instance),)),
            on_stdin_blocked=lambda blocked: feed((StdinBlocked(instance, blocked),)),
            on_stdin_broken=self._stdin_broken,
            on_long_line=self._long_line,
            on_paused=self._paused,
        )
        intake.add(self.io)
        log.attach(instance, pipes.stderr_fd, mask_of(variables))

    def masked(self, text: str) -> str:
        """The sentence with the values that this instance was given masked."""
        return self._mask.redact(text)

    def greet(self) -> None:
        """Greet the server: its process runs."""
        self._write(self._adapter.greeting_line())

    def greet_in_other_era(self) -> None:
        """Greet a silent server in the other era."""
        if self._detection is not None:
            self._write(self._detection.greet_in_other_era())
            self._adapter = self._detection.adapter

    def write_call(self, wire_id: WireId, call: Call) -> None:
        """Write a call."""
        self._write(self._adapter.call_line(wire_id, call), wire_id)
        if self.io.is_stdin_broken:
            self._feed((StdinBroken(self.instance, (wire_id,)),))

    def write_cancel(self, wire_id: WireId, reason: str) -> None:
        """Write a cancel."""
        self._write(self._adapter.cancel_line(wire_id, reason))
        self._feed(self._adapter.take_events())

    def answer_ask(self, ask: RawJson, *, is_error: bool, body: RawJson) -> None:
        """Answer an ask of the server."""
        self._write(self._adapter.ask_answer_line(ask, is_error=is_error, body=body))
        self._feed(self._adapter.take_events())

    def retry_call(self, wire_id: WireId) -> None:
        """Send a call again."""
        self._write(self._adapter.retry_line(wire_id))

    def write_ask_progress(self, token: RawJson, params: RawJson) -> None:
        """Report progress of an ask to the server."""
        self._write(self._adapter.ask_progress_line(token, params))

    def write_level(self, level: str) -> None:
        """Write a log level."""
        self._write(self._adapter.level_line(level))

    def write_subscriptions(self, add: Iterable[str], drop: Iterable[str]) -> None:
        """Write new subscriptions and the end of others."""
        self._write(self._adapter.subscriptions_line(add, drop))

    def write_task_subscriptions(self, tasks: Sequence[str]) -> None:
        """Subscribe to the progress of these tasks."""
        self._write(self._adapter.task_subscriptions_line(tasks))

    def write_task_cancel(self, task: str) -> None:
        """Cancel a task whose agent will not return for it."""
        self._write(self._adapter.cancel_task_line(task))

    def log_message(self, level: str, params: bytes) -> None:
        """Write a log message for operators to the log of the server's stderr."""
        own = _LEVELS.get(level, "error")
        self._log.write_line(self.instance, params.decode("utf-8", "replace"), "log", own)

    def write_probe(self) -> None:
        """Write a probe."""
        self._write(self._adapter.probe_line())

    def reread_lists(self) -> None:
        """Read the server's lists again."""
        self._write(self._adapter.relist_line())
        self._report_list_request()

    def give_up_list(self, after_s: float) -> None:
        """Give up the open list request."""
        self._feed(self._adapter.list_timed_out(after_s))
        self._report_list_request()

    def flush(self) -> None:
        """Write everything since the last flush as one burst."""
        self._dirty = False
        self.io.flush()

    def process_exited(self) -> tuple[tuple[WireId, ...], str]:
        """The process has ended: read the rest of its output, and report undelivered calls and its last
        words.
        """
        self.io.drain()
        self._log.drain(self.instance)
        lines = self._log.tail_of(self.instance)
        # Masked as a whole, because a value with line ends is not found in single lines.
        words = self._mask.redact("\n".join(map(self._check_line, lines)))
        return self._unwritten_calls(), words

    def _check_line(self, line: str) -> str:
        return self._mask.redact_cut(line) if len(line) >= TAIL_LINE_CHARS else line

    def close(self) -> None:
        """Close the pipes and end the conversation."""
        self.io.close()
        self._adapter.close()
        self._read_budget.remove(self.io)
        self._log.detach(self.instance)

    def _write(self, line: bytes, wire_id: WireId = WireId(0)) -> None:  # noqa: B008 - an int
        if not line:
            return
        self._written.append(wire_id)
        self.io.write(line)
        self._unflushed += 1
        if self._unflushed >= OUTPUTS_PER_FLUSH:
            self._unflushed = 0
            self.io.flush()
        if not self._dirty:
            self._dirty = True
            self._on_dirty(self)

    def _stdin_broken(self) -> None:
        self._feed((StdinBroken(self.instance, self._unwritten_calls()),))

    def _unwritten_calls(self) -> tuple[WireId, ...]:
        """The calls of which not every byte was written."""
        count = self.io.unwritten_count()
        return tuple(wire for wire in list(self._written)[-count:] if wire) if count else ()

    def _report_list_request(self) -> None:
        """Report a change of the open list request."""
        out = self._adapter.open_list_request
        if out is not self._list_out:
            self._list_out = out
            self._feed((ListRequestChanged(self.instance, out[1]),))

    def _long_line(self, io: ChildIo) -> None:
        """Bytes of an unfinished line are a sign of life too (rule 8)."""
        self._read_budget.line_grew(io)
        self._feed((StdoutReceived(self.instance),))

    def _paused(self, paused: bool) -> None:
        self._feed((StdoutPaused(self.instance, paused),))
        if not paused and self.io.has_unread:  # the server wrote while it was not read
            self._feed((StdoutReceived(self.instance),))

    def _lines_received(self, lines: list[bytes | OverlongLine]) -> None:
        if self._detection is None:
            events, answers = self._adapter.feed(lines)
        else:
            events, answers = self._detect(self._detection, lines)
        for line in answers:
            self._write(line)
        if events:
            if any(type(event) is ServerLineRejected for event in events):
                self._log_unread(lines)
            self._feed([self._masked_event(event) for event in events])
        else:
            self._feed((StdoutReceived(self.instance),))
        self._report_list_request()
        self._plan_to_read_on()

    def _plan_to_read_on(self) -> None:
        if self._adapter.is_reading and not self._read_on_soon:
            self._read_on_soon = True
            self._ready.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read the next slice of a long list, unless the instance has ended meanwhile."""
        self._read_on_soon = False
        if not self._adapter.is_reading:
            return
        events, answers = (self._detection or self._adapter).read_on()
        if self._detection is not None and self._detection.is_over:
            self._detection = None
        for line in answers:
            self._write(line)
        if events:
            self._feed([self._masked_event(event) for event in events])
            self._report_list_request()
        self._plan_to_read_on()

    def _log_unread(self, lines: Sequence[bytes | OverlongLine]) -> None:
        """Copy invalid lines on stdout into the server's log: a print, a banner, a stack trace."""
        for line in lines:
            if isinstance(line, bytes) and line[:1] != b"{" and line.strip() and self._unread < MAX_UNREAD:
                self._unread += 1
                text = line[:MAX_UNREAD_BYTES].decode("utf-8", "replace")
                self._log.write_line(self.instance, text, "stdout")

    def _masked_event(self, event: OwnEvent) -> OwnEvent:
        """The event with its text masked if the text becomes part of errors and of `status`."""
        if isinstance(event, GreetingFailed | EraRefused | AnswerUnreadable | ServerLineRejected):
            return structs.replace(event, text=self._mask.redact(event.text))
        if isinstance(event, InstanceGreeted | CatalogRead) and event.catalog.left_out != self._left_out:
            self._left_out = event.catalog.left_out
            self._log.write_line(self.instance, self._left_out or "nothing is left out any more")
        return event

    def _detect(
        self, detection: EraDetection, lines: Sequence[bytes | OverlongLine]
    ) -> tuple[list[OwnEvent], list[bytes]]:
        found = detection.feed(lines)
        self._adapter = detection.adapter
        if detection.is_over:
            self._detection = None
        return found


log = logging.getLogger("carpool.supervisor")

Feed = Callable[[Iterable[events.OwnEvent]], None]


class InstanceIos:
    """The pipes and adapters of all instances of one supervisor. `life`: its secret for trace contexts."""

    def __init__(self, ready: ReadySet, logs: Path, release: str, life: bytes, feed: Feed) -> None:
        self._ready = ready
        self._logs = logs
        self._release = release
        self._life = life
        self._feed = feed
        self._budget = PipeBudget()
        self.read_budget = ReadBudget()
        """The limit on reading from all of them together."""
        self._held: dict[InstanceId, InstanceIo] = {}
        self._stderr: dict[ServerName, StderrLog] = {}
        self._dirty: list[InstanceIo] = []
        held = self._held
        self.handlers: Mapping[type, Callable[..., None]] = {
            effects.WriteCall: lambda e: held[e.instance].write_call(e.wire, e.call),
            effects.WriteCancel: lambda e: held[e.instance].write_cancel(e.wire, e.reason),
            effects.WriteLevel: lambda e: held[e.instance].write_level(e.level),
            effects.WriteSubscriptions: lambda e: held[e.instance].write_subscriptions(e.add, e.drop),
            effects.WriteTaskSubscriptions: lambda e: held[e.instance].write_task_subscriptions(e.tasks),
            effects.WriteTaskCancel: lambda e: held[e.instance].write_task_cancel(e.task),
            effects.WriteAskAnswer: lambda e: held[e.instance].answer_ask(
                e.id, is_error=e.is_error, body=e.body
            ),
            effects.WriteAskProgress: lambda e: held[e.instance].write_ask_progress(e.token, e.params),
            effects.WriteRetry: lambda e: held[e.instance].retry_call(e.wire),
            effects.KeepServerLog: lambda e: held[e.instance].log_message(e.level, e.params),
            effects.WriteProbe: lambda e: held[e.instance].write_probe(),
            effects.GreetInOtherEra: lambda e: held[e.instance].greet_in_other_era(),
            effects.RereadLists: lambda e: held[e.instance].reread_lists(),
            effects.GiveUpListRequest: lambda e: held[e.instance].give_up_list(e.after_s),
            effects.ReleaseInstance: self._release_instance,
        }

    def open(self, instance: InstanceId, spec: PoolSpec, era: Era, pipes: Pipes) -> None:
        """A process of this pool is being started; `era`: of its first greeting."""
        self._held[instance] = InstanceIo(
            instance,
            self._adapter(instance, spec, era),
            pipes,
            ready=self._ready,
            budget=self._budget,
            log=self._stderr_of(spec.server),
            given=_secret_values(spec),
            variables=spec.secrets,
            feed=self._feed,
            on_dirty=self._dirty.append,
            intake=self.read_budget,
        )

    def log_line(self, server: ServerName, instance: InstanceId, text: str, level: str = "info") -> None:
        """Write a line of carpool's own to the log of a server, which `carpool logs SERVER` shows."""
        self._stderr_of(server).write_line(instance, text, level=level)

    def masked(self, instance: InstanceId, text: str, spec: PoolSpec | None = None) -> str:
        """The sentence with this instance's values masked. `spec`: for an instance that is not open yet."""
        instance_io = self._held.get(instance)
        if instance_io is not None:
            return instance_io.masked(text)
        return text if spec is None else mask_of(_secret_values(spec)).redact(text)

    def greet(self, instance: InstanceId) -> None:
        """Greet the server of this instance: its process runs."""
        if (instance_io := self._held.get(instance)) is not None:
            instance_io.greet()

    def process_exited(self, instance: InstanceId) -> tuple[tuple[WireId, ...], str]:
        """Its process has ended: report undelivered calls and its last words."""
        instance_io = self._held.get(instance)
        return instance_io.process_exited() if instance_io is not None else ((), "")

    def close_stdin(self, instance: InstanceId) -> None:
        """Close its stdin, so that it ends."""
        self._held[instance].io.close_stdin()

    def flush(self) -> None:
        """Write everything since the last flush."""
        while self._dirty:  # a stdin that breaks may cause writes to other instances
            dirty = self._dirty.copy()
            self._dirty.clear()
            for instance_io in dirty:
                instance_io.flush()

    def close(self) -> None:
        """Close the logs."""
        for stderr in self._stderr.values():
            stderr.close()

    def _adapter(self, instance: InstanceId, spec: PoolSpec, first: Era) -> EraAdapter | EraDetection:
        roots = None if spec.roots is None else tuple(spec.roots)
        declared = Declared(asking=spec.asking, roots=roots, life=self._life)

        def make(era: Era) -> EraAdapter:
            if era == "stateless":
                return StatelessAdapter(instance, spec.key, self._release, declared, bridge=spec.bridge)
            max_total_s = spec.policy.max_total_s
            return HandshakeAdapter(
                instance, spec.key, self._release, declared, max_total_s=max_total_s, bridge=spec.bridge
            )

        return EraDetection(instance, make, first) if spec.era in ("auto", "newest") else make(first)

    def _release_instance(self, effect: effects.ReleaseInstance) -> None:
        instance_io = self._held.pop(effect.instance, None)
        if instance_io is not None:
            instance_io.close()

    def _stderr_of(self, server: ServerName) -> StderrLog:
        found = self._stderr.get(server)
        if found is None:
            path = Path(paths.server_log(str(self._logs), server))
            found = self._stderr[server] = StderrLog(
                self._ready,
                path,
                server=server,
                on_trouble=lambda text: log.error("%s: %s", server, text, extra={"server": server}),
            )
        return found


def _secret_values(spec: PoolSpec) -> set[str]:
    """The values that must be masked for a server: those of its environment, and of variables in its
    configuration.
    """
    own = {name: value for name, value in spec.env.items() if os.environ.get(name) != value}
    return secrets_of(own) | set(spec.secrets)
