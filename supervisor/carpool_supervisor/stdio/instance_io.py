"""Pipes, era adapter and stderr log of each instance, and the table of all instances.

Owns the order of events when an instance ends: all its output is read before the core hears of the exit, and
the lines that it never received are named by wire id, so that "not delivered" is exact. The output is read in
turns, and all that have ended take turns too: a full pipe may hold half a million lines. Owns the choice of
the era adapter, the instances that have output to flush, and the log file of each server's stderr.

Longer than most modules, because each effect and each event of an instance has its line here, and both
classes share them. Knows nothing of: the link, the spawner, why an instance runs, which call belongs to which
agent.
"""

import logging
import os
import secrets
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
    ResourceUpdated,
    ServerAnswered,
    ServerLineRejected,
    ServerLogged,
    ServerProgressed,
    StdinBlocked,
    StdinBroken,
    StdoutClosed,
    StdoutPaused,
    StdoutReceived,
)
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.era.adapter import EraAdapter
from carpool_supervisor.era.era_detection import EraDetection
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.server_requests import Declared
from carpool_supervisor.era.stateless import StatelessAdapter
from carpool_supervisor.spawn.request import Pipes
from carpool_supervisor.stdio.child_io import ChildIo, PipeBudget
from carpool_supervisor.stdio.flood_limit import (
    FEW_LINES,
    LINES_S,
    FloodLimit,
    SlowReaders,
)
from carpool_supervisor.stdio.read_budget import ReadBudget
from carpool_supervisor.stdio.stderr_log import LINE_BYTES, TAIL_LINE_CHARS, StderrLog

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
_MANY_LINES: Final = f"more than {LINES_S} lines a second that no call has asked for"
_ENDLESS: Final = "a line that is too long to be read, and goes on with it"
PROGRESS_S = 1.0
"""If a server floods, the progress of each of its calls passes once in this time: timeouts need it."""
TOKEN_BYTES = 8
"""The random part of the progress tokens of an instance."""
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
        feed: Callable[[Iterable[OwnEvent]], None],
        on_dirty: Callable[["InstanceIo"], None],
        intake: ReadBudget,
        slow_readers: SlowReaders,
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
        self._last_call = 0
        """The wire id of the last call that was written."""
        self._open: set[WireId] = set()
        """The calls that were written and are neither answered nor cancelled: their answers are asked for."""
        self._list_out = self._adapter.open_list_request
        self._dirty = False
        self._unflushed = 0
        self._left_out = ""
        """The sentence in the log on entries of its lists that are over a limit."""
        self._unread = 0
        """Invalid lines on stdout that are in the log."""
        self._read_budget = intake
        self._slow_readers = slow_readers
        self._flood_limit = FloodLimit()
        self._was_slowed = False
        self._counted_bytes = 0
        """The bytes of the unfinished line that are counted already, because it is over the cap."""
        self._has_adapter_failed = False
        self._progressed: dict[WireId, float] = {}
        """When the progress of each call was passed on last, while the server floods."""
        self._left_out_messages = 0
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
            now=self._flood_limit.now,
        )
        intake.add(self.io)
        log.attach(instance, pipes.stderr_fd, self._mask)

    def masked(self, text: str) -> str:
        """The sentence with the values that this instance was given masked."""
        return self._mask.redact(text)

    def greet(self) -> None:
        """Greet the server: its process runs."""
        self._write_requests(self._adapter.greeting_line())

    def greet_in_other_era(self) -> None:
        """Greet a silent server in the other era."""
        if self._detection is not None:
            self._write_requests(self._detection.greet_in_other_era())
            self._adapter = self._detection.adapter

    def write_call(self, wire_id: WireId, call: Call) -> None:
        """Write a call."""
        self._open.add(wire_id)
        self._write(self._adapter.call_line(wire_id, call), wire_id)
        if self.io.is_stdin_broken:
            self._feed((StdinBroken(self.instance, (wire_id,)),))

    def write_cancel(self, wire_id: WireId, reason: str) -> None:
        """Write a cancel."""
        self._open.discard(wire_id)
        self._write(self._adapter.cancel_line(wire_id, reason))
        self._feed(self._adapter.take_events())

    def answer_ask(self, ask: RawJson, *, is_error: bool, body: RawJson) -> None:
        """Answer an ask of the server."""
        self._write_answer(self._adapter.ask_answer_line(ask, is_error=is_error, body=body))
        self._feed(self._adapter.take_events())

    def retry_call(self, wire_id: WireId) -> None:
        """Send a call again."""
        self._write(self._adapter.retry_line(wire_id))

    def write_ask_progress(self, token: RawJson, params: RawJson) -> None:
        """Report progress of an ask to the server. It is dropped while the pipe is full: agents write it, and
        it must neither pile up nor count as an answer that the server does not read.
        """
        if self.io.takes_lines and not self.io.is_stdin_full:
            self._write(self._adapter.ask_progress_line(token, params))

    def write_level(self, level: str) -> None:
        """Write a log level."""
        self._write_requests(self._adapter.level_line(level))

    def write_subscriptions(self, add: Iterable[str], drop: Iterable[str]) -> None:
        """Write new subscriptions and the end of others."""
        self._write_requests(self._adapter.subscriptions_line(add, drop))

    def write_task_subscriptions(self, tasks: Sequence[str]) -> None:
        """Subscribe to the progress of these tasks."""
        self._write_requests(self._adapter.task_subscriptions_line(tasks))

    def write_task_cancel(self, task: str) -> None:
        """Cancel a task whose agent will not return for it."""
        self._write_requests(self._adapter.cancel_task_line(task))

    def log_message(self, level: str, params: bytes) -> None:
        """Write a log message for operators to the log of the server's stderr."""
        own = _LEVELS.get(level, "error")
        text = params[: 4 * (LINE_BYTES + 1)].decode("utf-8", "replace")  # the log cuts it in any case
        self._log.write_line(self.instance, text, "log", own)

    def write_probe(self, number: int) -> None:
        """Write a probe."""
        self._write_requests(self._adapter.probe_line(number))

    def reread_lists(self, *, is_calm: bool) -> None:
        """Read the server's lists again."""
        self._write_requests(self._adapter.relist_line(is_calm=is_calm))
        self._report_list_request()

    def give_up_list(self, after_s: float) -> None:
        """Give up the open list request."""
        self._read_more((self._detection or self._adapter).list_timed_out(after_s))

    def flush(self) -> None:
        """Write everything since the last flush as one burst."""
        self._dirty = False
        self.io.flush()

    def drain(self) -> bool:
        """The process has ended: read one turn of the rest of its output. Returns True if there is more."""
        has_more = self.io.drain(_may_answer)
        return self._log.drain(self.instance) or has_more

    def exit_report(self) -> tuple[tuple[WireId, ...], str]:
        """The undelivered calls and the last words of the ended process, when its output is read."""
        if self._left_out_messages:
            text = f"{self._left_out_messages} log and progress messages of its floods were left out"
            self._log.write_line(self.instance, text, level="warning")
        if count := self.io.left_out_lines:
            text = f"{count} of the last lines that it wrote were not read: they answer no call"
            self._log.write_line(self.instance, text, level="warning")
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
        self._slow_readers.remove(self.io)
        self._log.detach(self.instance)

    def _write(self, line: bytes, wire_id: WireId = WireId(0)) -> None:  # noqa: B008 - an int
        if not line:
            return
        self._written.append(wire_id)
        if wire_id:
            self._last_call = wire_id
        self.io.write(line)
        self._line_written()

    def _write_requests(self, lines: bytes) -> None:
        """Write requests of carpool's own. The server may answer each of them, at any rate."""
        self._flood_limit.allow_answers(lines.count(b"\n"))
        self._write(lines)

    def _write_answer(self, line: bytes) -> None:
        """Write a line that the server has caused. It is dropped if the server has closed its stdin."""
        if line and self.io.takes_lines:
            self._written.append(WireId(0))
            is_behind = self.io.write_answer(line)
            self._line_written()
            if is_behind:
                text = "does not read the answers to its own requests: it is not read until it has read them"
                self._feed((ServerLineRejected(self.instance, text),))

    def _line_written(self) -> None:
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
        """Bytes of an unfinished line are a sign of life too (rule 8). Over the cap they are a flood. Until
        then their time is counted when the line ends, unless a call waits for it.
        """
        if self._read_budget.line_grew(io):
            self._feed((StdoutReceived(self.instance),))
        if io.is_overlong:
            size_bytes, self._counted_bytes = io.line_bytes - self._counted_bytes, io.line_bytes
            self._flood_limit.forfeit()
            began = self._flood_limit.now() - io.take_line_s()
            self._limit_flood(0, size_bytes, began, _ENDLESS)

    def _paused(self, paused: bool) -> None:
        self._feed((StdoutPaused(self.instance, paused),))
        if not paused and self.io.has_unread:  # the server wrote while it was not read
            self._feed((StdoutReceived(self.instance),))

    def _lines_received(self, lines: list[bytes | OverlongLine]) -> None:
        began = self._flood_limit.now()
        try:
            if self._detection is None:
                events, answers = self._adapter.feed(lines)
            else:
                events, answers = self._detect(self._detection, lines)
        except Exception as error:  # noqa: BLE001  # whatever these lines do to the adapter, other servers go on
            events, answers = self._adapter_failed(error)
        for line in answers:
            self._write_answer(line)
        answered = {event.wire: event for event in events if type(event) is ServerAnswered}
        asked_for = self._open.intersection(answered)
        self._open -= asked_for
        if len(asked_for) == len(events) == len(lines):
            self._feed([self._masked_event(event) for event in events])
            if len(lines) > FEW_LINES:
                self._limit_flood(len(lines), 0, began)
        else:
            asked_for_bytes = sum(len(answered[wire].body) for wire in asked_for)
            self._others_received(lines, events, len(answers), asked_for_bytes, began)
        self._report_list_request()
        self._plan_to_read_on()

    def _others_received(
        self,
        lines: Sequence[bytes | OverlongLine],
        events: Sequence[OwnEvent],
        answer_count: int,
        asked_for_bytes: int,
        began: float,
    ) -> None:
        """Pass on messages that are not just answers to open calls, and count them."""
        # A line may be an array of messages.
        messages = max(len(lines), len(events), answer_count)
        if self._flood_limit.is_used_up:
            kept = [event for event in events if not self._may_leave_out(event, began)]
            messages -= len(events) - len(kept)
            events = kept
        events = _without_repeated_updates(events)
        for event in events:
            if type(event) is AnswerUnreadable:
                self._open.discard(event.wire)
        if any(type(event) is ServerLineRejected for event in events):
            self._log_unread(lines)
        self._feed([self._masked_event(event) for event in events] or (StdoutReceived(self.instance),))
        counted_bytes, self._counted_bytes = self._counted_bytes, 0
        size_bytes = sum(map(_size_of, lines)) - asked_for_bytes - counted_bytes
        self._limit_flood(messages, max(size_bytes, 0), began - self.io.take_line_s())

    def _may_leave_out(self, event: OwnEvent, now: float) -> bool:
        """True for each log message of a server that floods, and for progress of a call that has had some."""
        if type(event) is ServerProgressed:
            if now - self._progressed.get(event.wire, -PROGRESS_S) >= PROGRESS_S:
                if len(self._progressed) >= REMEMBERED_LINES:
                    self._progressed.clear()
                self._progressed[event.wire] = now
                return False
        elif type(event) is not ServerLogged:
            return False
        self._left_out_messages += 1
        return True

    def _limit_flood(self, messages: int, size_bytes: int, began: float, flood: str = _MANY_LINES) -> None:
        """Count these messages with these bytes, and read slowly from now on if there are too many. `began`:
        when their reading began; `flood`: what the log says.
        """
        limit = self._flood_limit
        now = limit.now()
        floods = self._slow_readers.count_floods(self.io, now) if limit.is_used_up else 1
        pause_s = limit.pause_after(messages, self._last_call, size_bytes, now - began, floods)
        if pause_s:
            self._slow_readers.pause(self.io, pause_s)
        if limit.is_used_up and not self._was_slowed:
            self._was_slowed = True
            effect = "it is read slowly, and its log messages and most of its progress are left out meanwhile"
            text = f"it writes {flood}: {effect}"
            self._log.write_line(self.instance, text, level="warning")
        elif not limit.is_used_up and self._progressed:
            self._progressed.clear()

    def _plan_to_read_on(self) -> None:
        if self._adapter.is_reading and not self._read_on_soon:
            self._read_on_soon = True
            self._ready.call_soon(self._read_on)

    def _read_on(self) -> None:
        """Read the next slice of a long list, unless the instance has ended meanwhile."""
        self._read_on_soon = False
        if not self._adapter.is_reading:
            return
        try:
            read = (self._detection or self._adapter).read_on()
        except Exception as error:  # noqa: BLE001  # as for lines
            read = self._adapter_failed(error)
        self._read_more(read)
        if not self._has_adapter_failed:
            self._plan_to_read_on()

    def _adapter_failed(self, error: Exception) -> tuple[list[OwnEvent], list[bytes]]:
        """The adapter has raised, which is a bug in carpool that only this server's words have met. End this
        instance as if it had closed its stdout: the state of its conversation is not known any more.
        """
        if self._has_adapter_failed:
            return [], []
        self._has_adapter_failed = True
        log.error("a bug in carpool: what instance %s wrote cannot be handled", self.instance, exc_info=error)
        text = "carpool cannot handle what it wrote, which is a bug in carpool: this instance is ended"
        self._log.write_line(self.instance, text, level="error")
        return [StdoutClosed(self.instance)], []

    def _read_more(self, read: tuple[list[OwnEvent], list[bytes]]) -> None:
        """Go on with the lists: write these lines, and pass these events on."""
        if self._detection is not None and self._detection.is_over:
            self._detection = None
        events, answers = read
        for line in answers:
            self._write_answer(line)
        if events:
            self._feed([self._masked_event(event) for event in events])
        if events or answers:
            self._report_list_request()

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


def _may_answer(line: bytes | OverlongLine) -> bool:
    """True for each line that may answer a call: it has a version and an id."""
    return isinstance(line, OverlongLine) or (b'"id"' in line and b'"jsonrpc"' in line)


def _without_repeated_updates(events: Sequence[OwnEvent]) -> Sequence[OwnEvent]:
    """Of several notifications of one resource leave the last: each goes to every subscribed agent."""
    last = {event.uri: number for number, event in enumerate(events) if type(event) is ResourceUpdated}
    if not last or len(events) == 1:
        return events
    return [
        event
        for number, event in enumerate(events)
        if type(event) is not ResourceUpdated or last[event.uri] == number
    ]


def _size_of(line: bytes | OverlongLine) -> int:
    return line.size_bytes if isinstance(line, OverlongLine) else len(line)


log = logging.getLogger("carpool.supervisor")

Feed = Callable[[Iterable[events.OwnEvent]], None]
OnDrained = Callable[[tuple[WireId, ...], str], None]
"""Called when the output of an ended process is read, with its undelivered calls and its last words."""


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
        self.slow_readers = SlowReaders(ready)
        """Those that write too much."""
        self._held: dict[InstanceId, InstanceIo] = {}
        self._stderr: dict[ServerName, StderrLog] = {}
        self._dirty: list[InstanceIo] = []
        self._draining: dict[InstanceId, OnDrained] = {}
        """Ended processes whose output is still being read; the first one has the next turn."""
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
            effects.WriteProbe: lambda e: held[e.instance].write_probe(e.number),
            effects.GreetInOtherEra: lambda e: held[e.instance].greet_in_other_era(),
            effects.RereadLists: lambda e: held[e.instance].reread_lists(is_calm=e.is_calm),
            effects.GiveUpListRequest: lambda e: held[e.instance].give_up_list(e.after_s),
            effects.ReleaseInstance: self._release_instance,
        }

    def open(
        self, instance: InstanceId, spec: PoolSpec, era: Era, pipes: Pipes, version: str = VERSIONS[0]
    ) -> None:
        """A process of this pool is being started; `era`: of its first greeting; `version`: the one that its
        first `initialize` offers.
        """
        self._held[instance] = InstanceIo(
            instance,
            self._adapter(instance, spec, era, version),
            pipes,
            ready=self._ready,
            budget=self._budget,
            log=self._stderr_of(spec.server),
            given=_secret_values(spec),
            feed=self._feed,
            on_dirty=self._dirty.append,
            intake=self.read_budget,
            slow_readers=self.slow_readers,
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

    def has_unread_stdin(self, instance: InstanceId) -> bool:
        """True if its process has not read all that was written to its stdin."""
        instance_io = self._held.get(instance)
        return instance_io is not None and instance_io.io.has_unread_stdin()

    def process_exited(self, instance: InstanceId, on_drained: OnDrained) -> None:
        """Its process has ended: read the rest of its output, at once or in turns, and then report."""
        instance_io = self._held.get(instance)
        if instance_io is None:
            on_drained((), "")
        elif instance_io.drain():
            if not self._draining:
                self._ready.call_soon(self._drain_on)
            self._draining[instance] = on_drained
        else:
            on_drained(*instance_io.exit_report())

    def _drain_on(self) -> None:
        """Read one turn of one ended process, and plan the next turn."""
        instance = next(iter(self._draining), None)
        if instance is None:
            return
        on_drained, instance_io = self._draining.pop(instance), self._held[instance]
        if has_more := instance_io.drain():
            self._draining[instance] = on_drained
        if self._draining:
            self._ready.call_soon(self._drain_on)
        if not has_more:
            on_drained(*instance_io.exit_report())

    def close_stdin(self, instance: InstanceId) -> None:
        """Close its stdin, so that it ends. Does nothing if it could not be started: that is told next."""
        if (instance_io := self._held.get(instance)) is not None:
            instance_io.io.close_stdin()

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

    def _adapter(
        self, instance: InstanceId, spec: PoolSpec, first: Era, version: str
    ) -> EraAdapter | EraDetection:
        roots = None if spec.roots is None else tuple(spec.roots)
        declared = Declared(asking=spec.asking, roots=roots, life=self._life)
        secret = secrets.token_hex(TOKEN_BYTES)

        def make(era: Era) -> EraAdapter:
            if era == "stateless":
                return StatelessAdapter(
                    instance, spec.key, self._release, declared, bridge=spec.bridge, secret=secret
                )
            return HandshakeAdapter(
                instance,
                spec.key,
                self._release,
                declared,
                max_total_s=spec.policy.max_total_s,
                bridge=spec.bridge,
                secret=secret,
                version=version,
            )

        return EraDetection(instance, make, first) if spec.era in ("auto", "newest") else make(first)

    def _release_instance(self, effect: effects.ReleaseInstance) -> None:
        instance_io = self._held.pop(effect.instance, None)
        self._draining.pop(effect.instance, None)
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
