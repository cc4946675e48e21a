# mypy: ignore-errors
"""What the servers beside this file share: MCP over stdio in the handshake era, one line at a time.

A server is `serve(tools, call)`: `tools` maps a name to its description, `call(name, arguments, request)`
returns a result, or None when it has answered (or will) by itself. Standard library only.
"""

import json
import os
import sys
import threading

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_lock = threading.Lock()


def send_bytes(data):
    with _lock:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def send(message):
    send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(request, result):
    send({"id": request["id"], "result": result})


def text(said, is_error=False):
    return {"content": [{"type": "text", "text": said}], "isError": is_error}


def tool(name, description="", properties=None):
    schema = {"type": "object", "properties": properties or {}}
    return {"name": name, "description": description or f"The tool {name}.", "inputSchema": schema}


def greeting(request, list_changed=False, name=None):
    asked = request["params"].get("protocolVersion")
    name = name or os.path.basename(sys.argv[0]).removesuffix(".py")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
        "capabilities": {"tools": {"listChanged": list_changed}},
        "serverInfo": {"name": name, "version": "1"},
    }


def lines():
    """Messages from the client until end of file; what is no JSON object is passed over."""
    for line in sys.stdin.buffer:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message


def handle(message, tools, call, list_changed=False):
    """Answer one message. `tools` may be a function."""
    method = message.get("method")
    if "id" not in message or method is None:
        return
    if method == "initialize":
        answer(message, greeting(message, list_changed))
    elif method == "ping":
        answer(message, {})
    elif method == "tools/list":
        now = tools() if callable(tools) else tools
        answer(message, {"tools": [tool(name, description) for name, description in now.items()]})
    elif method == "tools/call":
        params = message["params"]
        result = call(params["name"], params.get("arguments") or {}, message)
        if result is not None:
            answer(message, result)
    else:
        send({"id": message["id"], "error": {"code": -32601, "message": f"no method {method}"}})


def serve(tools, call, list_changed=False):
    for message in lines():
        handle(message, tools, call, list_changed)
