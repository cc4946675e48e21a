"""The shim's pump: bytes from the agent's stdin to the broker's socket, whole lines back to its stdout.

Owns the two directions and what is under way in each. Invariants:

- what the broker sends reaches the agent in whole lines; a half line at its end is dropped;
- a direction reads only when it holds nothing unwritten, so memory is bounded by one read and one line;
- the agent's slowness in one direction never stops the other;
- a descriptor that nothing is wanted of is not registered: `poll` would report its hang-up for ever;
- the end of the agent's input ends nothing: the broker is told by half closing the socket, once it has
  greeted, and the answers to what the agent has sent still come. A last line without a line end gets one;
- everything that passes is noted in `KeptLines`, before it is written.

Of the broker's lines only those are looked at that are from itself (`carpool/attached`, `carpool/refused`,
`carpool/settled`, `carpool/moved`, `carpool/wanted`, `carpool/ended`); they begin like no other line.
Refuses to know how the socket was found, and MCP.
"""

import os
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

from carpool.shim.kept_lines import ENDED as _ENDED
from carpool.shim.kept_lines import FINISHED as _FINISHED
from carpool.shim.kept_lines import MOVED as _MOVED
from carpool.shim.kept_lines import OURS as _OURS
from carpool.shim.kept_lines import SETTLED as _SETTLED
from carpool.shim.kept_lines import WANTED as _WANTED
from carpool.shim.kept_lines import KeptLines

try:
    from _json import encode_basestring_ascii
except ImportError:  # another Python than CPython
    from json.encoder import py_encode_basestring_ascii as encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:  # the shim has the C half of it only
    import _socket

AGENT_GONE, BROKER_GONE, REFUSED = "agent gone", "broker gone", "refused"
FINISHED = "finished"
"""The agent has closed its input and has all its answers."""

_READ_BYTES = 65536
_LINE_END = 10
_ATTACHED = b'{"jsonrpc":"2.0","method":"carpool/attached"'
_REFUSED = b'{"jsonrpc":"2.0","method":"carpool/refused"'
_NO_ENVIRONMENT = b'"env":[]'
_NO_NOTE = b'"note":""'
_ENVIRONMENT = b'"env":['
quote = encode_basestring_ascii
"""A string as JSON, by the C half of `json`."""
_FIFO, _SOCKET = 0o010000, 0o140000


class ShimPump:
    """One attachment: from the attach line until one side is gone.

    `sock` is a connected stream socket, `hello` what is said first: the attach line and, when the agent was
    attached before, what `kept` begins with. `mark`: as in the attach line, letters and digits; what we say
    among the agent's lines has it.
    """

    def __init__(
        self,
        sock: "_socket.socket",
        hello: bytes,
        kept_lines: KeptLines,
        stdin: int = 0,
        stdout: int = 1,
        *,
        mark: str = "",
    ) -> None:
        self.refusal = ""
        self.farewell = b""
        """The broker's word that it ends, where it said one."""
        self.untaken_bytes = 0
        """The least number of the agent's last bytes that this broker has never had."""
        self._kept = kept_lines
        self._telling = f'{{"jsonrpc":"2.0","method":"carpool/environment","mark":"{mark}",'
        self._socket = sock
        self._fd = sock.fileno()
        self._stdin = stdin
        self._stdout = stdout
        self._to_broker: bytes | memoryview = hello
        """Towards the broker, not yet written."""
        self._to_agent: bytes | memoryview = b""
        """Whole lines towards the agent, not yet written."""
        self._half: list[bytes] = []
        """The beginning of a line whose end the broker has not sent yet."""
        self._greeted = False
        self._is_plain = False
        """Greeted, and no line is half read: whole lines that come now are passed on as they are."""
        self._environment = b""
        """Lines of ours that wait for the agent to finish its own."""
        self._own_bytes = 0
        """Of such lines, in all: they are not the agent's."""
        self._at_line_start = hello.endswith(b"\n")
        """Everything read from the agent ends with a line end: something of ours may follow."""
        self.agent_ended = False
        """The agent's input has come to its end."""
        self._is_half_closed = False
        self._broker_deaf = False
        self._broker_ended = False
        self._outcome = ""
        self._poll = poll()
        self._wanted: dict[int, int] = {}

    def run(self) -> str:
        """Pump until the end; says which: `FINISHED`, `AGENT_GONE`, `BROKER_GONE`, or `REFUSED` (see
        `refusal`).
        """
        os.set_blocking(self._fd, False)
        was_blocking = self._unblock_stdout()
        try:
            self._write_to_broker()
            self._update_polling()
            while not self._outcome:
                self._pass_on()
                self._update_polling()
        finally:
            if was_blocking:
                os.set_blocking(self._stdout, True)
        self._count_untaken()
        return self._outcome

    def _count_untaken(self) -> None:
        self.untaken_bytes = max(self.untaken_bytes + len(self._to_broker) - self._own_bytes, 0)
        if not self._greeted:  # it says its first line before it takes anything
            self.untaken_bytes = len(self._kept.fresh)

    def _unblock_stdout(self) -> bool:
        """Make stdout non-blocking where it is a pipe or a socket; a terminal's flag is also the shell's."""
        try:
            kind = os.fstat(self._stdout).st_mode & 0o170000
        except OSError:  # closed: the first poll says so
            return False
        if kind in {_FIFO, _SOCKET} and os.get_blocking(self._stdout):
            os.set_blocking(self._stdout, False)
            return True
        return False

    def _pass_on(self) -> None:
        """Pass on what comes, until other events may be wanted than before.

        What most reads need is in this one function. Where many shims take turns each finds little of its own
        in the processor's caches, and what it touches costs more than what it computes.
        """
        poll, kept = self._poll.poll, self._kept
        agent, broker, stdout = self._stdin, self._fd, self._stdout
        as_before = True
        while as_before:
            for fd, event in poll():
                if event != POLLIN or self._to_broker:
                    as_before = False
                    if not self._is_to_read(fd, event):
                        continue
                try:
                    data = os.read(fd, _READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if fd == agent:
                    if not data or self._environment:
                        as_before = False
                        self._agent_data_received(data)
                        continue
                    kept.agent_lines_sent(data)
                    self._at_line_start = data[-1] == _LINE_END
                # Not `in`, which asks first whether it looks for a number and takes three times as long.
                elif data and data[-1] == _LINE_END and self._is_plain and data.find(_OURS) < 0:
                    kept.broker_lines_passed(data)
                else:
                    as_before = False
                    self._broker_data_received(data)
                    continue
                try:
                    sent = os.write(broker if fd == agent else stdout, data)
                except OSError:
                    sent = 0
                if sent < len(data):
                    as_before = False
                    self._write_blocked(fd, memoryview(data)[sent:])

    def _is_to_read(self, fd: int, event: int) -> bool:
        """Of an event that is not only that there is something to read, or comes while not all may be."""
        if fd == self._stdin:
            return not self._to_broker  # what came before it in this very round may not have passed
        if fd == self._stdout:
            self._write_to_agent(event)
            return False
        if event & (POLLOUT | POLLHUP | POLLERR) and self._to_broker:
            self._write_to_broker()
        return bool(event & ~POLLOUT) and not self._to_agent

    def _write_blocked(self, fd: int, rest: memoryview) -> None:
        """Of what was read there, not all could be written."""
        if fd == self._stdin:
            self._to_broker = rest
            self._write_to_broker()
        else:
            self._to_agent = rest
            self._write_to_agent(POLLOUT)

    def _update_polling(self) -> None:
        """Register exactly what can move now; end when nothing is left to move."""
        if self._broker_ended and not self._to_agent:
            is_finished = self.agent_ended and self.farewell.startswith(_FINISHED)
            self._outcome = self._outcome or (FINISHED if is_finished else BROKER_GONE)
            return
        reads = not self.agent_ended and not self._broker_deaf and not self._to_broker
        self._set(self._stdin, POLLIN if reads else 0)
        broker = 0
        if not self._broker_ended:
            broker = (0 if self._to_agent else POLLIN) | (POLLOUT if self._to_broker else 0)
        self._set(self._fd, broker)
        # Stdout always stays registered: with nothing to write, only a reader that is gone is reported.
        self._set(self._stdout, POLLOUT if self._to_agent else 0, always=True)

    def _set(self, fd: int, mask: int, always: bool = False) -> None:
        if self._wanted.get(fd) == mask:
            return
        if mask or always:
            self._poll.register(fd, mask)
            self._wanted[fd] = mask
        elif fd in self._wanted:
            self._poll.unregister(fd)
            del self._wanted[fd]

    # --- agent to broker ---

    def _agent_data_received(self, data: bytes) -> None:
        """Pass data of the agent on to the broker, with the shim's own lines between the agent's lines."""
        if not data:
            self.agent_ended = True
            if self._at_line_start:
                self._half_close()
                return
            data = b"\n"
        self._kept.agent_lines_sent(data)
        if not self._at_line_start and (cut := data.find(b"\n") + 1):
            data = data[:cut] + self._environment + data[cut:]
            self._environment = b""
        self._at_line_start = data.endswith(b"\n")
        self._to_broker = data
        self._write_to_broker()

    def _write_to_broker(self) -> None:
        try:
            sent = os.write(self._fd, self._to_broker)
        except BlockingIOError:
            return
        except OSError:
            # It takes nothing any more; what it has said is still to be read.
            self._broker_deaf = True
            self.untaken_bytes += len(self._to_broker)
            self._to_broker = b""
            return
        self._to_broker = b"" if sent == len(self._to_broker) else memoryview(self._to_broker)[sent:]
        if self.agent_ended:
            self._half_close()

    def _half_close(self) -> None:
        """Tell the broker that nothing more comes, once it needs nothing more of this shim either."""
        if self._to_broker or self._broker_deaf or not self._greeted:
            return
        self._is_half_closed = True
        try:
            self._socket.shutdown(1)
        except OSError:
            self._broker_deaf = True

    # --- broker to agent ---

    def _broker_data_received(self, data: bytes) -> None:
        """What the broker has said, which is all, or has half lines or lines of its own in it."""
        if not data:
            self._broker_ended = True
            self._half.clear()
            return
        cut = data.rfind(b"\n") + 1
        if not cut:
            self._half.append(data)
            self._is_plain = False
            return
        whole = data if cut == len(data) else data[:cut]
        if self._half:
            self._half.append(whole)
            whole = b"".join(self._half)
            self._half.clear()
        if cut < len(data):
            self._half.append(data[cut:])
        if not self._greeted:
            whole = self._attached_received(whole)
        self._is_plain = not self._half
        whole = self._filter_control_lines(whole)
        if whole:
            self._to_agent = whole
            self._write_to_agent(POLLOUT)

    def _filter_control_lines(self, whole: bytes) -> bytes:
        """Take out what the broker says of itself; the rest is the agent's."""
        kept = self._kept
        for_agent = b""
        at = whole.find(_OURS)
        while at >= 0:
            if at and whole[at - 1] != _LINE_END:  # within a line: it is a server's text
                at = whole.find(_OURS, at + 1)
                continue
            end = whole.index(b"\n", at) + 1
            if at:
                kept.broker_lines_passed(whole[:at])
                for_agent += whole[:at]
            line, whole = whole[at:end], whole[end:]
            if line.startswith(_SETTLED):
                kept.lines_settled(line)
            elif line.startswith(_MOVED):
                kept.moved = line
            elif line.startswith(_WANTED):
                self._tell_environment(line)
            elif line.startswith(_ENDED):
                self.farewell = line
            at = whole.find(_OURS)
        if whole:
            kept.broker_lines_passed(whole)
        return for_agent + whole if for_agent else whole

    def _attached_received(self, whole: bytes) -> bytes:
        """Take the broker's first line out where it is ours, and give back the rest for the agent."""
        self._greeted = True
        cut = whole.index(b"\n") + 1
        first = whole[:cut]
        if first.startswith(_ATTACHED):
            self._kept.broker_attached(first)
            if _NO_ENVIRONMENT not in first:
                self._tell_environment(first)
            if _NO_NOTE not in first:
                _print_note(first)
        if self.agent_ended:
            self._half_close()
        if first.startswith(_ATTACHED):
            return whole[cut:]
        if first.startswith(_REFUSED):
            import json

            self.refusal = str(json.loads(first)["params"]["text"])
            self._outcome = REFUSED
            return b""
        return whole

    def _tell_environment(self, wanted: bytes) -> None:
        """Answer the broker's line that asks for variables."""
        _, asked, after = wanted.partition(_ENVIRONMENT)
        if not asked or self._is_half_closed:
            return  # the broker knows that nothing comes any more
        # Names of variables are letters, digits and `_`: taking them apart by hand spares `json`, as costly
        # to import as all of the shim.
        names = after.partition(b"]")[0].decode().replace('"', "").split(",")
        values = {name: os.environ[name] for name in names if name in os.environ}
        values = {k: v for k, v in values.items() if not any("\ud800" <= c <= "\udfff" for c in v)}
        params = ",".join(f"{quote(name)}:{quote(value)}" for name, value in values.items())
        line = f'{self._telling}"params":{{{params}}}}}\n'
        self._own_bytes += len(line.encode())
        if self._at_line_start:
            self._to_broker = bytes(self._to_broker) + line.encode()
            self._write_to_broker()
        else:
            self._environment += line.encode()

    def _write_to_agent(self, event: int) -> None:
        if not event & POLLOUT:
            self._outcome = AGENT_GONE  # nobody reads any more
            return
        try:
            sent = os.write(self._stdout, self._to_agent)
        except BlockingIOError:
            return
        except OSError:
            self._outcome = AGENT_GONE
            return
        self._to_agent = b"" if sent == len(self._to_agent) else memoryview(self._to_agent)[sent:]


def _print_note(attached: bytes) -> None:
    """Print the broker's sentence for people, if it has one. (A broker of an earlier version has none.)"""
    import json
    import sys

    if note := json.loads(attached)["params"].get("note"):
        sys.stderr.write(f"carpool: {note}\n")
