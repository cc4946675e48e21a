"""The boundary of a carpool as a Hypothesis machine: everything that its ways in can do, at every point.

Owns the rules (say, go, be slow, answer late or again, die, end) and the promises:

- each request of an agent that is there has one answer, its own; none is executed twice, and none that is
  told as not delivered at all;
- a session that ends, however and whenever, disturbs no other: the broker goes on, and so does a bystander;
- of an end that is meant every carrier that keeps is told, whoever else cannot be;
- a carrier whose session an operator has ended is told, and does not come back;
- nothing is left of those that are gone.

Nothing is settled unless a rule says so: what one rule says may lie in a socket when the next one kills.
Knows nothing of: how the ways in work (`boundary`).
"""

import json
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import Struct

from carpool_broker.transport.connections import DROPPED
from carpool_protocol.ids import SessionId
from carpool_protocol.runtime.pump import OUTPUTS_PER_FLUSH
from tests.kit.boundary import DoorWay, Keeper, PlainWay, ShimWay, Stage, StreamOf, Way, stage
from tests.kit.in_process_servers import InProcessServer, Json, tool

QUICK: Final = {"timeout_s": 20, "max_total_s": 25, "wait_s": 3, "ask_timeout_s": 6, "probe_s": 3600}
COMMON: Final = {"command": "x", "args": ["tally"], "sharing": "concurrent", **QUICK}
SERVERS: Final[dict[str, Json]] = {"good": COMMON, "own": {**COMMON, "env": {"V": "${CP_VALUE}"}}}
SHOP: Final = {"shop": {**COMMON, "env": {"V": "${CP_SHOP}"}}}
ENVIRONMENT_S: Final = 12
"""A carrier that has not said its environment by then goes on without."""
ALL_ENDS_S: Final = 36
"""No call takes longer, and nobody who has lost a broker comes back later."""
ERROR: Final = "carpool/error"
WHY: Final = "this end is meant"
PICK: Final = st.integers(0, 15)
ANSWERS: Final = st.sampled_from(
    (0, 1, OUTPUTS_PER_FLUSH - 1, OUTPUTS_PER_FLUSH - 1, OUTPUTS_PER_FLUSH, OUTPUTS_PER_FLUSH + 1)
)
"""As many lines of answers leave together as a piece holds: then is found who is gone."""
KINDS: Final = st.sampled_from(("plain", "keeper", "shim", "shim", "shim", "session", "control", "shared"))
MOST: Final = 20
LATE: Final = st.sampled_from((0, 0, ENVIRONMENT_S))
WORD: Final = st.sampled_from(
    ("run", "hold", "ask", "roots", "own", "list", "batch", "to the shop", "to the yard", "environment")
)
LAST_WORDS: Final = st.tuples(PICK | KINDS, st.integers(0, 2), ANSWERS, WORD, st.booleans(), st.booleans())


class SentRequest(Struct):
    """One request."""

    way: Way
    mark: str = ""
    """Of a tool call: what it has the server count."""


class UnansweredCall(Struct):
    """A call that its server has not answered."""

    process: InProcessServer
    id: Any
    mark: str


class Boundary(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._before = sys.exc_info()[1]
        self._stack = ExitStack()
        self._begin()

    def _begin(self) -> None:
        """A carpool that nobody has seen yet."""
        self._stack.close()
        house = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        (house / "shop").mkdir()
        self.shop = house / "shop"
        self.ran: Counter[str] = Counter()
        self.held: list[UnansweredCall] = []
        self.questions: dict[str, UnansweredCall] = {}
        """What servers have asked, and the calls that wait for it."""
        self.asked: dict[int, SentRequest] = {}
        self._ids = 0
        self._needs_variables: set[int] = set()
        """Requests of agents whose carriers have had all time to say their environment."""
        workspaces = {"shop": {"root": str(self.shop), "mcpServers": SHOP}, "yard": {}}
        self.stage: Stage = self._stack.enter_context(
            stage(house, SERVERS, {"tally": self._serve}, workspaces=workspaces)
        )
        self.ways: list[Way] = []
        self.bystander = self._enter(ShimWay(self.stage))
        self._greet(self.bystander, "2025-11-25")
        self.stage.settle()
        self._undisturbed()

    # --- the server ------------------------------------------------------------------------------------

    def _serve(self, process: InProcessServer, message: Json) -> None:
        method, params = message.get("method"), message.get("params") or {}
        asked = self.questions.pop(message.get("id", 0), None) if method is None else None
        if asked is not None and not asked.process.ended:  # answered, or told that it is not
            asked.process.say({"id": asked.id, "result": _text(asked.mark)})
        if "id" not in message or method is None:
            return
        result: Json = {}
        if method == "initialize":
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tally", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": [tool("run"), tool("hold"), tool("ask")]}
        elif method == "tools/call":
            mark = params["arguments"]["mark"]
            self.ran[mark] += 1
            if params["name"] == "hold":
                self.held.append(UnansweredCall(process, message["id"], mark))
                return
            if params["name"] == "ask":
                question = f"q{len(self.ran)}"
                self.questions[question] = UnansweredCall(process, message["id"], mark)
                what = {"messages": [], "maxTokens": 1}
                process.say({"id": question, "method": "sampling/createMessage", "params": what})
                return
            result = _text(mark)
        process.say({"id": message["id"], "result": result})

    # --- what agents say -------------------------------------------------------------------------------

    def _enter(self, way: Any) -> Any:
        self.stage.add(way)
        self.ways.append(way)
        return way

    def _request(self, way: Way, method: str, params: Json | None = None, mark: str = "") -> bytes:
        self._ids += 1
        self.asked[self._ids] = SentRequest(way, mark)
        params = params or {}
        if isinstance(way, StreamOf) and way.kind == "shared":
            params["_meta"] = _META
        return _line({"id": self._ids, "method": method, "params": params})

    def _call(self, way: Way, server: str, name: str) -> bytes:
        mark = f"m{self._ids + 1}"
        params = {"name": f"{server}__{name}", "arguments": {"mark": mark}}
        return self._request(way, "tools/call", params, mark)

    def _greet(self, way: Way, version: str) -> None:
        can = {"sampling": {}, "roots": {"listChanged": True}}
        hello = {"protocolVersion": version, "capabilities": can, "clientInfo": {"name": "x", "version": "1"}}
        way.say(self._request(way, "initialize", hello) + _line({"method": "notifications/initialized"}))

    def _said(self, way: Way, what: str) -> bytes:
        match what:
            case "run" | "hold" | "ask":
                return self._call(way, "good", what)
            case "own":
                return self._call(way, "own", "run")
            case "list":
                return self._request(way, "tools/list")
            case "to the shop" | "to the yard":
                workspace = str(self.shop) if what == "to the shop" else "yard"
                return self._request(way, "carpool/use_workspace", {"workspace": workspace})
            case "batch":
                return b"[" + _line({"method": "notifications/other"}).strip() + b"]\n"
            case "roots":
                return _line({"method": "notifications/roots/list_changed"})
            case "environment":
                return _line({"method": "carpool/environment", "params": {"CP_VALUE": "mine"}})
            case _:
                return b""

    def _pick(self, pick: int) -> Way | None:
        """One that is there, and no bystander."""
        there = [way for way in self.ways if not way.ended and way is not self.bystander]
        return there[pick % len(there)] if there else None

    # --- rules -----------------------------------------------------------------------------------------

    @initialize(kinds=st.lists(st.tuples(KINDS, LATE), min_size=4, max_size=8))
    def begin(self, kinds: list[tuple[str, int]]) -> None:
        """Some are there already."""
        for kind, late_s in kinds:
            self.come(kind, "2025-11-25", late_s, settles=True)

    @precondition(lambda self: len(self.ways) < MOST)
    @rule(
        kind=KINDS,
        version=st.sampled_from(("2025-11-25", "2025-11-25", "2025-03-26", "")),
        late_s=LATE,
        settles=st.booleans(),
    )
    def come(self, kind: str, version: str, late_s: int, *, settles: bool) -> None:
        """An agent comes, and most of them greet. `late_s`: for so long it reads nothing."""
        if kind in {"session", "control", "shared"}:
            door = next(
                (each for each in self.stage.ways if isinstance(each, DoorWay) and not each.ended), None
            )
            if door is None:
                self.stage.add(door := DoorWay(self.stage))
            way = self._enter(StreamOf(door, kind))
        else:
            way = self._enter({"plain": PlainWay, "keeper": Keeper, "shim": ShimWay}[kind](self.stage))
        if version and kind != "shared":
            self._greet(way, version)
        else:
            way.say(self._request(way, "tools/list"))
        if late_s:
            way.stopped = True
            self.stage.wait(late_s)
            way.stopped = False
        if settles:
            self.stage.settle()

    @rule(
        pick=PICK,
        answers=st.integers(0, 2),
        what=st.lists(WORD, min_size=1, max_size=3),
        settles=st.booleans(),
    )
    def say(self, pick: int, answers: int, what: list[str], *, settles: bool) -> None:
        """An agent says all of this at once."""
        way = self._pick(pick)
        if way is not None:
            way.say(self._said_at_once(way, 0, answers, what))
        if settles:
            self.stage.settle()

    @precondition(lambda self: len(self.ways) < MOST)
    @rule(last_words=st.lists(LAST_WORDS, min_size=1, max_size=4))
    def say_and_go(self, last_words: list[tuple[int | str, int, int, str, bool, bool]]) -> None:
        """Agents, some of which have just come, are gone, or do not read any more, when the first answers to
        all of this leave.
        """
        for who, notes, answers, what, deaf, settles in last_words:
            if isinstance(who, str):
                self.come(who, "2025-11-25", 0, settles=True)
                way: Way | None = self.ways[-1]
            else:
                way = self._pick(who)
            if way is not None:
                way.say(self._said_at_once(way, notes, 0 if way.stopped else answers, [what]))
                way.go(deaf=deaf)
            if settles:
                self.stage.settle()

    def _said_at_once(self, way: Way, notes: int, answers: int, what: list[str]) -> bytes:
        lines = [_line({"method": "notifications/other"})] * notes
        quick = "tools/list" if isinstance(way, StreamOf) and way.kind == "shared" else "ping"
        lines += [self._request(way, quick) for _ in range(answers)]
        return b"".join([*lines, *[self._said(way, each) for each in what]])

    @rule(pick=PICK, stops=st.booleans(), settles=st.booleans())
    def stand(self, pick: int, *, stops: bool, settles: bool) -> None:
        """The process of an agent, or of its shim, stands still, or goes on: what it was asked long ago it
        answers then.
        """
        ways = [way for way in self.ways if way.stopped != stops and not way.ended]
        ways = [way for way in ways if not isinstance(way, StreamOf) and way is not self.bystander]
        if ways:
            ways[pick % len(ways)].stopped = stops
        if settles:
            self.stage.settle()

    @rule(pick=PICK, often=st.integers(1, 2), settles=st.booleans())
    def tell(self, pick: int, often: int, *, settles: bool) -> None:
        """A carrier says its environment: too early, in time, too late, once more."""
        keepers = [way for way in self.ways if isinstance(way, Keeper) and not way.ended]
        if keepers:
            for _ in range(often):
                keepers[pick % len(keepers)].tell_environment()
        if settles:
            self.stage.settle()

    @rule(pick=PICK, often=st.integers(1, 2), settles=st.booleans())
    def reply(self, pick: int, often: int, *, settles: bool) -> None:
        """An agent answers whatever it was ever asked: in time, too late, once more."""
        way = self._pick(pick)
        for line in [] if way is None else way.lines:
            said = json.loads(line)
            if way is not None and "method" in said and "id" in said:
                shop = {"uri": self.shop.as_uri(), "name": "shop"}
                content = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "t"}}
                result = {"roots": [shop]} if said["method"] == "roots/list" else content
                way.say(_line({"id": said["id"], "result": result}) * often)
        if settles:
            self.stage.settle()

    @precondition(lambda self: bool(self.held))
    @rule(pick=PICK)
    def answer(self, pick: int) -> None:
        """A server answers a call that it has held."""
        held = self.held.pop(pick % len(self.held))
        if not held.process.ended:
            held.process.say({"id": held.id, "result": _text(held.mark)})

    @rule(who=st.sampled_from(("all", "all", "broker", "supervisor", "agents", "a clock", "a slow clock")))
    def turn(self, who: str) -> None:
        """One of them has a turn, and nobody else, or all have."""
        match who:
            case "all":
                self._undisturbed()
            case "broker":
                self.stage.step_broker()
            case "supervisor":
                self.stage.step_link()
                self.stage.step_servers()
            case "agents":
                self.stage.turns()
            case "a clock":
                self.stage.wait(1)
            case _:
                self.stage.wait(ENVIRONMENT_S)

    @rule(link_first=st.booleans(), settles=st.booleans())
    def die(self, *, link_first: bool, settles: bool) -> None:
        """The broker is killed; the next one is there at once."""
        self.stage.die(link_first=link_first)
        if settles:
            self.stage.settle()

    @rule(pick=PICK, settles=st.booleans())
    def disconnect(self, pick: int, *, settles: bool) -> None:
        """An operator ends the session of an agent, whose carrier is told and does not come back."""
        way = self._pick(pick)
        session = None if way is None else self._session_of(way)
        if way is None or session is None:
            return
        is_told = way.is_told_of_ends and not way.stopped and self._is_in(way)
        assert self.stage.broker._agent_server.disconnect_session(session, WHY)
        self.stage.broker._flush_burst()
        while way.turn():
            pass
        if is_told:
            farewells = way.farewells  # type: ignore[attr-defined]
            assert farewells[-1:] == [DROPPED + WHY], f"{type(way).__name__} was told {farewells}"
            assert way.ended, f"{type(way).__name__} has come back after its session was ended"
        if settles:
            self.stage.settle()

    def _session_of(self, way: Way) -> SessionId | None:
        """The session of an agent that operators may end; None if it has none at the moment."""
        broker = self.stage.broker
        session = way.connection.id
        if isinstance(way, StreamOf):
            door = way.connection.carrier
            stream = None if door is None else door._streams.get(way.number)
            session = SessionId("") if stream is None else stream.id
        found = broker.core.sessions.get(session)
        return None if found is None or found.control else session

    def _undisturbed(self) -> None:
        """All that can happen happens, and whoever has nothing to do with it is answered."""
        self.stage.settle()
        line = self._call(self.bystander, "good", "run")
        self.bystander.say(line)
        self.stage.settle()
        assert not self.bystander.ended, "the bystander's shim has ended"
        assert self._answers(self.bystander)[self._ids], "the bystander is not answered"

    @rule(again=st.booleans(), going=st.lists(st.tuples(PICK, st.booleans()), max_size=2))
    def end(self, going: list[tuple[int, bool]], *, again: bool) -> None:
        """Carpool ends, and that is meant. Some agents go in the same moment."""
        for pick, deaf in going:
            if (one := self._pick(pick)) is not None:
                one.go(deaf=deaf)
        door = self.stage.broker._agent_server
        ways = [
            way
            for way in self.ways
            if way.is_told_of_ends and not way.ended and not way.stopped and self._is_in(way)
        ]
        self.stage.end(WHY, again=again)
        assert not door.connections.agents
        for way in ways:
            way.turn()
            assert way.farewells == [WHY], f"{type(way).__name__} was told {way.farewells} of the end"  # type: ignore[attr-defined]
        self._check()
        self._begin()

    def _is_in(self, way: Way) -> bool:
        """Its session is here, and all that it has kept has come. (Others hear nothing on purpose: for them
        it is as if the broker had died.)
        """
        agent = way.connection
        there = self.stage.broker._agent_server.connections.agents.get(agent.id) is agent
        return there and agent.welcomed and agent.returning is None

    # --- the promises ----------------------------------------------------------------------------------

    def _answers(self, way: Way) -> Counter[int]:
        """How many answers each request has."""
        return Counter(each["id"] for each in map(json.loads, way.lines) if "method" not in each)

    def _check(self) -> None:
        """What must hold at any time."""
        assert max(self.ran.values(), default=0) <= 1, f"executed twice: {self.ran.most_common(1)}"
        for way in self.ways:
            for line in way.lines:
                self._look(way, json.loads(line))

    def _look(self, way: Way, said: Json) -> None:
        request = self.asked.get(said.get("id", 0))
        if "method" in said or request is None:
            return
        assert request.way is way, f"an answer of {type(request.way).__name__} came to another"
        if not request.mark:
            return
        about = said["error"].get("data") if "error" in said else said["result"].get("_meta", {}).get(ERROR)
        if about is None:
            assert said["result"]["content"][0]["text"] == request.mark, (
                f"a call has another's answer: {said}"
            )
        elif about["code"] == "unset":
            assert said["id"] not in self._needs_variables, (
                "a carrier has said its environment, and nobody knows"
            )
        elif about["delivered"] == "no":
            assert not self.ran[request.mark], f"told as not delivered, and executed: {said}"

    def _calm(self) -> None:
        """Whatever can come comes."""
        for way in self.ways:
            way.stopped = False
            if way.ended:
                way.go()  # also those that are only deaf so far
        self.stage.settle()
        self.stage.wait(ENVIRONMENT_S)
        for held in self.held:
            if not held.process.ended:
                held.process.say({"id": held.id, "result": _text(held.mark)})
        self.held.clear()
        self.stage.settle()
        self.stage.wait(ALL_ENDS_S)

    def _each_is_served(self) -> None:
        """Nothing is open, nobody is late: each agent that is there is answered, and has been."""
        for way in self.ways:
            if not way.ended:
                way.say(b"".join(self._said(way, each) for each in ("run", "list", "run")))
        shims = [way for way in self.ways if isinstance(way, ShimWay) and not way.ended]
        for way in shims:
            self._needs_variables.add(self._ids + 1)
            way.say(self._said(way, "own"))
        self._undisturbed()
        answered = {id(way): self._answers(way) for way in self.ways}
        for number, request in self.asked.items():
            count = answered[id(request.way)][number]
            wanted = {1} if not request.way.ended else {0, 1}
            assert count in wanted, f"request {number} of {type(request.way).__name__}: {count} answers"
        there = [way for way in self.ways if not way.ended]
        sessions = self.stage.broker.core.sessions
        assert len(sessions) == len(there), f"{len(sessions)} sessions of {len(there)} agents"
        self._check()

    def teardown(self) -> None:
        try:
            if self.stage.serves and sys.exc_info()[1] is self._before:  # no rule has failed
                self._calm()
                self._each_is_served()
                self.die(link_first=True, settles=True)  # nothing is open: nothing must come of it
                self._each_is_served()
        finally:
            self._stack.close()


_META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


def _line(message: Json) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def _text(mark: str) -> Json:
    return {"content": [{"type": "text", "text": mark}]}


def play(number: int | None, *, examples: int, steps: int = 25, shrinks: bool = True) -> int:
    """So many plays, of a number always the same ones. How many requests they made.

    AssertionError: a promise was broken, or the broker died. `shrinks`: made short, which takes a while.
    """
    count = 0

    class Played(Boundary):
        def teardown(self) -> None:
            nonlocal count
            super().teardown()
            count += self._ids

    phases = (Phase.generate, Phase.shrink) if shrinks else (Phase.generate,)
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=phases,
        database=None,
        deadline=None,
        print_blob=False,
        verbosity=Verbosity.normal if shrinks else Verbosity.quiet,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(Played if number is None else seed(number)(Played), settings=how)
    except (KeyError, RuntimeError) as death:
        raise AssertionError(f"the broker died: {death!r}") from death
    return count
