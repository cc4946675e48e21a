"""The door's core between a client and a broker that a test plays. Each step ends with the core's check."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from carpool.http.core.access import AccessRules
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import (
    AskNodes,
    BeginEvents,
    ContinueAnswers,
    ContinueEvents,
    Effect,
    EndEvents,
    HoldRequest,
    HttpRequest,
    HttpRules,
    ReadLog,
    Refuse,
    RequestsHeld,
    Respond,
    SendToBroker,
    WriteEvents,
)
from carpool.http.core.page_codes import PageCodes
from carpool.http.core.web_page import WebFile
from carpool_protocol.carrier.streams import (
    CONTROL,
    ControlMessage,
    StreamOpened,
    control_line,
    frame_line,
    read_control,
    split_frame,
)

Json = dict[str, Any]
BOTH = "application/json, text/event-stream"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class DoorCoreRig:
    """One core. `told` holds what it says to the broker since the last look: (stream, message or word, X)."""

    def __init__(
        self,
        rules: HttpRules | None = None,
        gate: AccessRules | None = None,
        *,
        linked: bool = True,
        web_files: Mapping[str, WebFile] | None = None,
        cpu_s: Callable[[], float] | None = None,
        page_codes: PageCodes | None = None,
    ) -> None:
        self.core = HttpCore(
            rules or HttpRules(),
            gate or AccessRules(),
            web_files=web_files,
            cpu_s=cpu_s or (lambda: 0.0),
            page_codes=page_codes,
        )
        self.now = 100.0
        self.told: list[tuple[int, Json | ControlMessage, int]] = []
        self.answers: dict[int, Respond] = {}
        self.streams: dict[int, list[WriteEvents]] = {}
        self.ended: list[int] = []
        self.turns: list[int] = []
        """The streams of events that go on at the next `continue_turns`."""
        self.held: dict[int, bytes] = {}
        """Bodies of the HTTP requests that are held for the next door."""
        self.all_held = False
        self.refused: list[str] = []
        """The reasons for which clients were refused."""
        self.logs: list[ReadLog] = []
        self.node_questions: list[AskNodes] = []
        if linked:
            self.take(self.core.broker_connected(self.now))

    def take(self, effects: list[Effect] | None) -> None:
        assert effects is not None, "the core refused a frame"
        for effect in effects:
            if isinstance(effect, Refuse):
                self._note_refused(effect)
                continue
            match effect:
                case SendToBroker(line):
                    self._note_told(line)
                case Respond():
                    assert effect.x not in self.answers, "a request is answered once"
                    assert effect.x not in self.streams, "a stream is not answered as well"
                    self.answers[effect.x] = effect
                case BeginEvents(x):
                    assert x not in self.streams
                    self.streams[x] = []
                case WriteEvents(x):
                    assert x not in self.ended, "nothing is written after the end"
                    self.streams[x].append(effect)
                case ContinueEvents(x):
                    self.turns.append(x)
                case EndEvents(x):
                    assert x in self.streams
                    self.ended.append(x)
                case HoldRequest(x, body):
                    assert x not in {*self.answers, *self.streams}, "what was answered is not held"
                    self.held[x] = body
                case RequestsHeld() | ContinueAnswers():  # a test calls `continue_answers` itself
                    self.all_held = self.all_held or isinstance(effect, RequestsHeld)
                case ReadLog() | AskNodes():
                    self._note_question(effect)
        self.core.check()

    def _note_question(self, effect: ReadLog | AskNodes) -> None:
        if isinstance(effect, ReadLog):
            self.logs.append(effect)
        else:
            self.node_questions.append(effect)

    def _note_refused(self, effect: Refuse) -> None:
        self.refused.append(effect.why)
        self.take([] if effect.answer is None else [effect.answer])

    def _note_told(self, line: bytes) -> None:
        parts = split_frame(line.removesuffix(b"\n"))
        assert parts is not None
        s, message, x = parts
        word = read_control(message) if x == CONTROL else None
        self.told.append((s, word if word is not None else json.loads(message), x))

    def continue_turns(self) -> None:
        """Others have had their turn: all streams go on whose clients have room."""
        while self.turns:
            self.take(self.core.continue_events(self.turns.pop(0)))

    # --- the client ---

    def send(self, method: str, path: str = "/mcp", /, body: Any = b"", **headers: Any) -> int:
        """A request; its number."""
        x = self.core.next_number()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        target, _, query = path.partition("?")
        request = HttpRequest(method, target, query, {"host": "127.0.0.1:8808", **named}, body)
        self.take(self.core.request_received(x, request, self.now))
        return x

    def post(self, message: Json | list[Json] | bytes, path: str = "/mcp", **headers: str) -> int:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return self.send(
            "POST", path, body, **{"accept": BOTH, "content_type": "application/json", **headers}
        )

    def get(self, session: str, path: str = "/mcp", **headers: str) -> int:
        return self.send("GET", path, **{"accept": "text/event-stream", "mcp_session_id": session, **headers})

    def gone(self, x: int) -> None:
        self.take(self.core.client_gone(x, self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.core.tick(self.now))

    def initialized(
        self, version: str = "2025-11-25", session: str = "sid-1", **headers: str
    ) -> tuple[str, int]:
        """A session that is open: its id and its stream. What was told before is forgotten."""
        self.told.clear()
        x = self.post(request(1, "initialize", protocolVersion=version), **headers)
        s = self.word()[0]
        self.heard("initialize")
        self.say(s, StreamOpened(session))
        self.answer(s, x, 1, protocolVersion=version)
        return session, s

    # --- the broker ---

    def word(self) -> tuple[int, ControlMessage]:
        """The next thing told is this word about a stream."""
        s, word, x = self.told.pop(0)
        assert x == CONTROL, word
        assert not isinstance(word, dict)
        return s, word

    def heard(self, method: str | None = None) -> tuple[int, Json, int]:
        """The next thing told is this message: stream, message and exchange."""
        s, message, x = self.told.pop(0)
        assert isinstance(message, dict), message
        assert method is None or message.get("method") == method, message
        return s, message, x

    def say(self, s: int, word: ControlMessage) -> None:
        self.frame(control_line(s, word))

    def frame(self, line: bytes) -> None:
        self.take(self.core.line_received(line.removesuffix(b"\n"), self.now))

    def tell(self, s: int, message: Json, x: int = 0) -> None:
        self.frame(frame_line(s, json.dumps(message).encode(), x))

    def answer(self, s: int, x: int, ident: Any = 1, /, **result: Any) -> None:
        self.tell(s, {"jsonrpc": "2.0", "id": ident, "result": result}, x)

    def error(self, s: int, x: int, code: int, ident: Any = 1) -> None:
        self.tell(s, {"jsonrpc": "2.0", "id": ident, "error": {"code": code, "message": "m"}}, x)

    # --- looking ---

    def status(self, x: int) -> int:
        return self.answers[x].status

    def body(self, x: int) -> Any:
        return json.loads(self.answers[x].body)

    def code(self, x: int) -> int:
        found = self.body(x)["error"]["code"]
        assert isinstance(found, int)
        return found

    def header(self, x: int, name: str) -> str | None:
        return dict(self.answers[x].headers).get(name)

    def events(self, x: int) -> list[Json]:
        """The messages of a stream of events, without comments and priming events."""
        texts = [write.data.decode() for write in self.streams[x]]
        lines = [line for text in texts for line in text.split("\n") if line.startswith("data: {")]
        return [json.loads(line[6:]) for line in lines]

    def ids(self, x: int) -> list[str]:
        texts = [write.data.decode() for write in self.streams[x]]
        return [line[4:] for text in texts for line in text.split("\n") if line.startswith("id: ")]


def request(ident: Any, method: str, /, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": ident, "method": method, "params": params}


def notification(method: str, /, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def modern(ident: Any, method: str, /, **params: Any) -> Json:
    return request(ident, method, _meta=META, **params)


def modern_headers(method: str, name: str | None = None) -> dict[str, str]:
    named = {} if name is None else {"mcp_name": name}
    return {"mcp_protocol_version": "2026-07-28", "mcp_method": method, **named}
