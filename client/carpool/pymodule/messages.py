r"""Messages of the SDK as lines, where its own way to stdio drops a request, or ends.

Owns that each request is read or answered and each answer written. Half a surrogate pair (`"\ud83d"`: a cut
emoji in an argument, a file name that is no UTF-8 in a result) is legal JSON and no UTF-8: it becomes `?`. A
request that Python cannot read (numbers of thousands of digits, hundreds of levels) and an answer that cannot
be written are answered with an error that says so.

Knows nothing of: descriptors, tools, what a message means.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.jsonrpc import JSONRPCMessage, jsonrpc_message_adapter

from carpool_protocol.wire.json_scan import scan_ends

UNREADABLE: Final = "the request cannot be read ({}): is it nested too deep, or has a number too many digits?"
UNWRITABLE: Final = "the answer cannot be written as JSON ({})"


@asynccontextmanager
async def messages(
    source: anyio.AsyncFile[str], sink: anyio.AsyncFile[str]
) -> AsyncIterator[tuple[MemoryObjectReceiveStream[Any], MemoryObjectSendStream[Any]]]:
    """Yield the streams of incoming and outgoing messages for the SDK. Incoming ones end with `source`."""
    to_server, incoming = anyio.create_memory_object_stream[Any](0)
    outgoing, from_server = anyio.create_memory_object_stream[Any](0)
    writing = anyio.Lock()

    async def write(line: str) -> None:
        async with writing:
            await sink.write(line + "\n")
            await sink.flush()

    async def read() -> None:
        async with to_server:
            async for line in source:
                try:
                    message = message_of(line)
                except (ValueError, RecursionError) as error:
                    if refusal := unreadable(line, error):
                        await write(refusal)
                    continue
                await to_server.send(SessionMessage(message))

    async def send() -> None:
        async with from_server:
            async for message in from_server:
                if line := line_of(message.message):
                    await write(line)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(send)
        yield incoming, outgoing


def message_of(line: str) -> JSONRPCMessage:
    """Raises `ValueError` or `RecursionError`: not to be read at all."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:  # pydantic's, too
        return jsonrpc_message_adapter.validate_json(_plain(json.loads(line)), by_name=False)


def line_of(message: JSONRPCMessage) -> str:
    """Without its end. Empty: it cannot be written, and nobody waits for it."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True)
    except (ValueError, RecursionError):
        pass
    try:
        return _plain(message.model_dump(by_alias=True, exclude_unset=True)).decode()
    except (ValueError, TypeError, RecursionError) as error:
        request = getattr(message, "id", None)
        if request is None or hasattr(message, "method"):
            return ""
        return _error(json.dumps(request), INTERNAL_ERROR, UNWRITABLE.format(type(error).__name__))


def unreadable(line: str, error: BaseException) -> str:
    """The answer to a request that cannot be read; empty where it is none."""
    raw_id, is_answer = scan_ends(line.encode(errors="replace"))
    if raw_id is None or is_answer is not False:
        return ""
    return _error(raw_id.decode(), INVALID_PARAMS, UNREADABLE.format(type(error).__name__))


def _plain(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _error(request: str, code: int, text: str) -> str:
    return f'{{"jsonrpc":"2.0","id":{request},"error":{{"code":{code},"message":{json.dumps(text)}}}}}'
