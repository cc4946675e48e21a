"""The link over a NATS server, with the official client.

Owns the subjects (`carpool.{cluster}.{receiver}.{sender}`, so that permissions of the server can hold each
user to its own name), the bucket of offers, and the time of everything that waits for the server. While the
server is away frames are dropped: the client's own buffer would send old frames late. A server that refuses
this node is asked again after a pause, with the files read anew.

Needs the extra `cluster`. Knows nothing of: frames' content, sessions, credentials (`nats_access`).
"""

import asyncio
import contextlib
from collections import deque
from typing import Any, Final

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import DiscardPolicy, StorageType, StreamConfig
from nats.js.kv import KeyValue

from carpool.cluster.core.frames import CHUNK_BYTES, FRAME_BYTES
from carpool.cluster.links.link import FRAMES_PER_TURN, LinkError, LinkEvents
from carpool.cluster.links.nats_access import NatsAccess, is_refusal, sentence

RETRY_S: Final = 1
"""The pause between attempts to reach the server."""
REFUSED_RETRY_S = 10.0
"""The pause after which a server that refused this node is asked again."""
PING_S: Final = 5
"""A server that does not answer for two of these is given up, and reached for again."""
OFFER_S: Final = 20.0
"""An offer that is not published again is gone after this time."""
WATCH_S: Final = 12.0
"""A watch that is silent for longer is begun again: this node's own offers would show."""
CALL_S: Final = 5.0
"""How long one request to the server may take."""
CLOSE_S: Final = 2.0
"""How long the end of a connection may take."""
END_AGAIN_S: Final = 0.2
"""A task that goes on after it was cancelled is cancelled again after this time."""
FORBIDDEN_S: Final = 15.0
"""A problem of a connection that works is over if it was not seen for this time."""
HEADER_BYTES: Final = 4096
"""Left free of the server's `max_payload`."""
MIN_PAYLOAD_BYTES: Final = CHUNK_BYTES + 2 * HEADER_BYTES
"""A server that takes smaller messages takes no full record of a session."""
MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of frames that wait for the client, and of frames from it."""
MAX_REPORTS: Final = 100
"""The most different sentences for the log during one connection."""


class NatsLink:
    """The link of one node over NATS."""

    stores_offers = True

    def __init__(self, access: NatsAccess, cluster: str, node: str) -> None:
        self._access = access
        self._cluster = cluster
        self._node = node
        self._client = Client()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._queued_bytes = 0
        self._queued = asyncio.Event()
        self._events = LinkEvents(_ignore, _ignore, _ignore, _ignore)
        self._over = asyncio.Event()
        """Set when the server refuses this node, or has ended the connection for good."""
        self._watch: asyncio.Task[None] | None = None
        self._refusal = ""
        """Why the connection is over."""
        self._problem = ""
        self._problem_at = float("-inf")
        self._told: set[str] = set()
        """The sentences that the log has of this connection."""
        self._bucket: KeyValue | None = None
        self._frames = 0
        """The number of frames in both directions, for turns of the loop."""
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
        """Return why the link does not work, or not in full; empty: it does."""
        if self.is_up and asyncio.get_running_loop().time() > self._problem_at + FORBIDDEN_S:
            return ""
        return self._problem

    def send(self, node: str, frame: bytes) -> None:
        """Send a frame, if the server is connected and takes what is sent."""
        if self.is_up and self._queued_bytes + len(frame) <= MAX_QUEUED_BYTES:
            self._queue.append((node, frame))
            self._queued_bytes += len(frame)
            self._queued.set()

    async def publish(self, offer: bytes) -> None:
        """Put the offer into the bucket."""
        try:
            async with asyncio.timeout(CALL_S):
                bucket = await self._get_bucket()
                await bucket.put(self._node, offer)
        except (nats.errors.Error, LinkError, TimeoutError) as error:
            if self.is_up:
                self._tell(f"the offer of this node cannot be stored: {_no_bucket(error)}", "error")

    async def leave(self) -> None:
        """Take the offer out of the bucket."""
        with contextlib.suppress(nats.errors.Error, LinkError, TimeoutError):
            async with asyncio.timeout(CALL_S):
                bucket = await self._get_bucket()
                await bucket.delete(self._node)

    async def run(self, events: LinkEvents) -> None:
        """Carry frames until cancelled."""
        self._events = events
        while True:
            text = await self._carry_until_refused()
            self._tell(f"{text}; the next attempt is in {REFUSED_RETRY_S:g} s", "error")
            await asyncio.sleep(REFUSED_RETRY_S)

    async def _carry_until_refused(self) -> str:
        """Carry frames over one client, and return why it can do so no longer."""
        try:
            options = self._access.options()
        except LinkError as error:
            return str(error)
        self._refusal = ""
        self._over.clear()
        self._bucket = None
        self._client = client = self._access.new_client()
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._over.wait())]
        try:
            tasks.append(asyncio.create_task(self._connect(options)))
            await self._wait_for_one(tasks)
            tasks += [asyncio.create_task(each) for each in (self._send_queued(), self._watch_offers())]
            await self._wait_for_one([tasks[0], *tasks[2:]])
        except nats.errors.Error as error:
            self._refuse(error)
        finally:
            await self._end(tasks)
            with contextlib.suppress(Exception):  # of a server that is away
                async with asyncio.timeout(CLOSE_S):
                    await client.close()
            self._drop_queue()
        return self._refusal

    @staticmethod
    async def _wait_for_one(tasks: list[asyncio.Task[Any]]) -> None:
        """Wait until one of these tasks has ended, and raise its error."""
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Cancel these tasks, and the watch, until they end.

        The client uses `wait_for`, which can swallow a cancellation in Python 3.11.
        """
        while True:
            pending = [task for task in (*tasks, self._watch) if task is not None and not task.done()]
            if not pending:
                break
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=END_AGAIN_S)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, options: dict[str, Any]) -> None:
        """Connect, however long that takes: the client tries again by itself, now and after each loss."""
        await self._client.connect(
            **options,
            name=f"carpool {self._node}",
            # Answers to this node alone, so that its user needs no right to those of others.
            inbox_prefix=f"_INBOX.carpool.{self._cluster}.{self._node}",
            reconnected_cb=self._reconnected,
            disconnected_cb=self._disconnected,
            closed_cb=self._closed,
            error_cb=self._failed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RETRY_S,
            ping_interval=PING_S,
            max_outstanding_pings=2,
        )
        await self._client.subscribe(
            self._subject(self._node, "*"),
            cb=self._received,
            pending_msgs_limit=-1,
            pending_bytes_limit=MAX_QUEUED_BYTES,
        )
        self._restored("NATS is connected")

    def _subject(self, receiver: str, sender: str) -> str:
        return f"carpool.{self._cluster}.{receiver}.{sender}"

    async def _reconnected(self) -> None:
        self._bucket = None
        if self._watch is not None:
            self._watch.cancel()  # the server may have forgotten it
        self._restored("NATS is connected again")

    def _restored(self, text: str) -> None:
        if self._client.max_payload < MIN_PAYLOAD_BYTES:
            problem = (
                f"the NATS server takes messages of at most {self._client.max_payload} bytes, and carpool "
                f"sends up to {MIN_PAYLOAD_BYTES}: raise its `max_payload` (1MB is the default)"
            )
            self._refuse(LinkError(problem))
            return
        self.frame_bytes = min(FRAME_BYTES, self._client.max_payload - HEADER_BYTES)
        self._problem = ""
        self._told.clear()
        self._events.report(text, "info")
        self._events.restored()

    async def _disconnected(self) -> None:
        self._drop_queue()
        if not self._over.is_set():
            self._tell("NATS is away; reconnecting", "warning")

    async def _closed(self) -> None:
        """The client does not try again: the server has ended the connection with an error."""
        self._refuse(self._client.last_error or nats.errors.ConnectionClosedError())

    async def _failed(self, error: Exception) -> None:
        if is_refusal(error):
            self._refuse(error)
        else:
            self._tell(sentence(error), "warning")

    def _refuse(self, error: Exception) -> None:
        if not self._over.is_set():
            self._refusal = sentence(error)
            self._over.set()

    def _tell(self, text: str, level: str) -> None:
        """Say it in the log, once, and in the status."""
        self._problem = text
        self._problem_at = asyncio.get_running_loop().time()
        if text not in self._told and len(self._told) < MAX_REPORTS:
            self._told.add(text)
            self._events.report(text, level)

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    async def _received(self, message: Msg) -> None:
        await self._give_turn()  # the client hands over what is queued without a turn of the loop
        # A consumer of the bucket may deliver to any subject; its messages keep the subject of the bucket.
        start, _, sender = message.subject.rpartition(".")
        if f"{start}." == self._subject(self._node, ""):
            try:
                self._events.frame_received(sender, message.data)
            except Exception as error:  # noqa: BLE001 - a bug, which the client would report as an error of NATS
                told = {"message": "a frame cannot be taken up", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    async def _send_queued(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            while self._queue:
                node, frame = self._queue.popleft()
                self._queued_bytes -= len(frame)
                with contextlib.suppress(nats.errors.Error):  # the channel sends it again
                    await self._client.publish(self._subject(node, self._node), frame)
                await self._give_turn()

    async def _give_turn(self) -> None:
        """Let everything else in the process run once, after some frames."""
        self._frames += 1
        if self._frames % FRAMES_PER_TURN == 0:
            await asyncio.sleep(0)

    # --- the bucket of offers --------------------------------------------------------------------------

    async def _get_bucket(self) -> KeyValue:
        if self._bucket is None:
            streams = self._client.jetstream(timeout=CALL_S)
            name = f"carpool-{self._cluster}"
            stream = f"KV_{name}"
            try:
                config = (await streams.stream_info(stream)).config
            except nats.js.errors.NotFoundError:
                config = (await streams.add_stream(_bucket_stream(stream, name))).config
            if config.subjects != [f"$KV.{name}.>"] or (
                config.republish or config.sources or config.mirror or config.subject_transform
            ):
                raise LinkError(
                    f"the stream {stream} of the NATS server is not as carpool makes it, and may speak as "
                    "any node: remove it (`nats stream rm`), and see who made it"
                )
            self._bucket = await streams.key_value(name)
        return self._bucket

    async def _watch_offers(self) -> None:
        """Tell of each offer in the bucket, and of changes, through restarts of the server."""
        while True:
            try:
                async with asyncio.timeout(CALL_S):
                    bucket = await self._get_bucket()
                    watcher = await bucket.watchall()
            except LinkError as error:  # a bucket through which others may speak as any node
                self._refuse(error)
                return
            except (nats.errors.Error, TimeoutError) as error:
                self._bucket = None
                if self.is_up:
                    self._tell(_no_bucket(error), "error")
                await asyncio.sleep(RETRY_S)
                continue
            self._watch = asyncio.create_task(self._tell_offers(watcher))
            try:
                await asyncio.wait([self._watch])
            finally:  # the client's task that looks after the watch would go on for seconds
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


def _bucket_stream(stream: str, bucket: str) -> StreamConfig:
    """Return the stream of a bucket in which nobody can remove what others have written."""
    return StreamConfig(
        name=stream,
        subjects=[f"$KV.{bucket}.>"],
        max_age=OFFER_S,
        duplicate_window=OFFER_S,
        max_msgs_per_subject=1,
        storage=StorageType.MEMORY,
        discard=DiscardPolicy.NEW,
        deny_delete=True,
        deny_purge=True,
        allow_rollup_hdrs=False,
    )


def _no_bucket(error: Exception) -> str:
    if isinstance(error, nats.js.errors.ServiceUnavailableError | nats.errors.NoRespondersError):
        return (
            "the NATS server, or the account of this node's user, has no JetStream, in which nodes tell what "
            "they offer: start it with `-js`"
        )
    if isinstance(error, LinkError):
        return str(error)
    return f"the offers of nodes cannot be reached in NATS ({sentence(error)})"
