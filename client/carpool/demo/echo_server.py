"""A tiny MCP server over stdio: `echo(text)` gives the text back, `payload(bytes)` that many bytes of text.

Owns nothing but its two tools. It ships so that `carpool bench` and the docs have a server that is
always there, starts in milliseconds and costs next to nothing: Python's standard library only, no
framework, one read and one write for a burst of lines. What a broker costs shows best in front of it.

Run it as a file (`python echo_server.py`), so that nothing else is imported. It ends at end of file.
Bad lines are answered with a JSON-RPC error and never end it (JSON-RPC 2.0, section 5.1). Speaks the
handshake era of MCP (2024-11-05 to 2025-11-25).
Knows nothing of: carpool, processes, who calls.
"""

import json
import os
from json.encoder import encode_basestring_ascii as quoted  # json.dumps of a string, without its options
from typing import Any

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

_READ_BYTES = 1 << 16
_INTEGER = {"type": "integer", "minimum": 0, "maximum": MAX_PAYLOAD_BYTES}
_HINTS = {"readOnlyHint": True, "idempotentHint": True}
TOOLS = [
    {
        "name": "echo",
        "description": "Gives the text back.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "annotations": _HINTS,
    },
    {
        "name": "payload",
        "description": "Gives so many bytes of text back.",
        "inputSchema": {"type": "object", "properties": {"bytes": _INTEGER}, "required": ["bytes"]},
        "annotations": _HINTS,
    },
]


def _text(text: str, *, is_error: bool = False) -> str:
    """A tool result as JSON, with one text block."""
    mark = "true" if is_error else "false"
    return f'"result":{{"content":[{{"type":"text","text":{quoted(text)}}}],"isError":{mark}}}'


def _call(params: dict[str, Any]) -> str:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if name == "echo":
        text = arguments.get("text")
        return _text(text) if isinstance(text, str) else _text("echo needs `text`, a string", is_error=True)
    if name == "payload":
        size = arguments.get("bytes")
        if type(size) is not int or not 0 <= size <= MAX_PAYLOAD_BYTES:
            return _text(f"payload needs `bytes`, 0 to {MAX_PAYLOAD_BYTES}", is_error=True)
        return f'"result":{{"content":[{{"type":"text","text":"{"x" * size}"}}],"isError":false}}'
    return '"error":{"code":-32602,"message":"unknown tool; this server has echo and payload"}'


def _greet(params: dict[str, Any]) -> str:
    asked = params.get("protocolVersion")
    result: dict[str, Any] = {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "carpool-echo", "version": "1"},
    }
    return f'"result":{json.dumps(result)}'


def answer(line: bytes) -> str:
    """The line that answers this line, with its newline; `""` for what wants no answer."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not a JSON line"}}\n'
    if not isinstance(message, dict) or not isinstance(message.get("params", {}), dict):
        return '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a request"}}\n'
    if "id" not in message or "method" not in message:
        return ""
    params = message.get("params", {})
    match message["method"]:
        case "tools/call" if isinstance(params.get("arguments") or {}, dict):
            body = _call(params)
        case "initialize":
            body = _greet(params)
        case "ping":
            body = '"result":{}'
        case "tools/list":
            body = f'"result":{json.dumps({"tools": TOOLS})}'
        case "tools/call":
            body = '"error":{"code":-32602,"message":"`arguments` is not an object"}'
        case _:
            body = '"error":{"code":-32601,"message":"this server has tools only"}'
    raw_id = message["id"]
    raw_id = raw_id if type(raw_id) is int else json.dumps(raw_id)
    return f'{{"jsonrpc":"2.0","id":{raw_id},{body}}}\n'


def main() -> None:
    """Serve stdin until it ends."""
    chunks: list[bytes] = []
    while data := os.read(0, _READ_BYTES):
        if b"\n" not in data:
            chunks.append(data)
            continue
        *lines, rest = b"".join([*chunks, data]).split(b"\n")
        chunks = [rest] if rest else []
        out = memoryview("".join([answer(line) for line in lines if line.strip()]).encode())
        while out:
            out = out[os.write(1, out) :]


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        raise SystemExit(0) from None
