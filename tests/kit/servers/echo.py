# mypy: ignore-errors
"""Echo, as fast as plain json allows: one read and one write for a burst of lines, single-threaded.

Tools: `echo(text)`, `blob(bytes)` that many bytes of text, `whoami(env)` its pid, directory and one
environment variable as JSON. `--tools N` offers N more; `--slow-start S` waits S seconds before greeting.
"""

import argparse
import json
import os
import time
from json.encoder import encode_basestring_ascii as quoted

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")


def text(said):
    return '"result":{"content":[{"type":"text","text":%s}],"isError":false}' % quoted(said)


def call(name, arguments):
    if name == "blob":
        return text("x" * arguments["bytes"])
    if name == "whoami":
        who = {"pid": os.getpid(), "cwd": os.getcwd(), "env": os.environ.get(arguments.get("env", ""))}
        return text(json.dumps(who))
    return text(arguments.get("text", name))


def other(method, params, options):
    if method == "initialize":
        time.sleep(options.slow_start)
        asked = params.get("protocolVersion")
        version = asked if asked in VERSIONS else VERSIONS[-1]
        who = {"name": "echo", "version": "1"}
        return '"result":' + json.dumps(
            {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": who}
        )
    if method == "tools/list":
        names = ["echo", "blob", "whoami", *(f"extra_{at}" for at in range(options.tools))]
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        tools = [{"name": name, "description": f"Tool {name}.", "inputSchema": schema} for name in names]
        return '"result":' + json.dumps({"tools": tools})
    return '"result":{}' if method == "ping" else '"error":{"code":-32601,"message":"no such method"}'


parser = argparse.ArgumentParser()
parser.add_argument("--tools", type=int, default=0)
parser.add_argument("--slow-start", type=float, default=0)
options = parser.parse_args()
rest = b""
while data := os.read(0, 1 << 18):
    *complete, rest = (rest + data).split(b"\n")
    out = []
    for message in map(json.loads, filter(None, complete)):
        if (id_ := message.get("id")) is not None:
            params = message.get("params") or {}
            if message["method"] == "tools/call":
                body = call(params["name"], params.get("arguments") or {})
            else:
                body = other(message["method"], params, options)
            out.append('{"jsonrpc":"2.0","id":%s,%s}\n' % (json.dumps(id_), body))
    data = memoryview("".join(out).encode())
    while data:
        data = data[os.write(1, data) :]
