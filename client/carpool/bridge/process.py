"""The bridge's process: lines on stdin and stdout, messages on the SDK's transport.

Owns the order of things: find the server, open the transport, pass messages both ways, end. At end of file
the session is ended at the server (DELETE), in `END_S` at most. When there is no sense in going on, open
requests are answered as far as that can be honest, and the process ends: the supervisor starts the next
one, after its own pauses and within its own limits, and that one greets anew.

The log of the SDK is silenced: it holds URLs and messages. What stderr says is ours.
Knows nothing of: statuses and failures (`http_client`), headers (`session`).
"""

import json
import logging
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
import msgspec
import trio
from mcp.client import sse
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import sse_within_origin
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from carpool.bridge import proxies
from carpool.bridge.error_mapping import connect_trouble
from carpool.bridge.error_texts import RequestTrouble, answer_line, connection_broken
from carpool.bridge.http_client import BridgeHttpClient
from carpool.bridge.oauth_store import LoginStore
from carpool.bridge.oauth_token import BearerAuth
from carpool.bridge.session import BridgeSession
from carpool.bridge.transport_probe import NotFoundError, find_transport
from carpool_protocol.carrier.remote import Remote, host_of
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.lines import LineBuffer, OverlongLine

END_S: Final = 3.0
"""The longest the end of a session may take: below what the supervisor waits before it kills."""
GRACE_S: Final = 1.0
"""So long answers are still passed on once it is over."""
_LAST_S: Final = 0.05
"""So long calls that were under way to us are still refused, then."""
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 1 << 16
_NO_CARRIAGE: Final = (
    "They hold half of a surrogate pair, an infinite number, or more levels than the bridge carries."
)
_PERHAPS_INFINITE: Final = re.compile(rb"[eE]\+?[0-9]{3}|NaN|Infinity")


def run(remote: Remote) -> int:
    """Serve until end of file, or until there is no sense in going on. The exit code of the process."""
    logging.disable(logging.CRITICAL)
    streams = trio.lowlevel.FdStream(os.dup(0)), trio.lowlevel.FdStream(os.dup(1))
    return trio.run(_Bridge(remote).serve, *streams)


class _Bridge:
    """The state and the tasks of one bridge process."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._host = host_of(remote.url)
        self._session = BridgeSession(remote.server, self._host)
        self._writing = trio.Lock()
        self._finding = trio.CancelScope()
        self._done = trio.Event()
        self._trouble: RequestTrouble | None = None
        """Why there is no sense in going on."""
        self._code = 0

    async def serve(self, stdin: trio.abc.ReceiveStream, stdout: trio.abc.SendStream) -> int:
        """The exit code."""
        self._stdin, self._stdout = stdin, stdout
        to_lines, lines = trio.open_memory_channel[bytes](0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, to_lines)
            await self._work(lines, nursery)
            nursery.cancel_scope.cancel()
        return self._code

    async def _work(self, lines: trio.MemoryReceiveChannel[bytes], beside: trio.Nursery) -> None:
        remote = None
        if (trouble := proxies.unusable()) is not None:
            await self._refuse(lines, trouble)
            return
        try:
            with self._finding:
                remote = await find_transport(self._remote, self._bearer(self._remote))
        except NotFoundError as error:
            await self._refuse(lines, error.trouble)
        if remote is None:
            return
        self._host = host_of(remote.url)
        self._session = BridgeSession(remote.server, self._host)
        say = self._write_own_answer if remote.transport == "sse" else None
        client = BridgeHttpClient(remote, self._bearer(remote), beside, self._answers, say)
        with trio.CancelScope() as whole:
            try:
                async with _transport(remote, client) as (read, write):
                    await self._converse(lines, read, write, client)
                    whole.deadline = trio.current_time() + END_S
            except Exception as error:  # noqa: BLE001 - the SDK's own failure, of whatever kind, ends this process
                trouble = client.trouble or connect_trouble(remote.url, error)
                if self._session.open or self._done.is_set():
                    self._client_ended(trouble)
                else:
                    await self._refuse(lines, trouble)
        if self._trouble is not None:
            with trio.move_on_after(_LAST_S):
                async for line in lines:
                    await self._refused(line, self._trouble)

    def _bearer(self, remote: Remote) -> BearerAuth | None:
        if remote.authorized or not remote.logins:
            return None
        return BearerAuth(remote, LoginStore(remote.logins, remote))

    async def _converse(
        self, lines: trio.MemoryReceiveChannel[bytes], read: Any, write: Any, client: BridgeHttpClient
    ) -> None:
        """Until it is done, one way or another."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forward_to_server, lines, write)
            nursery.start_soon(self._forward_to_supervisor, read)
            nursery.start_soon(self._watch, client)
            await self._done.wait()
            nursery.cancel_scope.cancel()

    async def _watch(self, client: BridgeHttpClient) -> None:
        trouble = self._trouble = await client.wait_until_done()
        with trio.move_on_after(GRACE_S):
            while self._session.open:  # noqa: ASYNC110 - whoever answers the last one sets no event
                await trio.sleep(0.01)
        self._client_ended(trouble)

    def _client_ended(self, trouble: RequestTrouble) -> None:
        if not self._done.is_set():
            print(f"carpool bridge: {trouble.text}", file=sys.stderr, flush=True)
            self._code = 1
            self._done.set()

    async def _refuse(self, lines: trio.MemoryReceiveChannel[bytes], trouble: RequestTrouble) -> None:
        """Answer each request with the trouble until end of file."""
        print(f"carpool bridge: {trouble.text}", file=sys.stderr, flush=True)
        self._code = 1
        async for line in lines:
            await self._refused(line, trouble)

    async def _refused(self, line: bytes, trouble: RequestTrouble) -> None:
        if (asked := _asked(line)) is not None:
            await self._write_line(answer_line(*asked, trouble, self._remote.server))

    # --- towards the server -------------------------------------------------------------------------------

    async def _read(self, to_lines: trio.MemorySendChannel[bytes]) -> None:
        """Read stdin as lines until end of file."""
        buffer = LineBuffer(MAX_LINE_BYTES)
        async with to_lines:
            while data := await self._stdin.receive_some(_READ_BYTES):
                for line in buffer.feed(bytes(data)):
                    if not isinstance(line, OverlongLine):  # the supervisor sends none
                        await to_lines.send(line)
        self._finding.cancel()
        self._done.set()

    async def _forward_to_server(self, lines: trio.MemoryReceiveChannel[bytes], write: Any) -> None:
        async for line in lines:
            if self._trouble is not None:
                await self._refused(line, self._trouble)
                continue
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                if _PERHAPS_INFINITE.search(line) is not None:
                    json.dumps(message.model_dump(), allow_nan=False)  # the SDK would send null
            except (ValidationError, ValueError, RecursionError):
                await self._cannot_carry(line)
                continue
            headers = self._session.headers_for(message)
            try:
                await write.send(SessionMessage(message, ClientMessageMetadata(headers=headers)))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                self._client_ended(connection_broken(self._host))
                return

    async def _cannot_carry(self, line: bytes) -> None:
        asked = _asked(line)
        if asked is not None:
            is_error, body = fault_answer(fault("bad_params", detail=_NO_CARRIAGE), asked[1])
            member = b"error" if is_error else b"result"
            await self._write_line(b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (asked[0], member, body))

    # --- towards the supervisor ---------------------------------------------------------------------------

    async def _forward_to_supervisor(self, read: Any) -> None:
        async for item in read:
            if isinstance(item, SessionMessage):
                if line := self._session.line_for_supervisor(item.message):
                    await self._write_line(line)
            else:
                print("carpool bridge: dropped what is no JSON-RPC message", file=sys.stderr, flush=True)
        self._client_ended(connection_broken(self._host))

    def _answers(self, request: RawJson) -> None:
        """An answer of our own comes by way of the transport."""
        self._session.expect_own_answer(msgspec.json.decode(request))

    async def _write_own_answer(self, request: RawJson, line: bytes) -> None:
        """An answer of our own, beside the transport."""
        self._session.request_answered(msgspec.json.decode(request))
        await self._write_line(line)

    async def _write_line(self, line: bytes) -> None:
        async with self._writing:
            try:
                await self._stdout.send_all(line + b"\n")
            except trio.BrokenResourceError:  # the supervisor is gone; end of file follows
                self._done.set()


@asynccontextmanager
async def _transport(remote: Remote, client: BridgeHttpClient) -> AsyncIterator[tuple[Any, Any]]:
    """The SDK's, over our client."""
    if remote.transport == "sse":
        # It ends with any event above 1 MiB, every agent's calls with it, and takes no other limit.
        setattr(sse, "sse_within_origin", partial(sse_within_origin, max_event_size=MAX_LINE_BYTES))  # noqa: B010

        def made(headers: object = None, timeout: object = None, auth: object = None) -> BridgeHttpClient:
            return client

        # Enters the client itself.
        async with sse.sse_client(remote.url, httpx_client_factory=made) as streams:
            yield streams
        return
    whole = streamable_http_client(remote.url, http_client=client, max_sse_event_size=MAX_LINE_BYTES)
    async with client, whole as streams:
        yield streams


def _asked(line: bytes) -> tuple[RawJson, str] | None:
    """The id and the method of a request, also where the line as a whole cannot be carried."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "id" not in value or not isinstance(value.get("method"), str):
        return None
    return RawJson(json.dumps(value["id"]).encode()), value["method"]
