"""An agent of the handshake era, in this process: requests and their answers over a carrier.

Owns the ids of requests, who waits for which answer, and the questions that are being answered. Invariants:
every request ends once, with an answer, an exception or a cancel; what is not waited for any more is
cancelled (MCP 2025-11-25, basic/utilities/cancellation) and its late answer dropped; progress is told by the
task that waits, in its order.

Refuses to know what the methods mean, and the socket.
"""

from collections import deque
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any, Final

import anyio
import anyio.abc
import msgspec

from carpool import errors
from carpool.api.attach import AttachTarget
from carpool.api.callbacks import AskedError, Callbacks, Tell, settle
from carpool.api.connection import BrokerConnection
from carpool.api.results import Json, progress_of, read, read_object
from carpool.errors import CarpoolError, Lost, TimedOut
from carpool_protocol.ids import ABSENT, RawJson
from carpool_protocol.wire.jsonrpc import (
    ErrorAnswer,
    InvalidLine,
    Message,
    Notification,
    Request,
    ResultAnswer,
    decode,
    error_line,
    notification_line,
    request_line,
    result_line,
)

CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
MOST_CALLS: Final = 256
"""The number of calls that are sent at a time; others wait here, because the broker takes 64 and queues 256
more (docs/rules.md, rule 3). Calls of a callback do not wait: sent calls may wait for that callback.
"""
MOST_NEWS: Final = 1000
"""The number of progress reports of a call, or notices of a session, that wait for their callback; the
oldest go first.
"""

_answering: Final = ContextVar("_answering", default=False)
"""True in a task that answers a server's request."""
_encode = msgspec.json.encode
_MAX_ID_DIGITS: Final = 18


class _Pending:
    """A request without an answer."""

    __slots__ = ("answer", "event", "news", "was_sent")

    def __init__(self, event: anyio.Event) -> None:
        self.event = event
        self.answer: ResultAnswer | ErrorAnswer | CarpoolError | None = None
        self.news: deque[Json] | None = None
        self.was_sent = False


class AgentSession:
    """One attachment, over all brokers that serve it. It is an asynchronous context manager."""

    def __init__(
        self, place: AttachTarget, hello: bytes, callbacks: Callbacks, *, start: bool, keeps: bool = True
    ) -> None:
        self._callbacks = callbacks
        self._carrier = BrokerConnection(
            place, hello, start=start, keeps=keeps, take=self._line_received, on_end=self._session_ended
        )
        self._pending: dict[int, _Pending] = {}
        self._last = 0
        self._turns = anyio.Semaphore(MOST_CALLS, fast_acquire=True)
        self._asks: dict[RawJson, anyio.CancelScope] = {}
        self._news: deque[tuple[str, Json]] = deque(maxlen=MOST_NEWS)
        self._told = anyio.Event()
        self._new_event: type[anyio.Event] = anyio.Event
        self._tasks: anyio.abc.TaskGroup

    @property
    def id(self) -> str:
        """The id in `carpool status`; another one after all of carpool died."""
        return self._carrier.session

    async def __aenter__(self) -> "AgentSession":
        await self._carrier.open()
        self._new_event = type(
            anyio.Event()
        )  # to look for the one of this event loop takes longer than to make it
        self._tasks = anyio.create_task_group()
        try:
            await self._tasks.__aenter__()
        except BaseException:  # cancelled: nobody would close the socket
            self._carrier.close()
            raise
        self._tasks.start_soon(self._carrier.run)
        self._tasks.start_soon(self._carrier.write)
        self._tasks.start_soon(self._run_callbacks)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._carrier.close()
        self._tasks.cancel_scope.cancel()
        # Not what the body raised: it is to come out as it is, and not within a group.
        await self._tasks.__aexit__(None, None, None)

    async def request(
        self, method: str, params: Json, *, timeout_s: float | None = None, on_progress: Tell | None = None
    ) -> bytes:
        """Send a request and return its result, as JSON. Raises `CarpoolError`. `timeout_s` is the longest
        wait; without it carpool's own limits hold (docs/settings.md). `on_progress` gets each `Progress`.
        """
        pending = _Pending(self._new_event())
        with nullcontext() if timeout_s is None else anyio.move_on_after(timeout_s):
            if method in CALLS and not _answering.get():
                await self._turns.acquire()
                try:
                    await self._exchange(pending, method, params, on_progress)
                finally:
                    self._turns.release()
            else:
                await self._exchange(pending, method, params, on_progress)
        answer = pending.answer
        if isinstance(answer, ResultAnswer):
            return answer.result
        if isinstance(answer, ErrorAnswer):
            raise errors.of_error(read(answer.error))
        if answer is None:
            assert timeout_s is not None
            raise _timed_out(timeout_s, was_sent=pending.was_sent)
        raise answer

    async def _exchange(self, pending: _Pending, method: str, params: Json, on_progress: Tell | None) -> None:
        """Send the request and wait; the answer is in `pending` then."""
        if not self._carrier.has_room:
            await self._carrier.wait_for_room()
        if self._carrier.ended is not None:
            raise _copy_of_error(self._carrier.ended)
        self._last += 1
        number = self._last
        if on_progress is not None:
            pending.news = deque(maxlen=MOST_NEWS)
            params = {**params, "_meta": {**params.get("_meta", {}), "progressToken": number}}
        line = request_line(number, method, RawJson(_encode(params)))
        self._pending[number] = pending
        self._carrier.send_line(line, alone=len(self._pending) == 1)
        pending.was_sent = True
        try:
            await self._answer(pending, on_progress)
        finally:
            if self._pending.pop(number, None) is not None and method != "initialize":
                gone = _encode({"requestId": number})
                self._carrier.send_line(notification_line("notifications/cancelled", RawJson(gone)))

    def notify(self, method: str) -> None:
        """Send a notification without params."""
        self._carrier.send_line(notification_line(method, ABSENT))

    async def _answer(self, pending: _Pending, on_progress: Tell | None) -> None:
        if pending.news is None or on_progress is None:
            await pending.event.wait()
            return
        while True:
            while pending.news:
                found = progress_of(pending.news.popleft())
                if found is not None:
                    await settle(on_progress(found))
            if pending.answer is not None:
                return
            await pending.event.wait()
            if pending.answer is None:
                pending.event = self._new_event()

    # --- what comes ------------------------------------------------------------------------------------

    def _line_received(self, line: bytes) -> None:
        if not line.strip():
            return
        message: Message = decode(line)
        match message:
            case ResultAnswer() | ErrorAnswer():
                self._request_answered(message.id, message)
            case Request():
                self._tasks.start_soon(self._ask_received, message)
            case Notification():
                self._notification_received(message.method, read_object(message.params or b"{}"))
            case InvalidLine():
                if message.id is not None and message.kind == "answer":
                    text = "The answer cannot be read. The call may have been executed."
                    error = Lost(text, kind="bad_answer", delivered="maybe", whose="server")
                    self._request_answered(message.id, error)

    def _request_answered(self, raw_id: RawJson, answer: ResultAnswer | ErrorAnswer | CarpoolError) -> None:
        number = int(raw_id) if raw_id.isdigit() and len(raw_id) <= _MAX_ID_DIGITS else 0
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.answer = answer
            pending.event.set()

    def _notification_received(self, method: str, params: Json) -> None:
        if method == "notifications/progress":
            token = params.get("progressToken")
            pending = self._pending.get(token) if isinstance(token, int) else None
            if pending is not None and pending.news is not None:
                pending.news.append(params)
                pending.event.set()
        elif method == "notifications/cancelled":
            scope = self._asks.get(RawJson(_encode(params.get("requestId"))))
            if scope is not None:
                scope.cancel()
        else:
            self._news.append((method, params))
            self._told.set()

    async def _run_callbacks(self) -> None:
        """Call the callbacks of notifications, one after the other."""
        while True:
            await self._told.wait()
            self._told = anyio.Event()
            while self._news:
                await self._callbacks.hear(*self._news.popleft())

    async def _ask_received(self, ask: Request) -> None:
        _answering.set(True)
        with anyio.CancelScope() as scope:
            self._asks[ask.id] = scope
            try:
                found = await self._callbacks.answer(ask.method, read_object(ask.params or b"{}"))
                self._carrier.send_line(result_line(ask.id, RawJson(found)))
            except AskedError as error:
                self._carrier.send_line(error_line(ask.id, error.code, str(error)))
            finally:
                self._asks.pop(ask.id, None)

    def _session_ended(self, error: CarpoolError) -> None:
        for pending in self._pending.values():
            pending.answer = _lost(error)
            pending.event.set()
        self._pending.clear()
        for scope in self._asks.values():
            scope.cancel()


def _lost(error: CarpoolError) -> CarpoolError:
    """Return the error of a request that is open when the session ends."""
    if error.kind == "attach_refused":
        return _copy_of_error(error)  # nothing was taken
    text = f"{error} The call may have been executed: look at what it has changed before you repeat it."
    return Lost(text, kind="cut_off", delivered="maybe", whose=error.whose)


def _timed_out(timeout_s: float, *, was_sent: bool) -> TimedOut:
    if not was_sent:
        text = f"No turn for this call within {timeout_s:g} s. Nothing was executed. Have fewer calls open."
        return TimedOut(text, kind="waited_too_long", delivered="no", whose="caller")
    text = (
        f"No answer within {timeout_s:g} s; the call was cancelled, and may have been executed. "
        "Look at what it has changed before you repeat it."
    )
    return TimedOut(text, kind="timed_out", delivered="maybe", whose="caller")


def _copy_of_error(error: CarpoolError) -> CarpoolError:
    """Return a copy of the exception to raise once more: one that is raised twice collects tracebacks."""
    said: dict[str, Any] = {"kind": error.kind, "whose": error.whose}
    return type(error)(str(error), **said)
