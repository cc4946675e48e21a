"""Whatever a client posts: each request gets one answer that is HTTP and JSON, and nobody else notices.

Level: the door's core before a whole carpool (`tests.kit.in_process_daemon`), each through the other's real
bytes. What comes before a request is whole, bytes cut anywhere, is in
`tests/client/http/test_hostile_clients.py`.
"""

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

from carpool.http.core.access import AccessRules, hash_of
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
    LogsFound,
    ReadLog,
    Refuse,
    RequestsHeld,
    Respond,
    SendToBroker,
    WriteEvents,
)
from tests.behaviours import behaviour
from tests.fuzz.test_fuzz_agents import EVERYTHING_ENDS_S, PROGRAMS, SERVERS, greeted
from tests.kit import hostile_agents
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import NAMES, fresh_ids, mutated, one_of, text
from tests.kit.in_process_daemon import InProcessDaemon, in_process_daemon
from tests.kit.in_process_servers import loads

BOTH: Final = "application/json, text/event-stream"
VERSIONS: Final = ("2025-03-26", "2025-11-25", "2026-07-28", "1999-01-01", "", "\xff")
PATHS: Final = ("/mcp",) * 8 + (
    *(
        "/mcp/s/good",
        "/mcp/s/nope",
        "/mcp/p/reader",
        "/mcp/tools",
        "/sse",
        "/messages",
        "/health",
        "/mcp/s/%00",
    ),
    *("/", "", "*", "/mcp/s/a%2fb", "/mcp/s/" + "a" * 300),
)
STATUSES: Final = frozenset(
    {200, 202, 400, 401, 403, 404, 405, 406, 409, 413, 415, 421, 429, 499, 500, 502, 503, 504}
)


class Doorway:
    """The door's core, wired to a whole carpool, and what its clients got."""

    def __init__(self, one: InProcessDaemon, rules: HttpRules) -> None:
        self.one = one
        self.core = HttpCore(rules, AccessRules(), heir_s=1e9)
        self.line = one.connect()
        self.line.send(hostile_agents.door_attach() + b"\n")
        self.line.lines.clear()
        self.answers: dict[int, list[Respond]] = {}
        self.streams: dict[int, bytes] = {}
        self.ended: Counter[int] = Counter()
        self.take(self.core.broker_connected(one.now))

    def take(self, effects: list[Effect] | None) -> None:  # noqa: C901 - one case for each effect
        """Perform them, and what comes of them."""
        assert effects is not None, "the broker wrote a line that is no frame"
        self.core.check()
        for effect in effects:
            match effect:
                case SendToBroker(line):
                    self.line.send(line)
                case Refuse(answer=answer):
                    self.take([] if answer is None else [answer])
                case Respond(x):
                    assert x not in self.streams
                    self.answers.setdefault(x, []).append(effect)
                case BeginEvents(x):
                    assert x not in self.answers
                    assert x not in self.streams
                    self.streams[x] = b""
                case WriteEvents(x, data):
                    assert not self.ended[x]
                    self.streams[x] += data
                case ContinueEvents(x):
                    self.take(self.core.continue_events(x))
                case ContinueAnswers():
                    self.take(self.core.continue_answers())
                case EndEvents(x):
                    self.ended[x] += 1
                case HoldRequest() | RequestsHeld():
                    raise AssertionError("this door was not told to hold requests")
                case ReadLog(x):
                    self.take(self.core.log_read(x, LogsFound([], None)))
                case AskNodes():
                    self.take(self.core.nodes_told(effect, []))
        self.hear()

    def hear(self) -> None:
        """What the broker has said."""
        while self.line.lines:
            self.take(self.core.line_received(self.line.lines.pop(0), self.one.now))
        assert not self.line.ended, "the broker dropped its door"

    def wait(self, seconds: float) -> None:
        self.one.wait(seconds)
        self.hear()
        self.take(self.core.tick(self.one.now))

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
        """A request; its number."""
        target, _, query = path.partition("?")
        x = self.core.next_number()
        named = {"host": "localhost", **headers}
        self.take(
            self.core.request_received(x, HttpRequest(method, target, query, named, body), self.one.now)
        )
        return x


def headers(rng: Random, sessions: list[str], body: bytes) -> dict[str, str]:
    """Mostly those that this body wants."""
    told = {"accept": BOTH, "content-type": "application/json"}
    if rng.random() < 0.5:
        told["mcp-session-id"] = rng.choice(sessions) if rng.random() < 0.8 else rng.choice(NAMES)
    if b"2026-07-28" in body and rng.random() < 0.9:
        told["mcp-protocol-version"] = "2026-07-28"
        try:
            said = json.loads(body)
            told["mcp-method"] = str(said["method"])
            params = said["params"]
            told["mcp-name"] = str(params.get("name", params.get("uri", params.get("taskId", ""))))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
    elif rng.random() < 0.3:
        told["mcp-protocol-version"] = rng.choice(VERSIONS)
    if rng.random() < 0.1:
        name = rng.choice(
            ("accept", "content-type", "host", "origin", "authorization", "last-event-id", "mcp-name")
        )
        told[name] = rng.choice(
            (*NAMES, "1-2", "Bearer x", "=?base64?//8=?=", "=?base64?%?=", "a" * 9000, "text/*;q=0")
        )
    return {name: it.encode("latin-1", "replace").decode("latin-1") for name, it in told.items()}


def posted(rng: Random, house: Path) -> None:
    """Clients of one door, of which one is well-behaved and comes over the socket."""
    rules = HttpRules(stateless=rng.random() < 0.2, json_response=rng.random() < 0.3)
    with in_process_daemon(house, SERVERS, PROGRAMS) as one:
        good = greeted(one)
        door = Doorway(one, rules)
        fresh = fresh_ids()
        sessions, ids = ["nobody"], list[bytes]()
        asked: dict[int, bytes] = {}
        for _ in range(rng.randrange(2, 14)):
            path = rng.choice(PATHS)
            method = (
                "POST" if rng.random() < 0.85 else rng.choice(("GET", "DELETE", "PUT", "HEAD", "OPTIONS"))
            )
            said = hostile_agents.line(rng, fresh, ids)
            body = said.line
            if rng.random() < 0.3:
                version = text(rng.choice(("2025-11-25", "2025-03-26", "2025-06-18")))
                params = b'{"protocolVersion":%b,"capabilities":{},"clientInfo":{"name":"x"}}' % version
                body = b'{"jsonrpc":"2.0","id":"hello","method":"initialize","params":%b}' % params
            if rng.random() < 0.05:
                body = mutated(rng, body)
            if rng.random() < 0.2:
                body = body.replace(b",", b",\r\n")
            x = door.ask(method, path, headers(rng, sessions, body), body)
            asked[x] = body
            for answer in door.answers.get(x, []):
                sessions += [value for name, value in answer.headers if name.lower() == "mcp-session-id"]
            if rng.random() < 0.1:
                door.take(door.core.client_gone(rng.choice(list(asked)), one.now))
            good.echo("undisturbed")
        for _ in range(20):
            door.wait(EVERYTHING_ENDS_S)
        good.echo("still undisturbed")
        for x in asked:
            assert len(door.answers.get(x, [])) <= 1
            assert door.ended[x] <= 1
        for answers in door.answers.values():
            for answer in answers:
                well_formed(answer)
        for data in door.streams.values():
            events(data)
        door.line.close()
        one.wait(EVERYTHING_ENDS_S)
        assert list(one.broker.core.sessions) == ["s1"]


def well_formed(answer: Respond) -> None:
    assert answer.status in STATUSES, answer
    for name, value in answer.headers:
        assert f"{name}{value}".isprintable(), f"a header of {answer!r}"
    if answer.body and answer.media == "application/json":
        readable(answer.body)


def readable(body: bytes) -> Any:
    try:
        return loads(body)
    except RecursionError:  # legal, and deeper than that reader goes
        return None


def events(data: bytes) -> None:
    """Server-sent events, each line of which is one of a kind, and whose data is JSON or nothing."""
    for line in data.split(b"\n"):
        assert b"\r" not in line, line
        field, _, value = line.partition(b": ")
        assert field in {b"", b"event", b"id", b"data", b":", b"retry"} or line.startswith(b":"), line
        if field == b"data" and value[:1] in {b"{", b"["}:
            readable(value)


@behaviour("bad-input:http")
def test_whatever_a_client_posts_it_is_answered_once_and_nobody_notices(house: Path) -> None:
    fuzz(lambda rng: posted(rng, house), examples=8, seeds=40)


def test_whatever_stands_in_a_header_who_comes_in_is_decided() -> None:
    """No header raises: not the token, the host, the origin."""

    def play(rng: Random) -> None:
        gate = AccessRules(tokens={"a": hash_of("right")}) if rng.random() < 0.5 else AccessRules()
        value = one_of(rng, b"localhost", b"Bearer right", b"http://localhost").decode("latin-1")
        gate.host_allowed(value)
        gate.origin_allowed(value)
        gate.origin_allowed(None, value)
        gate.principal(value)

    fuzz(play, examples=20, seeds=500)
