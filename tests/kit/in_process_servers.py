"""Servers of a carpool in one thread: the other ends of real pipes, and two programs that behave well.

Knows nothing of: shells, agents; who is hostile.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from carpool_protocol.ids import InstanceId
from carpool_supervisor.spawn.request import Pipes, close_all, make_pipes

Json = dict[str, Any]
READ_BYTES = 1 << 16


class InProcessServer:
    """A server's end of its pipes. `take` gets each message and gives what it says; it may be set anew."""

    def __init__(self, fds: tuple[int, int, int], take: "Callable[[InProcessServer, Json], None]") -> None:
        self.fds = fds
        self.take = take
        self.heard: list[Json] = []
        self._rest = b""
        self._unsaid = b""
        self.ended = False

    def say(self, message: Json) -> None:
        """A message on stdout."""
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Bytes on stdout, when the pipe takes them."""
        self._unsaid += data

    def complain(self, data: bytes) -> None:
        """Bytes on stderr."""
        with suppress(BlockingIOError):
            os.write(self.fds[2], data)

    def run(self) -> bool:
        """Whether anything was done."""
        if self.ended:
            return False
        done = False
        with suppress(BlockingIOError):
            while data := os.read(self.fds[0], READ_BYTES):
                done = True
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    assert not any(byte < 0x20 for byte in line), "a control byte reached a server"
                    with suppress(RecursionError):  # legal, and deeper than this server reads
                        message = loads(line)
                        self.heard.append(message)
                        self.take(self, message)
        with suppress(BlockingIOError, BrokenPipeError):
            while self._unsaid:
                self._unsaid = self._unsaid[os.write(self.fds[1], self._unsaid) :]
                done = True
        return done

    def end(self) -> None:
        self.ended = True
        close_all(self.fds)


def loads(line: bytes) -> Any:
    """What another reader than ours makes of it. (Python reads no integer of more than 4,300 digits.)"""
    return json.loads(line.decode(), parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)


Program = Callable[[InProcessServer, Json], None]


class InProcessServers:
    """The spawner, as the supervisor's shell knows it."""

    pid = 0

    def __init__(self, programs: Mapping[str, Program], **heard: Callable[..., None]) -> None:
        self._programs = programs
        self._heard = heard
        self.running: dict[InstanceId, InProcessServer] = {}
        self._todo: deque[tuple[str, InstanceId, int]] = deque()

    def spawn(self, instance: InstanceId, argv: list[str], _env: dict[str, str], _cwd: str) -> Pipes:
        theirs, pipes = make_pipes()
        for fd in theirs:
            os.set_blocking(fd, False)
        self.running[instance] = InProcessServer(theirs, self._programs[argv[-1]])
        self._todo.append(("on_spawned", instance, 4000 + instance))
        return pipes

    def leaders(self) -> dict[str, int]:
        """None: they are no processes, so nothing that they start could be adopted."""
        return {}

    def signal(self, instance: InstanceId, _name: str) -> None:
        self.exit(instance, -9)

    def exit(self, instance: InstanceId, status: int = 0) -> None:
        process = self.running.pop(instance, None)
        if process is not None:
            process.end()
            self._todo.append(("on_exited", instance, status))

    def run(self) -> bool:
        done = bool(self._todo)
        while self._todo:
            what, instance, value = self._todo.popleft()
            self._heard[what](instance, value)
        for instance, process in list(self.running.items()):
            done |= process.run()
            if not _is_open(process.fds[0]):
                self.exit(instance)
        return done


def _is_open(fd: int) -> bool:
    """Whether somebody can still write to this end."""
    try:
        return os.read(fd, 1) != b""
    except BlockingIOError:
        return True


def tool(name: str) -> Json:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": {"type": "object"}}


def _text_of(params: Json) -> str:
    arguments = params.get("arguments")
    return str(arguments.get("text") if isinstance(arguments, dict) else arguments)


def echo(process: InProcessServer, message: Json) -> None:
    """A server of the handshake era with the tools `echo`, and `never`, which does not answer."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message or method is None:
        return
    result: Json
    match method:
        case "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}, "logging": {}, "completions": {}}
                | {family: {"listChanged": True} for family in ("prompts", "resources")},
                "serverInfo": {"name": "echo", "version": "1"},
            }
        case "tools/list":
            result = {"tools": [tool("echo"), tool("never")]}
        case "prompts/list":
            result = {"prompts": [{"name": "tell"}]}
        case "resources/list":
            result = {"resources": [{"uri": "x://y", "name": "y"}]}
        case "resources/templates/list":
            result = {"resourceTemplates": [{"uriTemplate": "x://{part}", "name": "parts"}]}
        case "tools/call" if params["name"] == "never":
            return
        case "tools/call":
            result = {"content": [{"type": "text", "text": _text_of(params)}]}
        case "ping" | "logging/setLevel":
            result = {}
        case _:
            process.say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
            return
    process.say({"id": message["id"], "result": result})


def modern(process: InProcessServer, message: Json) -> None:
    """The same in the stateless era."""
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message or method is None:
        return
    about = {"resultType": "complete", "ttlMs": 1000, "cacheScope": "public"}
    match method:
        case "initialize":
            process.say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
        case "server/discover":
            result = {
                **about,
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "modern", "version": "1"},
            }
            process.say({"id": message["id"], "result": result})
        case "tools/list":
            process.say({"id": message["id"], "result": {**about, "tools": [tool("echo"), tool("never")]}})
        case "tools/call" if params["name"] == "never":
            pass
        case "tools/call":
            content = [{"type": "text", "text": _text_of(params)}]
            process.say({"id": message["id"], "result": {"resultType": "complete", "content": content}})
        case "subscriptions/listen":
            pass
        case _:
            process.say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
