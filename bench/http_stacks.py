"""Which HTTP stack the door stands on: `python -m bench.http_stacks [STACK…]`; the table of decision 0015.

Each stack answers a POST of a small JSON-RPC request with as much JSON, alone in a process. Told of each:
requests per second and CPU µs per request at 1 and at 64 keep-alive connections, resident memory with none
and with 1,000 open connections, and whether a client that hangs up on a waiting POST is noticed. Needs
the stacks installed: `pip install uvicorn httptools uvloop granian hypercorn aiohttp`.

The clients are one process of raw asyncio, the same for all; it costs more than the faster servers do, so
requests per second are a floor and CPU per request is the figure to compare.
"""

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

SECONDS = float(os.environ.get("SECONDS", "3"))
BODY = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}'
END = b'"end":1}'
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]},' + END
gone = 0
"""Clients that hung up on `/hang`, as this server noticed."""


# --- the servers ----------------------------------------------------------------------------------------


async def application(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI arm."""
    global gone
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/hang":
        while (await receive())["type"] != "http.disconnect":
            pass
        gone += 1
        return
    answer = b"%d" % gone if scope["path"] == "/gone" else ANSWER
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def _uvicorn(loop: str, http: str) -> Callable[[int], None]:
    def serve(port: int) -> None:
        import uvicorn

        config = uvicorn.Config(
            application, port=port, loop=loop, http=http, log_level="error", access_log=False
        )
        uvicorn.Server(config).run()

    return serve


def _hypercorn(port: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(serve(application, config))


def _granian(port: int) -> None:
    from granian import Granian
    from granian.constants import Interfaces

    Granian("bench.http_stacks:application", port=port, interface=Interfaces.ASGI, log_enabled=False).serve()


def _aiohttp(port: int) -> None:
    from aiohttp import web

    async def answer(request: Any) -> Any:
        await request.read()
        return web.Response(body=ANSWER, content_type="application/json")

    async def hang(request: Any) -> Any:
        global gone
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            gone += 1
            raise

    async def told(request: Any) -> Any:
        return web.Response(text=str(gone))

    app = web.Application()
    app.router.add_post("/", answer)
    app.router.add_post("/hang", hang)
    app.router.add_get("/gone", told)
    web.run_app(app, port=port, host="127.0.0.1", access_log=None, print=None, handler_cancellation=True)


class _Raw(asyncio.Protocol):
    """httptools under a protocol of our own, with the duties a real one has (a deadline, a byte count)."""

    def connection_made(self, transport: Any) -> None:
        import httptools

        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.headers: dict[bytes, bytes] = {}
        self.body: list[bytes] = []
        self.url = b""
        self.hanging = False

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url = url
        self.deadline = asyncio.get_running_loop().time() + 30

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        b"".join(self.body)
        self.body.clear()
        self.headers = {}
        if self.url == b"/hang":
            self.hanging = True
            return
        answer = b"%d" % gone if self.url == b"/gone" else ANSWER
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
            answer
        )
        self.transport.write(head + answer)

    def connection_lost(self, exc: Exception | None) -> None:
        global gone
        gone += self.hanging


def _protocol(uv: bool) -> Callable[[int], None]:
    def serve(port: int) -> None:
        async def run() -> None:
            server = await asyncio.get_running_loop().create_server(_Raw, "127.0.0.1", port, backlog=2048)
            await server.serve_forever()

        if uv:
            import uvloop

            uvloop.run(run())
        else:
            asyncio.run(run())

    return serve


STACKS: dict[str, Callable[[int], None]] = {
    "httptools, own protocol, asyncio": _protocol(False),
    "httptools, own protocol, uvloop": _protocol(True),
    "uvicorn, httptools, asyncio": _uvicorn("asyncio", "httptools"),
    "uvicorn, httptools, uvloop": _uvicorn("uvloop", "httptools"),
    "uvicorn, h11, asyncio": _uvicorn("asyncio", "h11"),
    "aiohttp": _aiohttp,
    "granian (Rust), ASGI": _granian,
    "hypercorn, h11, asyncio": _hypercorn,
}


# --- the clients ----------------------------------------------------------------------------------------


class _Client(asyncio.Protocol):
    def __init__(self, request: bytes, until: float) -> None:
        self.request, self.until = request, until
        self.count = 0
        self.tail = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.tail = (self.tail + data)[-len(END) :]
        if self.tail != END:
            return
        self.tail = b""
        self.count += 1
        if time.monotonic() < self.until:
            self.transport.write(self.request)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


def _load(port: int, clients: int, pipe: Any) -> None:
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    head += (
        "Accept: application/json, text/event-stream\r\nMcp-Session-Id: 0123456789abcdef0123456789abcdef\r\n"
    )
    head += f"MCP-Protocol-Version: 2025-11-25\r\nContent-Length: {len(BODY)}\r\n\r\n"

    async def run() -> int:
        loop = asyncio.get_running_loop()
        until = time.monotonic() + SECONDS
        made = [
            (await loop.create_connection(lambda: _Client(head.encode() + BODY, until), "127.0.0.1", port))[1]
            for _ in range(clients)
        ]
        await asyncio.gather(*(each.done for each in made))
        return sum(each.count for each in made)

    pipe.send(asyncio.run(run()))


def _ask(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(request)
        sock.settimeout(2)
        try:
            return sock.recv(4096)
        except TimeoutError:
            return b""


def _family(pid: int) -> list[psutil.Process]:
    top = psutil.Process(pid)
    return [top, *top.children(recursive=True)]


def _cpu(pid: int) -> float:
    return sum(each.cpu_times().user + each.cpu_times().system for each in _family(pid))


def _memory(pid: int) -> float:
    return sum(each.memory_info().rss for each in _family(pid)) / 2**20


def measure(name: str) -> dict[str, Any]:
    """One stack in a process of its own, under load. Figures by name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "bench.http_stacks", "--serve", name, str(port)])
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < deadline, f"{name} does not come up"
                time.sleep(0.05)
        found: dict[str, Any] = {"stack": name, "rss_mib": round(_memory(server.pid), 1)}
        for clients in (1, 64):
            ours, its = multiprocessing.Pipe()
            before = _cpu(server.pid)
            load = multiprocessing.Process(target=_load, args=(port, clients, its))
            load.start()
            count = ours.recv()
            load.join()
            found[f"per_s_{clients}"] = round(count / SECONDS)
            found[f"cpu_us_{clients}"] = round((_cpu(server.pid) - before) / count * 1e6)
        found["hang_up"] = _hang_up(port)
        held = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(1000)]
        for each in held:
            each.sendall(b"GET /gone HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answered = sum(1 for each in held if each.recv(1000))
        found["rss_1000_mib"] = round(_memory(server.pid), 1) if answered == 1000 else f"{answered} answered"
        for each in held:
            each.close()
        return found
    finally:
        server.terminate()
        server.wait(10)


def _hang_up(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 5) as sock:
        sock.sendall(b"POST /hang HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}")
        time.sleep(0.3)
    time.sleep(0.3)
    return _ask(port, b"GET /gone HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").rstrip().endswith(b"1")


def main(arguments: list[str]) -> None:
    """Measure the named stacks, or all; one JSON line each."""
    if arguments[:1] == ["--serve"]:
        STACKS[arguments[1]](int(arguments[2]))
        return
    for name in arguments or STACKS:
        print(json.dumps(measure(name)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
