"""The queue of one pool: bounded in calls and bytes, fair between sessions.

Sessions take turns, each with its own calls in order: a session with 1,000 calls waiting delays another
session's single call by one turn. When the queue is full, the session that uses most of the exhausted bound
loses its last call; between equals, the session that reached this amount last. Finding it costs the same with
a thousand sessions as with one, because a full queue is when it matters. If one session's call may go and
another's may not (leases), `sessions` gives the turns and `pop_for` takes one. Sessions of one principal (one
bearer token, whatever sessions it opens) share one turn, which rotates among them. So do the parts of one
session (`ids.whole_of`: stateless agents without a token).

Invariants (`check`): counts and bytes equal the calls in the queue; no session without a call is listed.
Knows nothing of: instances, deadlines, the content of calls.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, KeysView, Mapping
from itertools import zip_longest

from carpool_protocol.ids import CallId, SessionId, whole_of

_Line = deque[tuple[CallId, int]]


class _Share:
    """The turn of one principal, or of one session without a principal."""

    __slots__ = ("calls", "parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: OrderedDict[SessionId, _Line] = OrderedDict()
        """The calls of each of its sessions and their parts, next turn first; mostly there is one."""
        self.calls = 0
        self.size_bytes = 0


class FairQueue:
    """Queued calls, by session."""

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.calls = 0
        self.size_bytes = 0
        self._turns: OrderedDict[SessionId, _Share] = OrderedDict()
        """By principal or whole session, next turn first."""
        self._owners: dict[SessionId, SessionId] = {}
        """For each session or part with queued calls, its key in `_turns`."""
        self._with: defaultdict[int, dict[SessionId, None]] = defaultdict(dict)
        """The whole sessions with this many queued calls, the latest to reach that number last."""
        self._most = 0
        """The largest number of queued calls of one session."""

    def __bool__(self) -> bool:
        return self.calls > 0

    def __len__(self) -> int:
        return self.calls

    def add(self, session: SessionId, call: CallId, size_bytes: int, principal: str = "") -> list[CallId]:
        """Queue a call. Returns the calls that were dropped to make room."""
        if size_bytes > self.max_bytes:
            return [call]
        self._line(session, principal).append((call, size_bytes))
        self._count(self._owners[session], 1, size_bytes)
        out: list[CallId] = []
        while self.calls > self.max_calls:
            out.append(self._drop_last(next(reversed(self._with[self._most])), len))
        while self.size_bytes > self.max_bytes:
            largest = max(reversed(self._turns), key=lambda whole: self._turns[whole].size_bytes)
            out.append(self._drop_last(largest, _size_of))
        return out

    def put_back(self, session: SessionId, call: CallId, size_bytes: int, principal: str = "") -> None:
        """Put a call that was placed but never delivered back at the head of its session's calls."""
        self._line(session, principal).appendleft((call, size_bytes))
        self._count(self._owners[session], 1, size_bytes)

    def pop(self) -> CallId:
        """Take the next call; its session goes to the end of the turns. The queue must not be empty."""
        return self.pop_for(next(iter(next(iter(self._turns.values())).parts)))

    def pop_for(self, session: SessionId) -> CallId:
        """Take the next call of this session, which uses its turn. It must have a queued call."""
        whole = self._owners[session]
        parts = self._turns[whole].parts
        line = parts[session]
        call, size_bytes = line.popleft()
        self._count(whole, -1, -size_bytes)
        if line:
            parts.move_to_end(session)
        else:
            del parts[session], self._owners[session]
        if parts:
            self._turns.move_to_end(whole)
        else:
            del self._turns[whole]
        return call

    def sessions(self) -> list[SessionId]:
        """The sessions with queued calls, next turn first."""
        rounds = zip_longest(*(each.parts for each in self._turns.values()))
        return [session for each in rounds for session in each if session is not None]

    def has_session(self, session: SessionId) -> bool:
        """True if this session has a queued call."""
        return session in self._owners

    def has_turn(self, session: SessionId, principal: str) -> bool:
        """True if a queued call would use the same turn as a call of this session."""
        return turn_key(session, principal) in self._turns

    def next_sessions(self) -> Iterator[SessionId]:
        """The session whose call goes next, for each turn, next turn first."""
        return map(self.next_session, self._turns)

    def turns(self) -> KeysView[SessionId]:
        """The principals and whole sessions with queued calls, next turn first."""
        return self._turns.keys()

    def last_turn(self) -> SessionId:
        """The principal or whole session whose turn comes last. The queue must not be empty."""
        return next(reversed(self._turns))

    def next_session(self, turn: SessionId) -> SessionId:
        """The session whose call goes next of this turn, which must have a queued call."""
        return next(iter(self._turns[turn].parts))

    def turn_of(self, session: SessionId) -> SessionId:
        """The principal or session whose turn the next call of this session uses. It must have a
        queued call.
        """
        return self._owners[session]

    def head(self, session: SessionId) -> CallId:
        """The call that `pop_for` would take."""
        return self._turns[self._owners[session]].parts[session][0][0]

    def for_session(self, session: SessionId) -> list[CallId]:
        """The queued calls of this session, in order."""
        whole = self._owners.get(session)
        return [call for call, _ in self._turns[whole].parts[session]] if whole is not None else []

    def count_ahead(self, session: SessionId, call: CallId) -> int:
        """The number of calls that go before this one if the turns stay as they are."""
        whole = self._owners[session]
        of_parts = {part: len(line) for part, line in self._turns[whole].parts.items()}
        among_parts = _before(of_parts, session, self.for_session(session).index(call))
        of_wholes = {other: each.calls for other, each in self._turns.items()}
        return _before(of_wholes, whole, among_parts)

    def remove(self, session: SessionId, call: CallId) -> None:
        """Remove a call from anywhere in the queue (cancelled, or waited too long)."""
        whole = self._owners[session]
        line = self._turns[whole].parts[session]
        for place, (waiting, size_bytes) in enumerate(line):
            if waiting == call:
                del line[place]
                self._count(whole, -1, -size_bytes)
                break
        self._tidy(session, line)

    def clear(self) -> list[CallId]:
        """Empty the queue. Returns the calls that were in it, in turn order."""
        out: list[CallId] = []
        while self.calls:
            out.append(self.pop())
        return out

    def check(self) -> None:
        """Assert every invariant."""
        assert self.calls == sum(each.calls for each in self._turns.values())
        assert self.size_bytes == sum(each.size_bytes for each in self._turns.values())
        for whole, each in self._turns.items():
            assert each.parts, "a session without calls is in the turns"
            assert each.calls == sum(map(len, each.parts.values()))
            assert each.size_bytes == sum(map(_size_of, each.parts.values()))
            assert whole in self._with[each.calls]
            for session, line in each.parts.items():
                assert line, "a session without calls is in the turns"
                assert self._owners[session] == whole
        assert len(self._owners) == sum(len(each.parts) for each in self._turns.values())
        assert sum(map(len, self._with.values())) == len(self._turns)
        assert self._most == max((each.calls for each in self._turns.values()), default=0)

    def _line(self, session: SessionId, principal: str) -> _Line:
        whole = self._owners.get(session)
        if whole is None:
            whole = self._owners[session] = turn_key(session, principal)
        found = self._turns.get(whole)
        if found is None:
            found = self._turns[whole] = _Share()
        line = found.parts.get(session)
        if line is None:
            line = found.parts[session] = deque()
        return line

    def _count(self, whole: SessionId, calls: int, size_bytes: int) -> None:
        """Count one call more (`calls` is 1) or less (-1) for this session."""
        self.calls += calls
        self.size_bytes += size_bytes
        found = self._turns[whole]
        found.size_bytes += size_bytes
        if found.calls:
            del self._with[found.calls][whole]
        found.calls += calls
        if found.calls:
            self._with[found.calls][whole] = None
        if found.calls > self._most or not self._with[self._most]:
            self._most = found.calls  # it alone had the most, and now has one less

    def _drop_last(self, whole: SessionId, weight: Callable[[_Line], int]) -> CallId:
        """Drop the last call of this session; among its parts, of the one that weighs most."""
        parts = self._turns[whole].parts
        session = max(reversed(parts), key=lambda each: weight(parts[each]))
        line = parts[session]
        call, size_bytes = line.pop()
        self._count(whole, -1, -size_bytes)
        self._tidy(session, line)
        return call

    def _tidy(self, session: SessionId, line: _Line) -> None:
        whole = self._owners[session]
        parts = self._turns[whole].parts
        if not line:
            del parts[session], self._owners[session]
        if not parts:
            del self._turns[whole]


def turn_key(session: SessionId, principal: str) -> SessionId:
    """The principal or whole session whose turns calls of this session use."""
    return SessionId(f"@{principal}") if principal else whole_of(session)


def _size_of(line: _Line) -> int:
    return sum(size for _, size in line)


def _before(lengths: Mapping[SessionId, int], mine: SessionId, place: int) -> int:
    """The number of calls that go before the call at this place of its own line, if all take turns in this
    order.
    """
    ahead, own_turn = place, False
    for other, length in lengths.items():
        if other == mine:
            own_turn = True
        else:
            ahead += min(length, place if own_turn else place + 1)
    return ahead
