"""Notifications of a server of the stateless era: one `subscriptions/listen` for all sessions.

Owns the filter (announced lists, subscribed resources and tasks) and the listen in force. A listen cannot be
changed. A new one is opened, and the old one is cancelled once the new one is acknowledged, so nothing is
missed. Only one of the two is in force at a time, so nothing is heard twice. A listen names all that is
subscribed to. So the next one is opened when the last one is acknowledged, however much has changed
meanwhile: a slow server has one to read, not one for each change. If the server ends a listen it is opened
again, and anything may have changed in between. Source: MCP 2026-07-28, basic/utilities/subscriptions.

Invariants: notifications that were not requested are dropped; a server that keeps ending listens gets a few
new ones at once, and afterwards one with each sign of life. Knows nothing of: lists, subscribed sessions.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from carpool_protocol.ids import ABSENT, InstanceId, RawJson
from carpool_protocol.link.messages import Feature
from carpool_protocol.wire.content import text_of, value_of
from carpool_protocol.wire.json_scan import key_text
from carpool_protocol.wire.jsonrpc import ErrorAnswer, ResultAnswer, notification_line
from carpool_protocol.wire.stateless import PREFIX
from carpool_supervisor.core.model.events import ServerLineRejected
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.envelope import RequestEnvelope
from carpool_supervisor.era.greeting import read_error

SUBSCRIPTION: Final = PREFIX + "subscriptionId"
MAX_RENEWALS: Final = 3
"""The number of times in a row that an ended listen is opened again at once."""
_OURS: Final = b'"carpool-listen-'


class ServerSubscriptions:
    """The subscriptions of one instance."""

    def __init__(self, instance: InstanceId, envelope: RequestEnvelope, decoded: Decoded) -> None:
        self._instance = instance
        self._envelope = envelope
        self._decoded = decoded
        self._features: frozenset[Feature] = frozenset()
        self.watched: set[str] = set()
        """The URIs of subscribed resources."""
        self._tasks: set[str] = set()
        self._open: list[RawJson] = []
        """The ids of open listens, newest last: one, or more while one is being replaced."""
        self._in_force = ABSENT
        self._renewals = 0
        self._gap = False
        """True if notifications may have been missed, because the server ended the listen in force."""
        self._refused = False
        self._is_outdated = False
        """True if more has changed since the newest listen, which is not acknowledged yet."""

    def begin(self, features: Iterable[Feature]) -> bytes:
        """Listen to everything that the server can announce."""
        self._features = frozenset(features)
        return self._listen()

    def subscriptions_line(self, add: Iterable[str], drop: Iterable[str]) -> bytes:
        """The line for other subscribed resources."""
        before = set(self.watched)
        self.watched.difference_update(drop)
        self.watched.update(add)
        if self.watched == before:
            return b""
        self._refused = False
        return self._renew()

    def task_subscriptions_line(self, tasks: Iterable[str]) -> bytes:
        """The line for other subscribed tasks."""
        before, self._tasks = self._tasks, set(tasks)
        if self._tasks == before:
            return b""
        self._refused = False
        return self._renew()

    def _renew(self) -> bytes:
        """Listen to what is wanted now, or later if the server has not acknowledged the newest listen."""
        self._is_outdated = self._is_unacknowledged()
        return b"" if self._is_outdated else self._listen()

    def _is_unacknowledged(self) -> bool:
        return bool(self._open) and self._open[-1] != self._in_force

    def _listen(self) -> bytes:
        self._is_outdated = False
        wanted: dict[str, object] = {
            f"{family}ListChanged": True
            for family in ("tools", "prompts", "resources")
            if f"{family}.listChanged" in self._features
        }
        if self.watched:
            wanted["resourceSubscriptions"] = sorted(self.watched)
        if self._tasks:
            wanted["taskIds"] = sorted(self._tasks)
        if not wanted:
            ended, self._open = self._open, []
            self._in_force = ABSENT
            return b"".join(map(_cancelled, ended))
        request = self._envelope.next_id("listen")
        self._open.append(request)
        params = b'{"notifications":%b}' % msgspec.json.encode(wanted)
        return self._envelope.request_line(
            request, "subscriptions/listen", RawJson(params), tasks=bool(self._tasks)
        )

    def acknowledged(self, params: RawJson) -> bool:
        """Handle `notifications/subscriptions/acknowledged`. Returns True if something may have been missed
        before.
        """
        request = _subscription(params)
        if request not in self._open or request == self._in_force:
            return False
        self._in_force = request
        at = self._open.index(request)
        older, self._open = self._open[:at], self._open[at:]
        self._decoded.lines += map(_cancelled, older)
        self._renew_outdated()
        gap, self._gap = self._gap, False
        return gap

    def is_in_force(self, params: RawJson) -> bool:
        """True if a notification came on the listen in force."""
        return self._in_force != ABSENT and _subscription(params) == self._in_force

    def listen_answered(self, message: ResultAnswer | ErrorAnswer) -> bool:
        """Handle an answer whose id is no number. Returns True if it answers a listen."""
        if not message.id.startswith(_OURS):
            return False
        if isinstance(message, ErrorAnswer) and message.id in self._open:
            error = read_error(message.error)
            text = f"refused subscriptions/listen: {error.message[:200]} ({error.code})"
            self._decoded.events.append(ServerLineRejected(self._instance, text))
            self._refused = True
        self.listen_ended(message.id)
        return True

    def listen_ended(self, request: RawJson) -> None:
        """The server has ended this listen. A repeated end, or one of an older listen, changes nothing."""
        if request not in self._open:
            return
        self._open.remove(request)
        if request == self._in_force:
            self._in_force = ABSENT
            self._gap = True
        if not self._open and not self._refused and self._renewals < MAX_RENEWALS:
            self._renewals += 1
            self._decoded.add_line(self._listen())
        self._renew_outdated()

    def _renew_outdated(self) -> None:
        if self._is_outdated and not self._is_unacknowledged():
            self._decoded.add_line(self._listen())

    def server_alive(self) -> None:
        """The server is alive: open again a listen that it ended too often."""
        if self._open:
            self._renewals = 0
        elif self._gap and not self._refused:
            self._decoded.add_line(self._listen())


def _subscription(params: RawJson) -> RawJson:
    """The listen that a notification came on, by carpool's spelling of its id."""
    raw = value_of(value_of(params, "_meta") or b"", SUBSCRIPTION) or b""
    text = key_text(raw) if raw[:1] == b'"' else None
    return ABSENT if text is None else RawJson(b'"%b"' % text.encode())


def cancelled_listen(params: RawJson) -> RawJson:
    """The request that a `notifications/cancelled` of the server names."""
    text = text_of(params, "requestId")
    return ABSENT if text is None else RawJson(b'"%b"' % text.encode())


def _cancelled(request: RawJson) -> bytes:
    return notification_line("notifications/cancelled", RawJson(b'{"requestId":%b}' % request))
