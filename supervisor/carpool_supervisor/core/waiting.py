"""The waiting line of one pool: bounded in calls and bytes, fair between sessions.

Sessions take turns, each with its own calls in order: a session with 1,000 calls waiting
delays another session's single call by one turn. When the line is full, the last call of the
session that takes up most of what is short gives way; between equals, the latest comer. Where a
session's call may go and another's may not (leases), `sessions` tells the turns and `pop_for` takes one.

Invariants (`check`): counts and bytes equal what is in line; no session without a call is listed.
Knows nothing of: instances, deadlines, what a call asks for.
"""

from collections import OrderedDict, deque

from carpool_protocol.ids import CallId, SessionId


class Waiting:
    """Calls in line, by session."""

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.calls = 0
        self.size_bytes = 0
        self._turns: OrderedDict[SessionId, deque[tuple[CallId, int]]] = OrderedDict()

    def __bool__(self) -> bool:
        return self.calls > 0

    def __len__(self) -> int:
        return self.calls

    def add(self, session: SessionId, call: CallId, size_bytes: int) -> list[CallId]:
        """Put a call in line. Returns the calls that had to leave it for that."""
        if size_bytes > self.max_bytes:
            return [call]
        self._line(session).append((call, size_bytes))
        self.calls += 1
        self.size_bytes += size_bytes
        out: list[CallId] = []
        while self.calls > self.max_calls:
            out.append(self._drop_last(max(reversed(self._turns), key=self._calls_of)))
        while self.size_bytes > self.max_bytes:
            out.append(self._drop_last(max(reversed(self._turns), key=self._bytes_of)))
        return out

    def put_back(self, session: SessionId, call: CallId, size_bytes: int) -> None:
        """A call that was placed but never delivered goes to the head of its session's line."""
        self._line(session).appendleft((call, size_bytes))
        self.calls += 1
        self.size_bytes += size_bytes

    def pop(self) -> CallId:
        """The next call; its session goes to the end of the turns. The line must not be empty."""
        return self.pop_for(next(iter(self._turns)))

    def pop_for(self, session: SessionId) -> CallId:
        """The next call of this session, whose turn it is then. It must have one in line."""
        line = self._turns[session]
        call, size_bytes = line.popleft()
        if line:
            self._turns.move_to_end(session)
        else:
            del self._turns[session]
        self.calls -= 1
        self.size_bytes -= size_bytes
        return call

    def sessions(self) -> list[SessionId]:
        """Who has calls in line, next turn first."""
        return list(self._turns)

    def has(self, session: SessionId) -> bool:
        """Whether this session has a call in line."""
        return session in self._turns

    def head(self, session: SessionId) -> CallId:
        """The call that `pop_for` would take."""
        return self._turns[session][0][0]

    def of(self, session: SessionId) -> list[CallId]:
        """The calls of this session, in order."""
        return [call for call, _ in self._turns.get(session, ())]

    def ahead(self, session: SessionId, call: CallId) -> int:
        """How many calls go before this one if the turns stay as they are."""
        place = self.of(session).index(call)
        ahead, own_turn = place, False
        for other, line in self._turns.items():
            if other == session:
                own_turn = True
            else:
                ahead += min(len(line), place if own_turn else place + 1)
        return ahead

    def remove(self, session: SessionId, call: CallId) -> None:
        """Take a call out of the middle of the line (it was cancelled or waited too long)."""
        line = self._turns[session]
        for place, (waiting, size_bytes) in enumerate(line):
            if waiting == call:
                del line[place]
                self.calls -= 1
                self.size_bytes -= size_bytes
                break
        if not line:
            del self._turns[session]

    def clear(self) -> list[CallId]:
        """Empty the line; the calls that were in it, in turn order."""
        out: list[CallId] = []
        while self.calls:
            out.append(self.pop())
        return out

    def check(self) -> None:
        """Assert every invariant."""
        assert self.calls == sum(len(line) for line in self._turns.values())
        assert self.size_bytes == sum(size for line in self._turns.values() for _, size in line)
        assert all(self._turns.values()), "a session without calls is in the turns"

    def _line(self, session: SessionId) -> deque[tuple[CallId, int]]:
        line = self._turns.get(session)
        if line is None:
            line = self._turns[session] = deque()
        return line

    def _calls_of(self, session: SessionId) -> int:
        return len(self._turns[session])

    def _bytes_of(self, session: SessionId) -> int:
        return sum(size for _, size in self._turns[session])

    def _drop_last(self, session: SessionId) -> CallId:
        line = self._turns[session]
        call, size_bytes = line.pop()
        if not line:
            del self._turns[session]
        self.calls -= 1
        self.size_bytes -= size_bytes
        return call
