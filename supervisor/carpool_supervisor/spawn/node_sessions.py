"""Sessions at other nodes, in the place of processes: asks the node's process for them and reports their
ends.

Owns the connection to the node's process of this machine (`carpool.cluster`), and the pipes of a new session
until they are handed over. The other ends of the pipes go to that process, which passes bytes on as a
server's process would: so all that reads and writes pipes of instances needs to know nothing of nodes. Each
instance for which `open` returned is reported exactly once as opened and later as ended, or as failed. If the
node's process dies, all sessions have ended.

On the socket are lines of JSON. From here: `{"open": instance, "node": …, "server": …}` with three
descriptors, and `{"end": instance}`. From there: `{"opened": instance, "node": …, "session": number}`,
`{"failed": instance, "text": …, "is_final": …}` and `{"ended": instance, "text": …, "is_final": …}`, which
says that another session is refused, too, until somebody changes something.

Knows nothing of: nodes, links, MCP, data on the pipes.
"""

import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from carpool_protocol.ids import InstanceId
from carpool_protocol.link.messages import NodeTarget
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.spawn.descriptor_sender import DescriptorSender
from carpool_supervisor.spawn.request import AtLimitError, Pipes, SpawnRefusedError, make_pipes

NOT_RUNNING: Final = (
    "the node's process of this machine does not run: `cluster` is not configured, or see "
    "`carpool logs --daemon`"
)
_GONE: Final = "the node's process of this machine ended"
_READ_BYTES: Final = 1 << 16


class _Answer(msgspec.Struct):
    opened: int = 0
    failed: int = 0
    ended: int = 0
    text: str = ""
    node: str = ""
    session: int = 0
    is_final: bool = False


_answers = msgspec.json.Decoder(_Answer)


class NodeSessionTable:
    """Which instances wait for a session or have one. Each is reported exactly once as opened and later as
    ended, or as failed. Callbacks as of `NodeSessionStarter`.
    """

    def __init__(
        self,
        on_opened: Callable[[InstanceId, str, int], None],
        on_failed: Callable[[InstanceId, str, bool], None],
        on_ended: Callable[[InstanceId, str, bool], None],
    ) -> None:
        self._on_opened = on_opened
        self._on_failed = on_failed
        self._on_ended = on_ended
        self._asked: set[InstanceId] = set()
        self._open: set[InstanceId] = set()

    def __contains__(self, instance: object) -> bool:
        return instance in self._asked or instance in self._open

    def asked(self, instance: InstanceId) -> None:
        """The node's process is asked for a session for this instance."""
        self._asked.add(instance)

    def answered(self, line: bytes) -> None:
        """The node's process has sent this line. One that cannot be read is of another version: the end of
        file follows.
        """
        try:
            answer = _answers.decode(line)
        except msgspec.MsgspecError:
            return
        opened, failed, ended = map(InstanceId, (answer.opened, answer.failed, answer.ended))
        if opened in self._asked:
            self._asked.discard(opened)
            self._open.add(opened)
            self._on_opened(opened, answer.node, answer.session)
        elif failed in self._asked:
            self._asked.discard(failed)
            self._on_failed(failed, answer.text, answer.is_final)
        elif ended in self._open:
            self._open.discard(ended)
            self._on_ended(ended, answer.text, answer.is_final)

    def lost(self) -> None:
        """The node's process is gone, and with it all sessions."""
        asked, self._asked = self._asked, set()
        running, self._open = self._open, set()
        for instance in sorted(asked):
            self._on_failed(instance, _GONE, False)
        for instance in sorted(running):
            self._on_ended(instance, _GONE, False)


class NodeSessionStarter:
    """Opens and ends sessions at other nodes. Callbacks run in the `ReadySet`'s task."""

    def __init__(
        self,
        ready: ReadySet,
        path: str,
        *,
        on_opened: Callable[[InstanceId, str, int], None],
        on_failed: Callable[[InstanceId, str, bool], None],
        on_ended: Callable[[InstanceId, str, bool], None],
    ) -> None:
        """`path`: the socket of the node's process. `on_opened` gets the node, and the session's number; the
        others the reason, and `is_final`.
        """
        self._ready = ready
        self._path = path
        self._table = NodeSessionTable(on_opened, on_failed, on_ended)
        self._sock: socket.socket | None = None
        self._sender: DescriptorSender | None = None
        """None while there is no connection."""
        self._inbox = b""

    def open(self, instance: InstanceId, target: NodeTarget) -> Pipes:
        """Ask for a session. Raises `SpawnRefusedError`; this instance is then never reported."""
        sender = self._sender or self._connect()
        theirs, pipes = make_pipes()
        self._table.asked(instance)
        said = {"open": instance, "node": target.node, "server": target.server}
        sender.send(msgspec.json.encode(said) + b"\n", theirs)
        return pipes

    def holds(self, instance: InstanceId) -> bool:
        """True if this instance is a session that is open or is being opened."""
        return instance in self._table

    def end(self, instance: InstanceId) -> None:
        """End a session at once. Its end is reported."""
        if self.holds(instance) and self._sender is not None:
            self._sender.send(msgspec.json.encode({"end": instance}) + b"\n")

    def close(self) -> None:
        """End all sessions. Their ends are reported."""
        if self._sock is not None:
            self._lost()

    def _connect(self) -> DescriptorSender:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise AtLimitError(f"no socket could be made ({os.strerror(error.errno or 0)})") from None
        sock.setblocking(False)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise SpawnRefusedError(NOT_RUNNING) from None
        self._sock, self._sender = sock, DescriptorSender(self._ready, sock)
        self._ready.add(sock.fileno(), self._readable)
        return self._sender

    def _readable(self) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._table.answered(line)
        if not data:
            self._lost()

    def _lost(self) -> None:
        assert self._sock is not None
        assert self._sender is not None
        self._sender.discard()
        self._ready.remove(self._sock.fileno())
        self._sock.close()
        self._sock = self._sender = None
        self._inbox = b""
        self._table.lost()
