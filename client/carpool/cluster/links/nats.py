"""The link over a NATS server, with the official client.

Owns the subjects (`carpool.{cluster}.{receiver}.{sender}`, so that permissions of the server can hold each
user to its own name), the bucket of offers, and the time of everything that waits for the server. While the
server is away frames are dropped: the client's own buffer would send old frames late.

Needs the extra `cluster`. Knows nothing of: frames' content, sessions.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from typing import Any, Final

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import KeyValueConfig, StorageType
from nats.js.kv import KeyValue

from carpool.cluster.core.frames import FRAME_BYTES
from carpool.cluster.links.link import LinkError, LinkEvents

RETRY_S: Final = 1
"""The pause between attempts to reach the server."""
PING_S: Final = 5
"""A server that does not answer for two of these is given up, and reached for again."""
OFFER_S: Final = 20.0
"""An offer that is not published again is gone after this time."""
WATCH_S: Final = 12.0
"""A watch that is silent for longer is begun again: this node's own offers would show."""
CALL_S: Final = 5.0
"""How long one request to the server may take."""
HEADER_BYTES: Final = 4096
"""Left free of the server's `max_payload`."""
_REFUSED: Final = (
    "the NATS server refuses this node: check `cluster.credentials`, or the user in `cluster.url`"
)
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024


class NatsLink:
    """The link of one node over NATS. `credentials`, `ca`: files, or empty."""

    stores_offers = True

    def __init__(self, url: str, cluster: str, node: str, *, credentials: str = "", ca: str = "") -> None:
        self._url = url
        self._cluster = cluster
        self._node = node
        self._credentials = credentials
        self._ca = ca
        self._client = Client()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._queued = asyncio.Event()
        self._events = LinkEvents(_ignore, _ignore, _ignore, _ignore)
        self._refused = asyncio.Event()
        """Set when the server refuses this node."""
        self._watch: asyncio.Task[None] | None = None
        self._reported = ""
        """What was last said of the server's failures."""
        self._problem = ""
        self._bucket: KeyValue | None = None
        self.frame_bytes = FRAME_BYTES

    @property
    def peers(self) -> list[str]:
        """Nobody is known by configuration."""
        return []

    @property
    def is_up(self) -> bool:
        """True if the server is connected."""
        return self._client.is_connected

    @property
    def problem(self) -> str:
        """The last failure since the server was connected, or why the bucket cannot be read."""
        return self._problem

    def send(self, node: str, frame: bytes) -> None:
        """Send a frame, if the server is connected."""
        if self.is_up:
            self._queue.append((node, frame))
            self._queued.set()

    async def publish(self, offer: bytes) -> None:
        """Put the offer into the bucket."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(CALL_S):
                bucket = await self._get_bucket()
                await bucket.put(self._node, offer)

    async def leave(self) -> None:
        """Take the offer out of the bucket."""
        with contextlib.suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(CALL_S):
                bucket = await self._get_bucket()
                await bucket.delete(self._node)

    async def run(self, events: LinkEvents) -> None:
        """Carry frames until cancelled. Raises `LinkError`."""
        self._events = events
        self._refused.clear()
        self._client = Client()
        work = (self._refused.wait(), self._carry())
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._refused.is_set():
                raise LinkError(_REFUSED)
            tasks[1].result()
        finally:
            for task in (*tasks, *([self._watch] if self._watch is not None else [])):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(Exception):  # of a server that is away
                await self._client.close()

    async def _carry(self) -> None:
        await self._connect()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_queued())
            tasks.create_task(self._watch_offers())

    async def _connect(self) -> None:
        """Connect, however long that takes: the client tries again by itself, now and after each loss."""
        options: dict[str, Any] = {}
        if self._credentials:
            options["user_credentials"] = self._credentials
        if self._ca:
            options["tls"] = ssl.create_default_context(cafile=self._ca)
        await self._client.connect(
            self._url,
            name=f"carpool {self._node}",
            reconnected_cb=self._reconnected,
            disconnected_cb=self._disconnected,
            error_cb=self._failed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RETRY_S,
            ping_interval=PING_S,
            max_outstanding_pings=2,
            **options,
        )
        await self._client.subscribe(
            f"carpool.{self._cluster}.{self._node}.*",
            cb=self._received,
            pending_msgs_limit=-1,
            pending_bytes_limit=MAX_QUEUED_BYTES,
        )
        self._restored("NATS is connected")

    async def _reconnected(self) -> None:
        self._bucket = None
        if self._watch is not None:
            self._watch.cancel()  # the server may have forgotten it
        self._restored("NATS is connected again")

    def _restored(self, text: str) -> None:
        self._reported = self._problem = ""
        self.frame_bytes = min(FRAME_BYTES, self._client.max_payload - HEADER_BYTES)
        self._events.report(text, "info")
        self._events.restored()

    async def _disconnected(self) -> None:
        self._queue.clear()
        if not self._refused.is_set():
            self._events.report("NATS is away; reconnecting", "warning")

    async def _failed(self, error: Exception) -> None:
        text = self._problem = _sentence(error)
        if "authorization" in text.lower():
            self._refused.set()
        elif text != self._reported:
            self._reported = text
            self._events.report(f"NATS: {text}; trying again", "warning")

    async def _received(self, message: Msg) -> None:
        self._events.frame_received(message.subject.rpartition(".")[2], message.data)

    async def _send_queued(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                node, frame = self._queue.popleft()
                with contextlib.suppress(nats.errors.Error):  # the channel sends it again
                    await self._client.publish(f"carpool.{self._cluster}.{node}.{self._node}", frame)

    # --- the bucket of offers --------------------------------------------------------------------------

    async def _get_bucket(self) -> KeyValue:
        if self._bucket is None:
            streams = self._client.jetstream(timeout=CALL_S)
            try:
                self._bucket = await streams.key_value(f"carpool-{self._cluster}")
            except nats.js.errors.NotFoundError:
                self._bucket = await streams.create_key_value(
                    KeyValueConfig(
                        bucket=f"carpool-{self._cluster}", ttl=OFFER_S, history=1, storage=StorageType.MEMORY
                    )
                )
        return self._bucket

    async def _watch_offers(self) -> None:
        """Tell of each offer in the bucket, and of changes, through restarts of the server."""
        told = ""
        while True:
            try:
                async with asyncio.timeout(CALL_S):
                    bucket = await self._get_bucket()
                    watcher = await bucket.watchall()
            except (nats.errors.Error, TimeoutError) as error:
                self._bucket = None
                text = _no_bucket(error)
                self._problem = text if self.is_up else self._problem
                if self.is_up and text != told:
                    self._events.report(text, "error")
                    told = text
                await asyncio.sleep(RETRY_S)
                continue
            told = self._problem = ""
            self._watch = asyncio.create_task(self._tell_offers(watcher))
            await asyncio.wait([self._watch])
            with contextlib.suppress(Exception):  # its subscription may be gone with the server
                await watcher.stop()  # type: ignore[no-untyped-call]
            self._bucket = None

    async def _tell_offers(self, watcher: KeyValue.KeyWatcher) -> None:
        while True:
            try:
                entry = await watcher.updates(timeout=WATCH_S)  # type: ignore[no-untyped-call]
            except (nats.errors.Error, TimeoutError, StopAsyncIteration):
                return
            if entry is None:
                continue  # everything that was there has been told
            is_gone = entry.operation in {"DEL", "PURGE"}
            self._events.offer_received(entry.key, b"" if is_gone else entry.value or b"")


def _ignore(*_: object) -> None:
    """Nobody listens yet."""


def _no_bucket(error: Exception) -> str:
    if isinstance(error, nats.js.errors.ServiceUnavailableError | nats.errors.NoRespondersError):
        return "the NATS server has no JetStream, in which nodes tell what they offer: start it with `-js`"
    return f"the offers of nodes cannot be read from NATS ({_sentence(error)})"


def _sentence(error: Exception) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
