"""Detect the era of a server from its answer to the first greeting.

Owns the order of the two greetings on one pipe. A server that refuses one greeting as a server of the other
era would is greeted in that era. A server that stays silent is greeted in the other era too
(`greet_in_other_era`): it may not know `server/discover`, or it may still start (npx installs). Until the
second greeting is answered, a late answer to the first one counts if it fits the first era. Carpool returns
to the first era once at most: a late `server/discover` may have locked the process to the stateless era,
which then refuses `initialize`. Source: MCP 2026-07-28, basic/lifecycle ("Backward compatibility"); behaviour
of SDKs: docs/decisions/0013.

Invariants: after `MAX_TURNS` the last refusal stands; events of a refused adapter are dropped, except
`VersionRefused`; the adapter that is current when a line is read reads it. Knows nothing of: the messages of
either era, clocks, the era cache.
"""

from collections.abc import Callable, Sequence
from typing import Final

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import Era
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.model.events import (
    EraRefused,
    GreetingFailed,
    InstanceGreeted,
    OwnEvent,
    VersionRefused,
)
from carpool_supervisor.era.adapter import EraAdapter

MAX_TURNS: Final = 2


class EraDetection:
    """The greeting of one instance whose era is unknown."""

    def __init__(self, instance: InstanceId, make: Callable[[Era], EraAdapter], first: Era) -> None:
        """`make`: returns a new adapter of the given era."""
        self._instance = instance
        self._make = make
        self._first = self._era = first
        self._turns = 0
        self._refusals: list[str] = []
        self._earlier: EraAdapter | None = None
        """The adapter that greeted first, until the server has answered it."""
        self.adapter = make(first)
        """The current adapter."""
        self.is_over = False
        """True once the server has greeted; `adapter` is then final."""

    def feed(self, lines: Sequence[bytes | OverlongLine]) -> tuple[list[OwnEvent], list[bytes]]:
        """Read lines of the server: returns the events they mean and the lines to send back at once."""
        events: list[OwnEvent] = []
        out: list[bytes] = []
        for at, line in enumerate(lines):
            found, answers = self._late_greeting(line) or self.adapter.feed([line])
            failed = next((each for each in found if isinstance(each, GreetingFailed)), None)
            if failed is not None and failed.refused:
                events += [each for each in found if isinstance(each, VersionRefused)]
                self._refused(failed, events, out)
                continue
            events += found
            out += answers
            if self._check_greeted(found):
                found, answers = self.adapter.feed(lines[at + 1 :])
                return [*events, *found], [*out, *answers]
        return events, out

    def read_on(self) -> tuple[list[OwnEvent], list[bytes]]:
        """Read the next slice of a long list. Returns the same as `feed`."""
        events, answers = self.adapter.read_on()
        self._check_greeted(events)
        return events, answers

    def list_timed_out(self, after_s: float) -> tuple[list[OwnEvent], list[bytes]]:
        """Give up the open list request. Returns the same as `feed`."""
        events, answers = self.adapter.list_timed_out(after_s)
        self._check_greeted(events)
        return events, answers

    def _check_greeted(self, events: Sequence[OwnEvent]) -> bool:
        if any(isinstance(each, InstanceGreeted) for each in events):
            self.is_over = True
            self._forget_earlier()
        return self.is_over

    def _late_greeting(self, line: bytes | OverlongLine) -> tuple[Sequence[OwnEvent], list[bytes]] | None:
        """Handle a line that answers the first greeting after the second one was sent."""
        if self.adapter.has_greeted:
            self._forget_earlier()
        earlier = self._earlier
        if earlier is None:
            return None
        events, answers = earlier.feed([line])
        if earlier.has_greeted:
            self.adapter.close()
            self.adapter, self._earlier = earlier, None
            self._era = self._first
            return events, answers
        if any(isinstance(each, GreetingFailed) for each in events):
            self._forget_earlier()
        return None

    def _forget_earlier(self) -> None:
        if self._earlier is not None:
            self._earlier.close()
            self._earlier = None

    def _refused(self, failed: GreetingFailed, events: list[OwnEvent], out: list[bytes]) -> None:
        if failed.refused not in self._refusals:
            self._refusals.append(failed.refused)
        if self._turns >= MAX_TURNS:
            events.append(GreetingFailed(self._instance, "; ".join(self._refusals)))
            return
        events.append(EraRefused(self._instance, self._era, failed.refused))
        out.append(self._switch_era())

    def greet_in_other_era(self) -> bytes:
        """Greet a silent server in the other era. Returns no line if that was done before, or if the first
        greeting is answered and only the lists are slow.
        """
        if self._turns or self.adapter.has_greeted:
            return b""
        self._earlier = self.adapter
        return self._switch_era()

    def _switch_era(self) -> bytes:
        self._turns += 1
        self._era = "handshake" if self._era == "stateless" else "stateless"
        if self.adapter is not self._earlier:
            self.adapter.close()
            self._forget_earlier()
        self.adapter = self._make(self._era)
        return self.adapter.greeting_line()
