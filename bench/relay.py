"""The least any broker must cost: agents on a Unix stream socket share one server over its pipes.

Every line is decoded once, its id is replaced, and it is passed on; what one round of readiness brought
for one reader is one write. No sessions, no names, no supervision, no limits, no honest end of anything:
a yardstick for the bench, not a product. Run: `python relay.py SOCKET COMMAND [ARGS…]`.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys

import msgspec

ATTACHED = b'{"jsonrpc":"2.0","method":"carpool/attached","params":{"version":1,"session":"s1","env":[]}}\n'


NONE = msgspec.Raw()


class RelayLine(msgspec.Struct):
    """One JSON-RPC message, its payload undecoded."""

    id: msgspec.Raw = NONE
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = NONE
    error: msgspec.Raw = NONE


class RelayPeer:
    """One reader and writer: an agent, or the server."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        self.rest, self.out = [b""], list[bytes]()
        self.sending, self.stalled = memoryview(b""), False
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)


decode = msgspec.json.Decoder(RelayLine).decode
selector = selectors.DefaultSelector()
owed: dict[int, tuple[RelayPeer, msgspec.Raw]] = {}
wire_id = 0


def lines_of(peer: RelayPeer) -> list[bytes] | None:
    """The whole lines of one read; None at its end."""
    try:
        data = os.read(peer.read_fd, 1 << 16)
    except ConnectionError:
        data = b""
    if not data:
        return None
    if b"\n" not in data:
        peer.rest.append(data)
        return []
    *lines, rest = b"".join([*peer.rest, data]).split(b"\n")
    peer.rest = [rest]
    return lines


def from_agent(agent: RelayPeer, server: RelayPeer, lines: list[bytes]) -> None:
    global wire_id
    for line in lines:
        message = decode(line)
        if message.id != NONE:
            wire_id += 1
            owed[wire_id] = agent, message.id
            head = b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":' % (wire_id, message.method.encode())
            server.out.append(head + bytes(message.params) + b"}\n")
        elif message.method == "carpool/attach":
            agent.out.append(ATTACHED)


def from_server(lines: list[bytes]) -> set[RelayPeer]:
    touched = set()
    for line in lines:
        message = decode(line)
        agent, raw_id = owed.pop(int(bytes(message.id)))
        key, body = (b"result", message.result) if message.error == NONE else (b"error", message.error)
        agent.out.append(b'{"jsonrpc":"2.0","id":%b,"%b":%b}\n' % (raw_id, key, body))
        touched.add(agent)
    return touched


def flush(peer: RelayPeer) -> None:
    """One write for all that waits; what does not fit waits until the peer reads."""
    if not peer.sending:
        peer.sending, peer.out = memoryview(b"".join(peer.out)), []
    try:
        peer.sending = peer.sending[os.write(peer.write_fd, peer.sending) :]
    except BlockingIOError:
        pass
    except ConnectionError:
        peer.sending, peer.out = memoryview(b""), []
    stalled = bool(peer.sending or peer.out)
    if stalled == peer.stalled:
        return
    peer.stalled = stalled
    if peer.read_fd == peer.write_fd:
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if stalled else 0)
        selector.modify(peer.read_fd, mask, peer)
    elif stalled:
        selector.register(peer.write_fd, selectors.EVENT_WRITE, peer)
    else:
        selector.unregister(peer.write_fd)


def accept(listener: socket.socket) -> None:
    fd = listener.accept()[0].detach()
    selector.register(fd, selectors.EVENT_READ, RelayPeer(fd, fd))


def hang_up(agent: RelayPeer) -> None:
    selector.unregister(agent.read_fd)
    os.close(agent.read_fd)
    agent.write_fd = -1


def turn(server: RelayPeer, listener: socket.socket) -> bool:
    """One round: take in all that is readable, then one write for each reader. False: the server ended."""
    ready, writable = set[RelayPeer](), set[RelayPeer]()
    for key, events in selector.select():
        peer = key.data
        if peer is None:
            accept(listener)
            continue
        if events & selectors.EVENT_WRITE:
            writable.add(peer)
        if not events & selectors.EVENT_READ:
            continue
        lines = lines_of(peer)
        if peer is server:
            if lines is None:
                return False
            ready |= from_server(lines)
        elif lines is None:
            hang_up(peer)
        else:
            from_agent(peer, server, lines)
            ready |= {server, peer}
    for peer in ready | writable:
        if peer.write_fd < 0:
            peer.out = []  # the agent has gone
        elif peer in writable or (peer.out and not peer.stalled):
            flush(peer)
    return True


def main(path: str, argv: list[str]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(512)
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert child.stdin is not None
    assert child.stdout is not None
    server = RelayPeer(child.stdout.fileno(), child.stdin.fileno())
    selector.register(server.read_fd, selectors.EVENT_READ, server)
    selector.register(listener, selectors.EVENT_READ)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        while turn(server, listener):
            pass
    finally:
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1], sys.argv[2:])
