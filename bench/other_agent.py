"""Agents that a bench drives by hand, and one that calls another server meanwhile.

Owns an agent on the socket, an agent at the HTTP door, and `OtherAgent`: it calls the server `echo` in a
process of its own, and tells its longest wait. `python -m bench.other_agent PLACE` is that process.

Knows nothing of: what a bench measures.
"""

import http.client
import json
import selectors
import socket
import subprocess
import sys
import time
from typing import Any, Final

from bench.revisions import HERE
from carpool_protocol.bootstrap import paths
from carpool_protocol.wire.lines import LineBuffer

LIMIT_S: Final = 120.0
PAUSE_S: Final = 0.01
MAX_LINE_BYTES: Final = 256 * 1024 * 1024
GREETING: Final = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"growth","version":"1"}}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
)
LIST: Final = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n'


class Agent:
    """One agent on the socket. It keeps the last answer and counts what it was told."""

    def __init__(self, directory: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(paths.agents_socket(directory))
        self.told = 0
        """The number of `tools/list_changed`."""
        self._lines = LineBuffer(MAX_LINE_BYTES)

    def lines(self) -> list[bytes]:
        """The whole lines of one read."""
        data = self.sock.recv(1 << 20)
        if not data:
            raise SystemExit("bench: an agent was disconnected")
        lines = [line for line in self._lines.feed(data) if isinstance(line, bytes)]
        self.told += sum(b'"notifications/tools/list_changed"' in line for line in lines)
        return lines

    def ask(self, request: bytes, id_: int) -> bytes:
        """Send a request and wait for its answer."""
        self.sock.sendall(request)
        head = b'"id":%d,' % id_
        while True:
            for line in self.lines():
                if head in line[:64]:
                    return line

    def call(self, tool: str, path: str = "") -> float:
        """Call a tool; return how long that took."""
        began_s = time.perf_counter()
        params = {"name": tool, "arguments": {"path": path}}
        answer = self.ask(
            json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}).encode()
            + b"\n",
            2,
        )
        if b"done" not in answer:
            raise SystemExit(f"bench: {answer[:300]!r}")
        return time.perf_counter() - began_s


class DoorAgent:
    """An agent at the HTTP door."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        info = {"name": "long-line", "version": "1"}
        about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        self._ask("initialize", about)

    def call(self, tool: str, path: str = "") -> None:
        """Call a tool."""
        if b"done" not in self._ask("tools/call", {"name": tool, "arguments": {"path": path}}):
            raise SystemExit(f"bench: {tool} did not answer")

    def _ask(self, method: str, params: dict[str, Any]) -> bytes:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        self._connection.request("POST", "/mcp", body, self._headers)
        response = self._connection.getresponse()
        if session := response.headers.get("Mcp-Session-Id"):
            self._headers["Mcp-Session-Id"] = session
        return response.read()


AnyAgent = Agent | DoorAgent


def attached(place: str) -> AnyAgent:
    """An agent at this place: the number of a port, or a runtime directory."""
    if place.isdigit():
        return DoorAgent(int(place))
    agent = Agent(place)
    agent.ask(GREETING, 0)
    agent.ask(LIST, 1)
    return agent


class OtherAgent:
    """An agent in a process of its own that calls `echo` every `PAUSE_S`, until `worst_s`."""

    def __init__(self, place: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.other_agent", place],
            cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def worst_s(self) -> float:
        """End the calls; return the longest wait."""
        said, _ = self._process.communicate("stop\n", timeout=LIMIT_S)
        worst_s: float = json.loads(said)["worst_s"]
        return worst_s

    def kill(self) -> None:
        """End the calls at once."""
        self._process.kill()
        self._process.wait()


def probe(place: str) -> None:
    """Call `echo` every `PAUSE_S` until a line comes on stdin; print the longest wait."""
    agent = attached(place)
    agent.call("echo__t0")
    print("ready", flush=True)
    worst_s = 0.0
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not selector.select(PAUSE_S):
            began_s = time.perf_counter()
            agent.call("echo__t0")
            worst_s = max(worst_s, time.perf_counter() - began_s)
    print(json.dumps({"worst_s": worst_s}), flush=True)


if __name__ == "__main__":
    probe(sys.argv[1])
