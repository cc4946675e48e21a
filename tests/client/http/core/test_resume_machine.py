"""Clients of both eras at a door whose broker dies at any moment: each call is run once and answered once."""

from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carpool_protocol.carrier.streams import (
    ClientAbsent,
    CloseStream,
    ControlMessage,
    ExchangeClientGone,
    ExchangeEnded,
    OpenStream,
    StreamOpened,
)
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, Json, modern, modern_headers, notification, request

Said = tuple[int, Json | ControlMessage, int]
CALL = "prompts/get"
PICK = st.integers(min_value=0, max_value=9)


class Record:
    """What outlives every broker: which calls are open at servers, and what was answered and not written."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self.open: dict[tuple[str, str], int] = {}
        """Session and name of the request: which call it is."""

    def asks(self, session: str, name: str, call: int, *, again: bool) -> None:
        if not (again and (session, name) in self.open):
            self.runs[call] += 1
            self.open[session, name] = call


class BrokerLife:
    """One life. Streams by number: the session's name, and what is open of it with its exchange."""

    def __init__(self, record: Record, life: int) -> None:
        self.record = record
        self.life = life
        self.names: dict[int, str] = {}
        self.shared: set[int] = set()
        self.open: dict[tuple[int, str], tuple[int, Json]] = {}
        self._left: dict[int, list[int]] = {}

    def hear(self, said: Said) -> list[tuple[int, Any, int]]:
        """What to say at once."""
        s, message, x = said
        if isinstance(message, OpenStream):
            resume = message.resume
            assert resume is None or resume.session
            name = resume.session if resume else f"s{self.life}-{s}"
            self.names[s] = name
            if message.kind == "shared":
                self.shared.add(s)
            self._left[s] = [resume.kept, resume.open] if resume else [0, 0]
            return [(s, StreamOpened(f"sid-{name}", name, "0.mac", "e"), 0)]
        if s not in self.names:
            return []
        if isinstance(message, ExchangeClientGone):
            if s in self.shared:
                for key in [
                    key for key, (its, _) in self.open.items() if key[0] == s and its == message.exchange
                ]:
                    self._forget(key)
            else:
                self.open = {
                    key: (0 if key[0] == s and its == message.exchange else its, each)
                    for key, (its, each) in self.open.items()
                }
            return []
        if isinstance(message, ClientAbsent):
            return []
        if isinstance(message, CloseStream):
            for key in [key for key in self.open if key[0] == s]:
                self._forget(key)
            del self.names[s]
            return []
        if isinstance(message, ClientAbsent):
            return []
        assert isinstance(message, dict)
        return self._message(s, message, x)

    def _message(self, s: int, message: Json, x: int) -> list[tuple[int, Any, int]]:
        left = self._left[s]
        if left[0]:
            left[0] -= 1
            assert message["method"] != CALL, "what may be run is never replayed"
            return []
        again = left[1] > 0
        left[1] -= again
        name = f"{message.get('id')}@{x if s in self.shared else ''}"
        if message["method"] == "initialize":
            return [(s, _result(message, {"protocolVersion": "2025-11-25"}), x)]
        if message["method"] == "notifications/cancelled":
            key = (s, f"{message['params']['requestId']}@")
            found = self.open.get(key)
            if found is None:
                return []
            self._forget(key)
            return [(s, ExchangeEnded(found[0]), 0)] if found[0] else []
        if message["method"] == CALL:
            self.record.asks(self.names[s], name, message["params"]["n"], again=again)
            self.open[s, name] = (x, message)
        return []

    def answer(self, pick: int) -> list[tuple[int, Any, int]]:
        keys = sorted(self.open)
        if not keys:
            return []
        s, name = keys[pick % len(keys)]
        x, message = self.open[s, name]
        self._forget((s, name))
        return [(s, _result(message, {"n": message["params"]["n"]}), x)]

    def _forget(self, key: tuple[int, str]) -> None:
        del self.open[key]
        self.record.open.pop((self.names[key[0]], key[1]), None)


def _result(message: Json, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class DyingBrokers(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.desk = DoorCoreRig()
        self.record = Record()
        self.broker: BrokerLife | None = BrokerLife(self.record, 0)
        self.lives = 1
        self.count = 0
        self.session = ""
        self.calls: dict[int, int] = {}
        """HTTP requests whose clients wait, and their calls."""
        self.cancelled: set[int] = set()

    def _serve(self, most: int = 1000) -> None:
        assert self.broker is not None
        while self.desk.told and most:
            most -= 1
            self._say(self.broker.hear(self.desk.told.pop(0)))

    def _say(self, said: list[tuple[int, Any, int]]) -> None:
        for s, message, x in said:
            if isinstance(message, dict):
                self.desk.tell(s, message, x)
            else:
                self.desk.say(s, message)

    @precondition(lambda self: self.broker and not self.session)
    @rule()
    def initialize(self) -> None:
        x = self.desk.post(request(1, "initialize", protocolVersion="2025-11-25"))
        self._serve()
        if x in self.desk.answers:
            self.session = self.desk.header(x, "Mcp-Session-Id") or ""
            self.desk.post(notification("notifications/initialized"), mcp_session_id=self.session)

    @precondition(lambda self: self.broker and self.session)
    @rule()
    def call(self) -> None:
        self.count += 1
        x = self.desk.post(request(self.count + 10, CALL, n=self.count), mcp_session_id=self.session)
        self.calls[x] = self.count

    @precondition(lambda self: self.broker)
    @rule()
    def call_stateless(self) -> None:
        self.count += 1
        x = self.desk.post(modern(1, CALL, name="p", n=self.count), **modern_headers(CALL, "p"))
        self.calls[x] = self.count

    @precondition(lambda self: self.broker)
    @rule(most=PICK)
    def serve(self, most: int) -> None:
        self._serve(most)

    @precondition(lambda self: self.broker)
    @rule(pick=PICK)
    def answer(self, pick: int) -> None:
        assert self.broker is not None
        self._say(self.broker.answer(pick))

    @precondition(lambda self: self.calls)
    @rule(pick=PICK)
    def hang_up(self, pick: int) -> None:
        x = sorted(self.calls)[pick % len(self.calls)]
        if x not in self.desk.answers and x not in self.desk.ended:
            del self.calls[x]
            self.desk.gone(x)

    @precondition(lambda self: self.broker and self.session and self.calls)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        x = sorted(self.calls)[pick % len(self.calls)]
        self.cancelled.add(x)
        said = notification("notifications/cancelled", requestId=self.calls[x] + 10)
        self.desk.post(said, mcp_session_id=self.session)

    @precondition(lambda self: self.broker)
    @rule(read=PICK)
    def die(self, read: int) -> None:
        self._serve(read)
        self.broker = None
        self.desk.told.clear()
        self.desk.take(self.desk.core.broker_lost(self.desk.now))
        assert not self.desk.told

    @precondition(lambda self: not self.broker)
    @rule()
    def come(self) -> None:
        self.broker = BrokerLife(self.record, self.lives)
        self.lives += 1
        self.desk.take(self.desk.core.broker_connected(self.desk.now))

    @rule()
    def wait(self) -> None:
        self.desk.wait(4.0)

    @invariant()
    def nothing_is_run_twice(self) -> None:
        assert not [call for call, runs in self.record.runs.items() if runs > 1]

    @invariant()
    def every_answer_is_that_of_its_call(self) -> None:
        for x, call in self.calls.items():
            if x in self.desk.answers and self.desk.status(x) == 200:
                assert self.desk.body(x)["result"] == {"n": call}

    def teardown(self) -> None:
        """In the end everybody has an answer."""
        if self.broker is None:
            self.come()
        self._serve()
        assert self.broker is not None
        while self.broker.open:
            self._say(self.broker.answer(0))
        for x in self.calls:
            assert x in self.desk.answers or x in self.desk.ended, "somebody waits for ever"
        assert not self.desk.core._quotas._open, "what is over is not counted"


TestDyingBrokers = behaviour("reattach:http")(DyingBrokers.TestCase)


def test_an_answer_on_its_way_when_its_client_hangs_up_leaves_no_call_for_the_next_broker() -> None:
    state = DyingBrokers()
    state.initialize()
    state.call()
    state.hang_up(pick=0)
    state.serve(most=2)
    state.answer(pick=0)
    state.die(read=0)
    state.come()
    state.die(read=4)
    state.nothing_is_run_twice()
