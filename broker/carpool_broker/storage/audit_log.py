"""The audit log: one line of JSON for each call that has ended, and for each act of an operator.

It is `audit.jsonl` beside the logs. Owns the file and its form (docs/audit.md): private, rotated by size,
bounded, readable for all who may read logs. Lines are collected and written before the answers of the same
burst leave, so that a broker that is killed has logged every call that it answered. A file that was moved
or removed is made again.

Invariant: no failure of the disk reaches a caller or delays a call. Lines that could not be written are
counted and reported once in the log, in `status`, and in the file when it can be written again. Knows nothing
of: when a call has ended, and what may be logged about it (`audit`).
"""

import logging
import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import Struct, field, structs

from carpool_broker.core.model.effects import WriteAudit
from carpool_protocol.faults.fault_answers import TOOLS_CALL
from carpool_protocol.files import private_files
from carpool_protocol.ids import CALLS_OF_A_LIFE, SessionId, call_name
from carpool_protocol.link.messages import CallOrigin
from carpool_protocol.runtime.wallclock import wallclock
from carpool_protocol.wire.result_repair import is_failed_result

log = logging.getLogger("carpool.broker")

FILES: Final = 4
"""Number of files with the current one: `audit.jsonl`, `audit.jsonl.1`, ..."""
GATHERED_BYTES: Final = 256 * 1024
"""Answers of this size together are flushed before the burst ends."""
_MAX_SPELLED: Final = 1024


class OperatorAct(Struct, frozen=True, kw_only=True):
    """An act of an operator: the keys of its line between `at` and `run` (docs/audit.md)."""

    act: str
    """The verb."""
    targets: list[str]
    """The calls, sessions, servers or tools that it names; `*`: every server."""
    for_session: str
    session: str
    """The operator's own session."""
    pid: int
    uid: int | None
    """The user at the other end of the socket; None if the system does not tell."""
    via: str
    principal: str
    """The name of the operator's token; empty at the socket."""
    outcome: str = "unknown"
    failed: list[str] = field(default_factory=list)
    """Targets at which it failed."""
    times: int = 1
    """Greater than 1: the line stands for this number of refused acts within a minute."""


_json: Final = msgspec.json.Encoder().encode


class AuditLog:
    """The file of one broker."""

    def __init__(
        self,
        path: str,
        *,
        run: str,
        max_bytes: int,
        whereabouts: Callable[[SessionId], str],
        now_text: Callable[[], str] = wallclock,
    ) -> None:
        """`run`: the same for all brokers of one launcher; other launchers give out the same call ids.

        `max_bytes`: all files together. `whereabouts`: returns the workspace of an open session.
        """
        self.path = path
        self.max_bytes = max_bytes
        self.problem = ""
        """Why the file cannot be written; empty: it can."""
        self.missed = 0
        """Number of calls that are not in the file."""
        self.run = run
        self._whereabouts = whereabouts
        self._now_text = now_text
        self._is_on = False
        self._fd = -1
        self._size_bytes = 0
        self._lines: list[str] = []
        self._answers_bytes = 0
        self._at = ""
        """Time of this burst."""
        self._session_members: dict[SessionId, tuple[CallOrigin, str]] = {}
        self._what: dict[tuple[str, str, str], str] = {}
        self._missed_to_report = 0
        """Calls missed since the file last reported them."""
        self._may_try = True

    def set_enabled(self, *, on: bool) -> None:
        """Turn the log on or off. When it is turned on, the file is opened, so that a problem shows at
        once.
        """
        self._is_on = on
        if not on:
            self.close()
        elif self._fd < 0:
            try:
                self._open()
            except OSError as error:
                self._write_failed(error)

    def add(self, ended: WriteAudit) -> None:
        """Add the line of a call."""
        # Every call passes here, so a dictionary lookup replaces a function call where possible.
        body, call, outcome, duration_s = ended.body, ended.call, ended.outcome, ended.duration_s
        if outcome == "ok" and ended.method == TOOLS_CALL and is_failed_result(body):
            outcome = "tool_error"
        name = f"c{call}" if call < CALLS_OF_A_LIFE else call_name(call)
        known = self._session_members.get(ended.who.session)
        caller_text = (
            known[1] if known is not None and known[0] is ended.who else self._session_member(ended.who)
        )
        what = self._what.get((ended.method, ended.server, ended.target)) or self._spelled(ended)
        if ended.node:
            what += f",{_inner({'node': ended.node})}"
        duration = f"{duration_s:.6f}" if duration_s >= 0 else "null"
        self._lines.append(
            f'{{"at":"{self._at or self._begin()}","id":"{name}",{caller_text},{what},"outcome":"{outcome}",'
            f'"delivered":"{ended.delivered}","duration_s":{duration},"bytes_in":{ended.bytes_in},'
            f'"bytes_out":{len(body)},"trace":"{ended.trace}","run":"{self.run}"}}\n'
        )
        self._answers_bytes += len(body)
        if self._answers_bytes > GATHERED_BYTES:
            self.flush()

    def add_act(self, act: OperatorAct) -> None:
        """Add the line of an operator's act, if the log is on."""
        if self._is_on:
            said = structs.asdict(act)
            if act.times == 1:
                del said["times"]
            members = _inner(said)
            self._lines.append(f'{{"at":"{self._at or self._begin()}",{members},"run":"{self.run}"}}\n')

    def _begin(self) -> str:
        """Begin a burst."""
        self._at = self._now_text()
        return self._at

    def flush(self) -> None:
        """Write the lines of the burst, or of a part of it."""
        if not self._lines:
            return
        lines, self._lines, self._at, self._answers_bytes = self._lines, [], "", 0
        if not self._may_try:
            self._count_missed(len(lines))
            return
        if self._missed_to_report:
            lines.insert(
                0, f'{{"at":"{self._now_text()}","missed":{self._missed_to_report},"run":"{self.run}"}}\n'
            )
        self._write(lines)

    def retry(self) -> None:
        """Try again after a failure, and close a file that was moved. Called periodically."""
        self._may_try = True
        if self._fd < 0:
            return
        try:
            there = os.stat(self.path, follow_symlinks=False)
            if (there.st_ino, there.st_dev) == ((own := os.fstat(self._fd)).st_ino, own.st_dev):
                return
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- a line ------------------------------------------------------------------------------------------

    def _session_member(self, caller_text: CallOrigin) -> str:
        members: dict[str, str | int] = {
            "session": caller_text.session,
            "agent": caller_text.agent,
            "pid": caller_text.pid,
            "via": caller_text.carrier,
            "principal": caller_text.principal,
            "profile": caller_text.profile,
            "workspace": self._whereabouts(caller_text.session),
        }
        text = _inner(members)
        if len(self._session_members) >= _MAX_SPELLED:
            self._session_members.clear()
        self._session_members[caller_text.session] = (caller_text, text)
        return text

    def _spelled(self, ended: WriteAudit) -> str:
        if len(self._what) >= _MAX_SPELLED:
            self._what.clear()
        text = _inner({"method": ended.method, "server": ended.server, "name": ended.target})
        self._what[ended.method, ended.server, ended.target] = text
        return text

    # --- the file ----------------------------------------------------------------------------------------

    def _write(self, lines: list[str]) -> None:
        block = "".join(lines).encode()
        lost = len(lines)
        try:
            if self._fd < 0:
                self._open()
            elif self._size_bytes and self._size_bytes + len(block) > self.max_bytes // FILES:
                self._rotate()
            written = os.write(self._fd, block)
            self._size_bytes += written
            if written == len(block):
                self._write_succeeded()
                return
            lost = block[written:].count(b"\n")
            os.write(self._fd, b"\n")  # so that the next line begins on its own
            self._write_failed(None)
        except OSError as error:
            self._write_failed(error)
        self._count_missed(min(lost, len(lines) - bool(self._missed_to_report)))

    def _write_failed(self, error: OSError | None) -> None:
        """Note a failure. `None`: the disk took only a part."""
        self._may_try = False
        if not self.problem:
            reason = "the disk is full" if error is None else error.strerror or "no reason given"
            self.problem = f"{self.path} cannot be written ({reason})"
            log.error("the audit log misses calls: %s; calls continue", self.problem)

    def _count_missed(self, count: int) -> None:
        self.missed += count
        self._missed_to_report += count

    def _write_succeeded(self) -> None:
        if self._missed_to_report:
            log.warning("the audit log is written again; it misses %d calls", self._missed_to_report)
        self._missed_to_report, self.problem = 0, ""

    def _open(self) -> None:
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        self._fd = private_files.open_to_append(self.path)
        self._size_bytes = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self.close()
        names = [self.path, *(f"{self.path}.{at}" for at in range(1, FILES))]
        for newer, older in reversed(list(pairwise(names))):
            if os.path.lexists(newer):
                os.replace(newer, older)
        self._open()


def _inner(members: Mapping[str, object]) -> str:
    """The members of a JSON object, without the braces."""
    return _json({key: _clean(value) for key, value in members.items()})[1:-1].decode()


def _clean(value: object) -> object:
    """Texts with `?` in place of half surrogate pairs, which no file can hold."""
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
