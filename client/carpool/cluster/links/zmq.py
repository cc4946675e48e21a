"""The link over ZeroMQ: `tcp://` with CURVE between machines, `ipc://` between carpools of one machine.

Owns the sockets and the proof of who speaks: over TCP each peer has a public key, the authenticator admits
these keys only and gives each its node's name, and a node reaches a peer only if that has the secret key to
the peer's public one. Without a key nothing listens. An `ipc://` socket is for the same user only (mode
0600); there a node says its name itself. A refusal, by this node or of it, is told once; a node that was
refused tries again, because its key may be known there by then. So does one that cannot listen at its address
yet.

Knows nothing of: frames' content, sessions, how keys are made (`keys`).
"""

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import Mapping
from typing import Any, Final

import zmq
import zmq.asyncio
from msgspec import Struct
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from carpool.cluster.core.frames import FRAME_BYTES
from carpool.cluster.links.link import FRAMES_PER_TURN, LinkError, LinkEvents

MAX_QUEUED_FRAMES: Final = 512
"""Frames for one peer that its socket has not taken; further ones are dropped, and sent again later."""
HEARTBEAT_MS: Final = 3000
HANDSHAKE_MS: Final = 5000
"""A connection that does not prove who it is within this time is closed."""
RETRY_S: Final = 1.0
"""A peer that has refused this node is tried again after this time."""
FAILED_HANDSHAKES: Final = 3
"""After this many failures in a row without a reason the peer counts as one with another key."""
_HANDSHAKES: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


_MAY_PASS: Final = {errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EMFILE, errno.ENODEV}
"""A port that is taken, or an address of a network that is not there yet, may be had later."""
_STRANGER: Final = (
    "something without a key, or that has a wrong key of this node, tried to connect and was refused: "
    "compare `cluster.peers` there with `carpool cluster key` here"
)


def _refusal(peer: str) -> str:
    return (
        f"node {peer} refuses the key of this node: its `cluster.peers` must have what `carpool cluster key` "
        "says here"
    )


def _other_key(peer: str, address: str) -> str:
    return (
        f"what listens at {address} has another key than `cluster.peers` gives node {peer}: compare it with "
        "`carpool cluster key` there"
    )


class NodeAddress(Struct, frozen=True):
    """Another node: where it listens, and its public key (32 bytes; empty with `ipc://`)."""

    address: str
    key: bytes = b""


class _Admission(AsyncioAuthenticator):
    """Admits the keys of peers, each under its node's name."""

    def __init__(self, context: zmq.asyncio.Context, names: Mapping[str, str], events: LinkEvents) -> None:
        super().__init__(context)
        self._names = names
        self._link_events = events
        self._refused: set[bytes] = set()
        self.configure_curve_callback("*", credentials_provider=self)

    async def callback(self, _domain: str, key: bytes) -> bool:
        """Say if a node with this public key is admitted."""
        await asyncio.sleep(0)  # strangers that connect again and again hold up nothing else
        if key.decode() in self._names:
            return True
        if key not in self._refused and len(self._refused) < 100:
            self._refused.add(key)
            shown = z85.decode(key).hex()
            self._link_events.report(
                f"a node with the public key {shown} was refused: it is none of `cluster.peers`", "warning"
            )
        return False

    def curve_user_id(self, client_public_key: bytes) -> str:
        """Return the name of the node with this key."""
        return self._names.get(z85.encode(client_public_key).decode(), "")


class ZmqNodeLink:
    """The link of one node over ZeroMQ. `secret_key`: 32 bytes, for `tcp://`."""

    stores_offers = False
    frame_bytes = FRAME_BYTES

    def __init__(
        self, address: str, node: str, peers: Mapping[str, NodeAddress], secret_key: bytes = b""
    ) -> None:
        self._address = address
        self._node = node
        self._peers = dict(peers)
        self._secret = secret_key
        self._is_tcp = address.startswith("tcp://")
        self._own_public = (
            z85.decode(zmq.curve_public(z85.encode(secret_key))) if len(secret_key) == 32 else b""
        )
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._is_running = False
        self._problems: dict[str, str] = {}
        """By peer, why the handshake with it fails; by this node, why it does not listen."""
        if self._is_tcp and len(secret_key) != 32:
            raise LinkError("a `tcp://` address needs a key: `carpool cluster key` makes it")
        for name, peer in self._peers.items():
            if self._is_tcp != (len(peer.key) == 32):
                raise LinkError(f"the peer {name} needs a public key with `tcp://`, and none with `ipc://`")

    @property
    def peers(self) -> list[str]:
        """The configured peers."""
        return sorted(self._peers)

    @property
    def is_up(self) -> bool:
        """True while it runs: ZeroMQ reconnects by itself."""
        return self._is_running

    @property
    def problem(self) -> str:
        """Return why this node does not listen, or with which peers the handshake fails; empty: neither."""
        return "; ".join(text for _, text in sorted(self._problems.items()))

    def send(self, node: str, frame: bytes) -> None:
        """Send a frame, unless its peer's queue is full."""
        sock = self._sockets.get(node)
        if sock is not None:
            parts = [frame] if self._is_tcp else [self._node.encode(), frame]
            with contextlib.suppress(zmq.ZMQError):  # full, or nobody is there
                sock.send_multipart(parts, zmq.NOBLOCK)

    async def publish(self, offer: bytes) -> None:
        """Nothing: channels carry offers."""

    async def leave(self) -> None:
        """Nothing: the channels end."""

    async def run(self, events: LinkEvents) -> None:
        """Carry frames until cancelled. Raises `LinkError`."""
        context = zmq.asyncio.Context()
        admission: _Admission | None = None
        watches: list[asyncio.Task[None]] = []
        try:
            if self._is_tcp:
                names = {z85.encode(peer.key).decode(): name for name, peer in self._peers.items()}
                admission = _Admission(context, names, events)
                admission.start()
            inlet = await self._listen_when_possible(context, events)
            if self._is_tcp:
                heard = _watch_handshakes(context, inlet, "inproc://handshakes")
                watches.append(asyncio.create_task(_tell_of_strangers(heard, events)))
            keeping = (self._keep_connected(context, name, events) for name in self._peers)
            watches += map(asyncio.create_task, keeping)
            await asyncio.sleep(0)  # all connect
            self._is_running = True
            events.restored()
            watches.append(asyncio.create_task(self._receive(inlet, events)))
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_EXCEPTION)
            for each in done:
                each.result()
        finally:
            self._is_running = False
            for each in watches:
                each.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            if admission is not None:
                admission.stop()
            context.destroy(linger=0)

    async def _keep_connected(self, context: zmq.asyncio.Context, name: str, events: LinkEvents) -> None:
        """Keep a socket to one peer. ZeroMQ connects again by itself, except after a refusal."""
        reported: set[str] = set()
        for attempt in itertools.count():
            sock = heard = None
            try:
                sock = self._new_socket(context, self._peers[name])
                heard = _watch_handshakes(context, sock, f"inproc://handshakes-{name}-{attempt}")
                sock.connect(self._peers[name].address)
                self._sockets[name] = sock
                await self._wait_for_refusal(heard, name, reported, events)
            except zmq.ZMQError as error:  # no free descriptor, or an address that means nothing here
                text = f"no connection to node {name} can be made ({error.strerror}); it is tried again"
                self._tell_problem(name, text, reported, events)
            finally:
                self._sockets.pop(name, None)
                if heard is not None:
                    heard.close(linger=0)
                if sock is not None:
                    sock.disable_monitor()
                    sock.close(linger=0)
            await asyncio.sleep(RETRY_S)

    def _tell_problem(self, name: str, text: str, reported: set[str], events: LinkEvents) -> None:
        """Note why a node is not reached, and report it once. `reported`: what the log has."""
        self._problems[name] = text
        if text not in reported:
            reported.add(text)
            events.report(text, "warning")

    async def _wait_for_refusal(
        self, heard: zmq.asyncio.Socket, name: str, reported: set[str], events: LinkEvents
    ) -> None:
        """Follow the handshakes with a peer until it refuses this node. `reported`: what the log has."""
        failed = 0
        while True:
            event = await _next_handshake(heard)
            text = ""
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                failed = 0
                self._problems.pop(name, None)
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                failed += 1
                if failed >= FAILED_HANDSHAKES:
                    text = _other_key(name, self._peers[name].address)
            else:
                text = _refusal(name)
            if text:
                self._tell_problem(name, text, reported, events)
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                return

    async def _listen_when_possible(
        self, context: zmq.asyncio.Context, events: LinkEvents
    ) -> zmq.asyncio.Socket:
        """Listen, as soon as the address is there and free. Raises `LinkError` if it can never be."""
        reported: set[str] = set()
        while True:
            try:
                inlet = self._listen(context)
            except zmq.ZMQError as error:
                text = f"cannot listen at {self._address} ({error.strerror})"
                if error.errno not in _MAY_PASS:
                    raise LinkError(text) from None
                self._tell_problem(self._node, f"{text}; it is tried again", reported, events)
                await asyncio.sleep(RETRY_S)
            else:
                self._problems.pop(self._node, None)
                return inlet

    def _listen(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        inlet = context.socket(zmq.PULL)
        inlet.setsockopt(zmq.RCVHWM, MAX_QUEUED_FRAMES)
        inlet.setsockopt(zmq.MAXMSGSIZE, 4 * FRAME_BYTES)
        if self._is_tcp:
            self._use_key(inlet)
            inlet.setsockopt(zmq.CURVE_SERVER, 1)
        inlet.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        umask = os.umask(0o177)
        try:
            inlet.bind(self._address)
        except zmq.ZMQError:
            inlet.close(linger=0)
            raise
        finally:
            os.umask(umask)
        return inlet

    def _new_socket(self, context: zmq.asyncio.Context, peer: NodeAddress) -> "zmq.Socket[bytes]":
        # A plain socket: it never waits, because what it does not take is dropped.
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(context.underlying)
        sock: zmq.Socket[bytes] = plain.socket(zmq.PUSH)
        sock.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
        sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        sock.setsockopt(zmq.RECONNECT_IVL, 100)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        # What was queued for an earlier connection is old: the channel sends it again.
        sock.setsockopt(zmq.IMMEDIATE, 1)
        if peer.key:
            self._use_key(sock)
            sock.setsockopt(zmq.CURVE_SERVERKEY, z85.encode(peer.key))
        return sock

    def _use_key(self, sock: zmq.Socket[Any]) -> None:
        secret = z85.encode(self._secret)
        sock.setsockopt(zmq.CURVE_SECRETKEY, secret)
        sock.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(secret))

    async def _receive(self, inlet: zmq.asyncio.Socket, events: LinkEvents) -> None:
        for number in itertools.count(1):
            if number % FRAMES_PER_TURN == 0:  # a frame that is there is received without a turn of the loop
                await asyncio.sleep(0)
            try:
                parts = await inlet.recv_multipart(copy=False)
            except zmq.Again:  # a socket can seem readable while a peer is still being admitted
                continue
            frame = parts[-1].bytes
            said = parts[0].bytes if len(parts) == 2 else b""
            name = str(parts[-1].get("User-Id")) if self._is_tcp else said.decode("ascii", "replace")
            if name in self._peers:
                events.frame_received(name, frame)


def _watch_handshakes(
    context: zmq.asyncio.Context, sock: "zmq.Socket[Any]", address: str
) -> zmq.asyncio.Socket:
    """Return a socket that receives the ends of handshakes. `address`: a new one of this process."""
    sock.monitor(address, _HANDSHAKES)
    heard = context.socket(zmq.PAIR)
    heard.connect(address)
    return heard


async def _next_handshake(heard: zmq.asyncio.Socket) -> int:
    """Return how the next handshake ends."""
    await asyncio.sleep(0)  # an event that is there is received without a turn of the loop
    event: int = parse_monitor_message(await heard.recv_multipart())["event"]
    return event


async def _tell_of_strangers(heard: zmq.asyncio.Socket, events: LinkEvents) -> None:
    """Report once that something without a key has tried to connect. Of unknown keys the admission tells.

    It reads for ever: ZeroMQ stops all traffic of the node when nobody takes the events of its monitor.
    """
    is_told = False
    while True:
        event = await _next_handshake(heard)
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and not is_told:
            is_told = True
            events.report(_STRANGER, "warning")
