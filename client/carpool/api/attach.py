"""One connection to a broker, without its socket: what is said on it, and which lines are for us.

Owns the bytes that are to be written and the half line that has come. The broker's words about itself
(`carpool_protocol.carrier.attach`) are taken out and obeyed; whatever passes is noted in `Kept`, before it is
written. It is what `shim_pump` is for a shim, for an agent in the same process.

Refuses to know sockets, what the lines mean, and what becomes of the session after this connection.
"""

from collections.abc import Callable

from carpool.shim.kept_lines import ENDED, MOVED, OURS, SETTLED, WANTED, Kept
from carpool_protocol.carrier.attach import (
    ATTACHED_PREFIX,
    REFUSED_PREFIX,
    Attached,
    AttachProblem,
    environment_line,
    parse_attached,
    parse_wanted,
)


class Attachment:
    """From the attach line until the end of file."""

    def __init__(self, kept: Kept, first: bytes, variables: Callable[[list[str]], dict[str, str]]) -> None:
        """`first`: the attach line and whatever is said again; all of it is in `kept` already."""
        self.out = bytearray(first)
        """Not yet written."""
        self.attached: Attached | None = None
        """The broker's yes."""
        self.refusal = ""
        self.farewell = b""
        """The broker's word that it ends, where it said one."""
        self._kept = kept
        self._variables = variables
        self._half: list[bytes] = []
        self._own_bytes = 0
        """Of lines that are ours and not the agent's, in all."""
        self._greeted = False

    def say(self, line: bytes) -> None:
        """A line of the agent, with its end."""
        self._kept.sent(line)
        self.out += line

    def wrote(self, count_bytes: int) -> None:
        """So much of `out` the socket has taken."""
        del self.out[:count_bytes]

    def untaken_bytes(self) -> int:
        """So much of what the agent said last this broker has never had, at least."""
        if not self._greeted:  # it says its first line before it takes anything
            return len(self._kept.fresh)
        return max(len(self.out) - self._own_bytes, 0)

    def received(self, data: bytes) -> list[bytes]:
        """The lines that are for the agent, without their ends."""
        *whole, rest = data.split(b"\n")
        if whole and self._half:
            whole[0] = b"".join([*self._half, whole[0]])
            self._half.clear()
        if rest:
            self._half.append(rest)
        if not self._greeted and whole:
            self._greeted = True
            if self._greet(whole[0]):
                del whole[0]
        if data.find(OURS) < 0 and not (whole and whole[0].startswith(OURS)):  # most often
            if whole:
                self._kept.passed(b"\n".join([*whole, b""]))
            return whole
        for_agent: list[bytes] = []
        for line in whole:
            if line.startswith(OURS):
                self._hear(line)
            else:
                self._kept.passed(line + b"\n")
                for_agent.append(line)
        return for_agent

    def _greet(self, line: bytes) -> bool:
        if not line.startswith((ATTACHED_PREFIX, REFUSED_PREFIX)):
            return False
        found = parse_attached(line)
        if isinstance(found, AttachProblem):
            self.refusal = found.text
        else:
            self.attached = found
            self._kept.greeted(line)
            if found.env:
                self._tell(found.env)
        return True

    def _hear(self, line: bytes) -> None:
        if line.startswith(SETTLED):
            self._kept.settled(line)
        elif line.startswith(MOVED):
            self._kept.moved = line
        elif line.startswith(WANTED):
            self._tell(parse_wanted(line))
        elif line.startswith(ENDED):
            self.farewell = line

    def _tell(self, names: list[str]) -> None:
        line = environment_line(self._variables(names))
        self._own_bytes += len(line)
        self.out += line
