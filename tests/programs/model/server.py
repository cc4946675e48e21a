"""The scripted model: an HTTP server on loopback that answers as a script says.

Each turn of a program's agent loop gets the next `Turn` of the script. Its hooks run before the answer or
while its calls run. Every request is recorded. After the script each turn is answered "done".

Knows nothing of: the wire form of an API, programs.
"""

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from tests.programs.model.chat import ChatCompletions
from tests.programs.model.deferred_tools import search_for
from tests.programs.model.gemini import Gemini
from tests.programs.model.messages import Messages
from tests.programs.model.requests import (
    Answer,
    Api,
    ModelReply,
    ModelRequest,
    OfferedTool,
    ToolCall,
    offered_name,
    offers_tools,
)
from tests.programs.model.responses import Responses
from tests.programs.script import Hook, Json, Script, ScriptedCall, Turn

APIS: Final[Mapping[str, Api]] = {
    "chat": ChatCompletions(),
    "responses": Responses(),
    "messages": Messages(),
    "gemini": Gemini(),
}
_MODELS: Final = {
    "object": "list",
    "data": [{"id": "scripted", "object": "model", "created": 0, "owned_by": "carpool"}],
}
_GEMINI_MODELS: Final = {
    "models": [{"name": "models/scripted", "supportedGenerationMethods": ["generateContent"]}]
}
_POLL_S: Final = 0.02


class ScriptedModel:
    """A model that answers from `script` on the socket `listener`, which is closed at the end.

    A call whose tool is not offered is left out of the answer and stands in `ModelRequest.missing`. The model
    searches for a deferred tool before it calls it, within the same turn: the request after the search is in
    `requests` and not in `turns`.
    """

    def __init__(
        self,
        script: Script,
        listener: socket.socket,
        *,
        is_turn: Callable[[ModelRequest], bool] = offers_tools,
    ) -> None:
        host, port = listener.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        self.requests: list[ModelRequest] = []
        self.turns: list[ModelRequest] = []
        self.failures: list[BaseException] = []
        self._script = tuple(script)
        self._is_turn = is_turn
        self._lock = threading.Lock()
        self._issued: frozenset[str] = frozenset()
        self._searching = False
        self._searched: set[str] = set()
        self._hooks: list[threading.Thread] = []
        self._server = _Server(listener, self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="scripted model"
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close_connections()
        self._server.server_close()  # waits for the threads of connections
        for hook in self._hooks:
            hook.join()
        if self.failures and error is None:
            raise self.failures[0]

    def answer(self, request: ModelRequest) -> tuple[int, ModelReply, Hook | None]:
        """Answer one request: status, body, and what runs once the body is sent."""
        api = APIS.get(request.api)
        if api is None:
            with self._lock:
                self.requests.append(request)
            status, found = _other(request)
            return status, ModelReply("application/json", (json.dumps(found).encode(),)), None
        with self._lock:
            self._read(request, api)
            self.requests.append(request)
            if not self._is_turn(request):
                return 200, api.reply(request.path, request.body, Answer("ok")), None
            begins = not self._searching
            if begins:
                self.turns.append(request)
            number = len(self.turns) - 1
            scripted = number < len(self._script) and not self.failures
            turn = self._script[number] if scripted else Turn(text="done")
            calls, self.turns[-1].missing = _calls(turn, request.tools, number)
            searches = self._searches(calls, number)
            self._searching = bool(searches)
            self._issued = frozenset(call.id for call in searches or calls)
        if begins and turn.before is not None:
            self._run(turn.before)
        if searches:
            return 200, api.reply(request.path, request.body, Answer(calls=searches)), None
        text = turn.text
        if not calls and not text:
            missing = self.turns[-1].missing
            text = "".join(f"not offered: {call.server}/{call.tool}\n" for call in missing) or "done"
        reply = api.reply(request.path, request.body, Answer(text, calls))
        return 200, reply, None if turn.during is None else self._start_hook(turn.during)

    def _searches(self, calls: tuple[ToolCall, ...], number: int) -> tuple[ToolCall, ...]:
        """The searches for deferred tools among these calls; the model searches once for each tool."""
        wanted = [call.tool for call in calls if call.tool.deferred and call.tool.name not in self._searched]
        self._searched |= {tool.name for tool in wanted}
        return tuple(
            ToolCall(f"search_{number}_{at}", *search_for(tool))
            for at, tool in enumerate(dict.fromkeys(wanted))
        )

    def _read(self, request: ModelRequest, api: Api) -> None:
        reading = api.read(request.body, self._issued)
        request.tools, request.instructions, request.results = (
            reading.tools,
            reading.instructions,
            reading.results,
        )

    def _start_hook(self, hook: Hook) -> Hook:
        def start() -> None:
            thread = threading.Thread(target=self._run, args=(hook,), name="hook of a script")
            self._hooks.append(thread)
            thread.start()

        return start

    def _run(self, hook: Hook) -> None:
        try:
            hook()
        except BaseException as error:  # noqa: BLE001 - the test gets it at the end of the run
            self.failures.append(error)


def _calls(
    turn: Turn, tools: tuple[OfferedTool, ...], number: int
) -> tuple[tuple[ToolCall, ...], tuple[ScriptedCall, ...]]:
    """Sort the calls of a turn into those whose tool is offered and those whose tool is missing."""
    offered: list[ToolCall] = []
    missing: list[ScriptedCall] = []
    for at, call in enumerate(turn.calls):
        tool = offered_name(tools, call.server, call.tool) if call.name is None else _exact(tools, call.name)
        if tool is None:
            missing.append(call)
        else:
            offered.append(ToolCall(f"call_{number}_{at}", tool, call.arguments))
    return tuple(offered), tuple(missing)


def _exact(tools: tuple[OfferedTool, ...], name: str) -> OfferedTool:
    """A name that the script gives is sent as it is, offered or not."""
    same = (tool for tool in tools if name in (tool.name, tool.full_name))
    return next(same, OfferedTool(name))


def _api(method: str, path: str) -> str:
    route = urlsplit(path).path
    if method != "POST":
        return "other"
    if route.endswith("/chat/completions"):
        return "chat"
    if route.endswith("/responses"):
        return "responses"
    if route.endswith("/messages"):
        return "messages"
    return "gemini" if route.endswith((":generateContent", ":streamGenerateContent")) else "other"


def _other(request: ModelRequest) -> tuple[int, Json]:
    """Answer what a program asks beside turns: models, counts of tokens."""
    route = urlsplit(request.path).path
    if route.endswith("/count_tokens"):
        return 200, {"input_tokens": 10}
    if route.endswith(":countTokens"):
        return 200, {"totalTokens": 10}
    if route.endswith("/models"):
        return 200, dict(_GEMINI_MODELS if "/v1beta/" in route else _MODELS)
    return 404, {"error": {"type": "not_found_error", "message": f"the scripted model has no {route}"}}


class _Server(ThreadingMixIn, TCPServer):
    """Serves connections of a socket that listens already, each in a thread of its own."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, listener: socket.socket, model: ScriptedModel) -> None:
        super().__init__(listener.getsockname()[:2], _Connection, bind_and_activate=False)
        self.socket.close()  # the one that TCPServer made
        self.socket = listener
        self.model = model
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """End the connections that programs keep open."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the program has ended it
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A program that ends cuts its connections; any other fault is the test's to see."""
        error = sys.exception()
        if error is not None and not isinstance(error, ConnectionError):
            self.model.failures.append(error)


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def handle_method(self) -> None:
        body = self._body()
        if body is None:
            self._send(
                415,
                ModelReply(
                    "application/json", (b'{"error": {"message": "this encoding is not read here"}}',)
                ),
            )
            return
        request = ModelRequest(
            at=time.monotonic(),
            api=_api(self.command, self.path),
            method=self.command,
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=_json(body),
        )
        status, reply, then = self.server.model.answer(request)
        self._send(status, reply)
        if then is not None:
            then()

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = handle_method  # noqa: N815

    def _body(self) -> bytes | None:
        """Read the body of the request; None for an encoding that is not known here."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match self.headers.get("Content-Encoding", "identity").lower():
            case "identity":
                return body
            case "gzip":
                return gzip.decompress(body)
            case _:
                return None

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _send(self, status: int, reply: ModelReply) -> None:
        streamed = reply.content_type == "text/event-stream"
        self.send_response(status)
        self.send_header("Content-Type", reply.content_type)
        if streamed:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(sum(map(len, reply.chunks))))
        self.end_headers()
        if self.command == "HEAD":
            return
        for chunk in reply.chunks:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk) if streamed else chunk)
        if streamed:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """The requests are in `ScriptedModel.requests`."""


def _json(body: bytes) -> Json:
    """Read a JSON object; anything else is an empty one."""
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
