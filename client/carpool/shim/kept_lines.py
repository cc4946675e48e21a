"""The lines that have passed through a shim and are not settled; the shim needs them when the broker dies.

Owns the raw bytes of both directions, as they were read, and how far the broker says that things are
(`carpool/settled`, docs/decisions/0019, 0030). The Python client keeps the same. Invariants:

- whatever the agent has sent is here until it is settled, to the last half line;
- nothing is decoded: a settled line is cut at its quotes, and the lines that it names are found by their
  names;
- a settled line that means a line which did not pass here settles nothing: from then on all is kept, and what
  is in no record counts as lost (`in_doubt`);
- the whole record can be handed to the shim of another version (`pack`);
- memory is bounded: by the settled lines, and where they do not come by giving up (`KEEP_BYTES`).

Refuses to know JSON, MCP and sockets. What is made of it after a death is `resume`'s.
"""

import marshal

from carpool_protocol.bootstrap.carrier_contract import name_of, names_in

OURS = b'{"jsonrpc":"2.0","method":"carpool/'
"""The beginning of every line that is from the broker itself and not for the agent."""
SETTLED = OURS + b'settled"'
ENDED = OURS + b'ended"'
FINISHED = ENDED + b',"params":{"text":""'
"""The end of a session whose agent has closed its input: everything that it asked is answered."""
MOVED = OURS + b'moved"'
WANTED = OURS + b'wanted"'

DONE_LINES = 256
"""The number of settled lines whose names are kept. A broker reports after 64 answers which ones agents
have; until then the record has them.
"""
KEEP_BYTES = 32 * 1024 * 1024
"""Beyond this many unsettled bytes nothing is kept: the next death of the broker ends the session."""


_HANDED_FORMAT = 1
"""Counts up when a record of this class changes its meaning for the shim of the next version."""


class _DoubtError(Exception):
    """The broker names a line that did not pass here."""


class KeptLines:
    """The kept lines of one session, over all brokers that serve it."""

    def __init__(self) -> None:
        self.attached = b""
        """The broker's last answer to the attach line: session, secret, epoch."""
        self.epoch: bytes | None = None
        """The epoch of the supervisor in the last settled line; None before this broker's first one."""
        self.is_full = False
        """True if there was too much to keep."""
        self.in_doubt = False
        """True if the broker and this shim do not count the same lines."""
        self.open: dict[int, bytes] = {}
        """The settled lines that still need an answer, without line ends, under numbers of the shim in their
        order.
        """
        self.made: dict[int, bytes] = {}
        """The settled lines that make the session what it is. A line can be in both."""
        self.held: list[tuple[int, bytes]] = []
        """The lines of the broker that still count, with their names."""
        self.fresh = bytearray()
        self.heard = bytearray()
        """The bytes after the last settled line: from the agent, and (whole lines only) from the broker. No
        list of reads, because each piece would keep the memory of a longer one.
        """
        self.moved = b""
        """The workspace of the session, as the broker told it last; empty where the session began."""
        self.asks: list[str] = []
        """The asks of earlier brokers."""
        self.stateful = b""
        """The servers at which the session may have state, separated by blanks."""
        self.has_told = False
        """True if this broker has sent more than its first line."""
        self.done: dict[int, None] = {}
        """The names of the agent's last settled lines: a line with such a name uses an id again."""
        self._names: dict[int, int] = {}
        """The names of the lines in `open` and `made`, under their numbers."""
        self._last = 0
        """The number of the last settled line."""
        self._size_bytes = 0

    def pack(self) -> bytes:
        """Return all of it for `restore`, which another process may call."""
        return marshal.dumps((_HANDED_FORMAT, vars(self)))

    def restore(self, packed: bytes) -> None:
        """Take over what another process has packed. Raises `ValueError` where its format is another one."""
        number, record = marshal.loads(packed)  # noqa: S302 - from ourselves, before exec
        if number != _HANDED_FORMAT or record.keys() != vars(self).keys():
            raise ValueError("the session is kept in the format of another version of carpool")
        vars(self).update(record, fresh=bytearray(record["fresh"]), heard=bytearray(record["heard"]))

    def agent_lines_sent(self, data: bytes) -> None:
        """The agent has sent this."""
        if not self.is_full:
            self.fresh += data
            self._size_bytes += len(data)
            if self._size_bytes > KEEP_BYTES:
                self._stop_keeping()

    def broker_lines_passed(self, lines: bytes) -> None:
        """The broker has sent these lines for the agent."""
        self.has_told = True
        if not self.is_full:
            self.heard += lines
            self._size_bytes += len(lines)
            if self._size_bytes > KEEP_BYTES:
                self._stop_keeping()

    def broker_attached(self, attached: bytes) -> None:
        """The broker has sent its first line."""
        self.attached = attached
        self.epoch = None
        self.has_told = False
        if b'"secret":"' not in attached or b'"secret":""' in attached:
            self._stop_keeping()  # an old broker: it settles nothing

    def lines_settled(self, line: bytes) -> None:
        """The broker has told which lines are settled."""
        self.has_told = True
        if self.is_full:
            return
        # ,"params":["EPOCH","READ TIMES","OPEN","KEPT","BOTH","HELD","STATEFUL"]}
        part = line[len(SETTLED) :].split(b'"')
        self.epoch = part[3]
        self.stateful = part[15]
        if self.in_doubt:
            return
        read, open_, made, both, held = [names_in(part[place]) for place in (5, 7, 9, 11, 13)]
        try:
            self._settle(read, open_, made, both, held)
        except _DoubtError:
            self.in_doubt = True
            return
        self.heard.clear()
        self._size_bytes = len(self.fresh) + sum(len(line) for _, line in self.held)
        for lines_of in (self.open, self.made):
            self._size_bytes += sum(map(len, lines_of.values()))

    def _settle(
        self, read: list[int], open_: list[int], made: list[int], both: list[int], held: list[int]
    ) -> None:
        """Settle all that the broker named, or nothing."""
        old = self.open | self.made
        places: dict[int, list[int]] = {}
        """Numbers of the named lines, by their names."""
        for number in sorted(old):
            places.setdefault(self._names[number], []).append(number)
        passed, end = self._find(read, {*open_, *made, *both}, old, places) if read else ([], 0)
        names: dict[int, int] = {}
        found: list[dict[int, bytes]] = []
        for named in (open_, made, both):
            found.append({})
            for name in named:
                if not places.get(name):
                    raise _DoubtError
                number = places[name].pop(0)
                found[-1][number] = old[number]
                names[number] = name
        self.held = self._still_held(held)
        for number, name in (*self._names.items(), *enumerate(passed, self._last + 1)):
            if number not in names:
                self.is_done_with(name)
        self.open, self.made, self._names = found[0] | found[2], found[1] | found[2], names
        del self.fresh[:end]
        self._last += len(passed)

    def _find(
        self, read: list[int], meant: set[int], lines: dict[int, bytes], places: dict[int, list[int]]
    ) -> tuple[list[int], int]:
        """Find the line that was read last, and on the way the `meant` ones, which go into `lines` and
        `places`. Returns the names up to there, and where it ends.
        """
        last, times = read
        at = 0
        names: list[int] = []
        with memoryview(self.fresh) as text:
            while (end := self.fresh.find(b"\n", at)) >= 0:
                with text[at:end] as line:
                    name = name_of(line)
                    names.append(name)
                    if name in meant:
                        lines[self._last + len(names)] = bytes(line)
                        places.setdefault(name, []).append(self._last + len(names))
                at = end + 1
                times -= name == last
                if not times:
                    return names, at
        raise _DoubtError

    def _still_held(self, names: list[int]) -> list[tuple[int, bytes]]:
        if not names:
            return []
        lines = self.held + [(name_of(line), line) for line in bytes(self.heard).split(b"\n")]
        found: list[tuple[int, bytes]] = []
        for name in names:
            each = next((each for each in lines if each[0] == name), None)
            if each is None:
                raise _DoubtError
            lines.remove(each)
            found.append(each)
        return found

    def is_done_with(self, name: int) -> None:
        """True if the agent's line of this name needs nothing more."""
        self.done.pop(name, None)
        self.done[name] = None
        if len(self.done) > DONE_LINES:
            del self.done[next(iter(self.done))]

    def begin_next_broker(self, made: list[bytes], open_: list[bytes], fresh: bytes, asks: list[str]) -> None:
        """Begin with another broker, to which all is sent anew. Numbers begin again."""
        count = len(made)
        self.made = dict(enumerate(made, 1))
        self.open = dict(enumerate(open_, count + 1))
        self._names = {number: name_of(line) for number, line in (self.made | self.open).items()}
        self._last = count + len(open_)
        self.fresh = bytearray(fresh)
        self.heard.clear()
        self.held = []
        self.asks = asks
        self.in_doubt = False
        self.has_told = False

    def _stop_keeping(self) -> None:
        self.is_full = True
        self.fresh, self.heard = bytearray(), bytearray()
        self.open, self.made, self.held, self._names = {}, {}, [], {}
