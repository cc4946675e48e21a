"""What has passed through a shim and is not settled: what it needs when the broker dies.

Owns the raw bytes of both directions, as they were read, and how far the broker says that things are
(`carpool/settled`, docs/decisions/0019). Invariants:

- whatever the agent has sent is here until it is settled, to the last half line;
- nothing is decoded: a settled line is cut at its quotes;
- memory is bounded: by the settled lines, and where they do not come by giving up (`KEEP_BYTES`).

Refuses to know JSON, MCP and sockets. What is made of it after a death is `shim_return`'s.
"""

OURS = b'{"jsonrpc":"2.0","method":"carpool/'
"""How every line starts that is from the broker itself and not for the agent."""
SETTLED = OURS + b'settled"'
ENDED = OURS + b'ended"'
MOVED = OURS + b'moved"'
WANTED = OURS + b'wanted"'

KEEP_BYTES = 32 * 1024 * 1024
"""More than this unsettled, and nothing is kept: the next death of the broker is the end of the session."""


class Kept:
    """One session, over all brokers that serve it."""

    def __init__(self) -> None:
        self.attached = b""
        """What the broker said last to the attach line: session, secret, epoch."""
        self.epoch: bytes | None = None
        """The supervisor's, as said by the last settled line; None before the first one of this broker."""
        self.is_full = False
        """There was too much to keep."""
        self.up = 0
        """So many lines of the agent are settled: what `fresh` begins with is the next one."""
        self.open: dict[int, bytes] = {}
        """Settled lines that are not done with, without their line ends."""
        self.made: dict[int, bytes] = {}
        """Settled lines that make the session what it is. One may be both."""
        self.down = 0
        self.held: dict[int, bytes] = {}
        """Lines of the broker that count still."""
        self.fresh = bytearray()
        self.heard = bytearray()
        """What came after the last settled line: of the agent, and (whole lines only) of the broker. No list
        of what was read: each piece would hold on to the room that was made for a longer one.
        """
        self.moved = b""
        """In which workspace the session is, as the broker said it last; empty: where it began."""
        self.asks: list[str] = []
        """Questions of earlier brokers."""
        self.stateful = b""
        """Servers at which the session may have state, in blanks."""
        self.has_told = False
        """This broker has said more than its first line."""
        self._size_bytes = 0

    def sent(self, data: bytes) -> None:
        """The agent has said this."""
        if not self.is_full:
            self.fresh += data
            self._size_bytes += len(data)
            if self._size_bytes > KEEP_BYTES:
                self._give_up()

    def passed(self, lines: bytes) -> None:
        """Lines of the broker that are for the agent."""
        self.has_told = True
        if not self.is_full:
            self.heard += lines
            self._size_bytes += len(lines)
            if self._size_bytes > KEEP_BYTES:
                self._give_up()

    def greeted(self, attached: bytes) -> None:
        """The broker's first line."""
        self.attached = attached
        self.epoch = None
        self.has_told = False
        if b'"secret":"' not in attached or b'"secret":""' in attached:
            self._give_up()  # an old broker: it settles nothing

    def settled(self, line: bytes) -> None:
        """The broker says how far things are."""
        self.has_told = True
        if self.is_full:
            return
        # ,"params":["EPOCH",UP,"OPEN","KEPT",DOWN,"HELD","STATEFUL"]}
        part = line[len(SETTLED) :].split(b'"')
        self.epoch = part[3]
        up, down = int(part[4].strip(b",")), int(part[8].strip(b","))
        self._settle_up(up, _numbers(part[5]), _numbers(part[7]))
        self.held = self._listed(_numbers(part[9]), self.held, self.heard, self.down) if part[9] else {}
        self.heard.clear()
        self.stateful = part[11] if len(part) > 11 else b""
        self.down = down
        self._size_bytes = len(self.fresh)
        for lines_of in (self.open, self.made, self.held):
            self._size_bytes += sum(map(len, lines_of.values()))

    def _settle_up(self, up: int, open_: list[int], made: list[int]) -> None:
        old = self.open | self.made
        self.open = self._listed(open_, old, self.fresh, self.up)
        self.made = self._listed(made, old, self.fresh, self.up)
        at = 0
        for _ in range(up - self.up):
            at = self.fresh.find(b"\n", at) + 1
        del self.fresh[:at]
        self.up = up

    def _listed(
        self, numbers: list[int], old: dict[int, bytes], text: bytearray, before: int
    ) -> dict[int, bytes]:
        """These lines: old ones, and of those in `text`, which begins behind line `before`."""
        lines = text.split(b"\n") if numbers and max(numbers) > before else []
        found = {n: old[n] for n in numbers if n in old}
        return found | {n: bytes(lines[n - before - 1]) for n in numbers if before < n < before + len(lines)}

    def begin_again(self, made: list[bytes], open_: list[bytes], fresh: bytes, asks: list[str]) -> None:
        """All of it is said anew, to another broker. Numbers begin with that."""
        count = len(made)
        self.made = dict(enumerate(made, 1))
        self.open = dict(enumerate(open_, count + 1))
        self.up = count + len(open_)
        self.fresh = bytearray(fresh)
        self.heard.clear()
        self.held = {}
        self.down = 0
        self.asks = asks
        self.has_told = False

    def _give_up(self) -> None:
        self.is_full = True
        self.fresh, self.heard = bytearray(), bytearray()
        self.open, self.made, self.held = {}, {}, {}


def _numbers(text: bytes) -> list[int]:
    return [int(number) for number in text.split()]
