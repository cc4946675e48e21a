"""One agent behind a carrier of ours, a whole carpool, and a broker that dies between any two steps.

The carrier is the Python client's, which keeps what a shim keeps; broker and supervisor are the real shells.
The agent uses few ids for everything, and now and then the very same line; its carrier may be late to say its
environment, and reads a few bytes at a time. The oracle counts what the server has run: nothing twice,
nothing that was told as not delivered, and no answer of one request for another.
"""

import json
import tempfile
from pathlib import Path
from typing import Any, Final

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from carpool_broker.transport.agent_server import ENVIRONMENT_S
from tests.behaviours import behaviour
from tests.kit.in_process_deaths import InProcessCarrier, KillableDaemon
from tests.kit.in_process_servers import InProcessServer, Json, tool

SERVERS: Final[dict[str, Json]] = {
    "plain": {"command": "python", "args": ["count"], "sharing": "concurrent"},
    "own": {"command": "python", "args": ["count"], "sharing": "concurrent", "env": {"V": "${CP_LATE}"}},
}
MOST_LATE: Final = 2
"""So often time passes: calls have deadlines."""


IDS: Final = st.integers(1, 2)
SERVER: Final = st.sampled_from(["plain", "plain", "own"])


class Use:
    """One request of the agent: one use of its id."""

    def __init__(self, server: str, text: str, at: int) -> None:
        self.server = server
        self.text = text
        self.at = at
        self.may_be_lost = False
        self.has_used_id = False
        """Its id has had another use."""


class ExecutedCall:
    """One call that the server has run."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.is_told = False


class DeliveryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.count = 0
        self.late = 0
        self.runs: list[ExecutedCall] = []
        self.pending: list[tuple[InProcessServer, Any, int]] = []
        """Calls that the server has not answered."""
        self.open: dict[int, Use] = {}
        self.over: dict[str, list[str]] = {}
        """How uses with one text have ended."""
        self.said: dict[str, int] = {}
        self.last: dict[int, Use] = {}
        self._folder = tempfile.TemporaryDirectory()
        self.whole = KillableDaemon(Path(self._folder.name), SERVERS, {"count": self.serve})
        self.carrier = InProcessCarrier(self.whole, lambda names: dict.fromkeys(names, "value"), self.take)

    @initialize(late=st.booleans())
    def greet(self, *, late: bool) -> None:
        if late:
            self.takes_long()
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a"}}
        self.say({"id": "hello", "method": "initialize", "params": params})
        self.say({"method": "notifications/initialized"})
        self.settle()
        self.say({"id": "list", "method": "tools/list"})
        self.settle()

    # --- the server ---

    def serve(self, process: InProcessServer, message: Json) -> None:
        method = message.get("method")
        if "id" not in message or method is None:
            return
        if method == "tools/call":
            self.runs.append(ExecutedCall(message["params"]["arguments"]["text"], self.steps))
            self.pending.append((process, message["id"], len(self.runs) - 1))
            return
        result: Json = {}
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "count", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            result = {"tools": [tool("add")]}
        process.say({"id": message["id"], "result": result})

    @precondition(lambda self: self.pending)
    @rule(pick=st.integers(0, 9))
    def answer(self, pick: int) -> None:
        process, ident, run = self.pending.pop(pick % len(self.pending))
        process.say({"id": ident, "result": {"content": [{"type": "text", "text": str(run)}]}})

    # --- the agent ---

    def say(self, message: Json) -> None:
        self.carrier.say(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    @rule(ident=IDS, server=SERVER, same=st.booleans())
    def call(self, ident: int, server: str, *, same: bool) -> None:
        """A use of an id that is not in use. `same`: the very line of its last use."""
        if ident in self.open:
            return
        last = self.last.get(ident)
        self.count += 1
        use = Use(server, f"text {self.count}", self.steps)
        use.has_used_id = last is not None
        if same and last is not None:
            use = Use(last.server, last.text, self.steps)
            use.may_be_lost = True
        self.open[ident] = self.last[ident] = use
        self.said[use.text] = self.said.get(use.text, 0) + 1
        params = {"name": f"{use.server}__add", "arguments": {"text": use.text}}
        self.say({"id": ident, "method": "tools/call", "params": params})

    @rule(ident=IDS, server=SERVER, same=st.booleans())
    def call_and_have_the_answer(self, ident: int, server: str, *, same: bool) -> None:
        self.call(ident, server, same=same)
        self.settle()
        while self.pending:
            self.answer(0)
        self.settle()

    @rule()
    def notice(self) -> None:
        self.say({"method": "notifications/roots/list_changed"})

    def take(self, line: bytes) -> None:
        message = json.loads(line)
        ident = message.get("id")
        if "method" in message or ident in {"hello", "list"}:
            return
        assert ident in self.open, f"an answer that nothing waits for: {message}"
        use = self.open.pop(ident)
        result = message.get("result", {})
        error = result.get("_meta", {}).get("carpool/error") or message.get("error", {}).get("data")
        self.over.setdefault(use.text, []).append("run" if error is None else error["delivered"])
        if error is None:
            run = self.runs[int(result["content"][0]["text"])]
            assert run.text == use.text, "the answer of another request"
            assert run.at >= use.at, "the answer of an earlier use"
            assert not run.is_told, "one answer for two requests"
            run.is_told = True
        elif error["code"] != "unset":
            in_doubt = use.has_used_id and self.has_ended(use)
            assert use.may_be_lost or in_doubt, f"lost, and only the broker had died: {error}"
            assert error["delivered"] == "maybe"

    def has_ended(self, use: Use) -> bool:
        """The server has answered it. Then it cannot be told from the earlier use of its id whose answer no
        broker reported as written (`use_of`).
        """
        pending = {run for _, _, run in self.pending}
        runs = (run for number, run in enumerate(self.runs) if number not in pending)
        return any(run.text == use.text and run.at >= use.at for run in runs)

    # --- steps, and deaths between them ---

    @rule(which=st.sampled_from(["broker", "link", "servers", "broker", "link"]))
    def step(self, which: str) -> None:
        getattr(self.whole, f"step_{which}")()

    @rule(most=st.sampled_from([1, 50, 500, 65536]))
    def read(self, most: int) -> None:
        self.carrier.read(most)

    @rule(most=st.sampled_from([1, 50, 65536]))
    def write(self, most: int) -> None:
        self.carrier.write(most)

    @rule()
    def settle(self) -> None:
        for _ in range(4):
            self.carrier.write()
            self.whole.settle()
            for _ in range(20):
                if self.carrier.read():
                    break
                self.whole.settle()
            else:
                raise AssertionError("every broker ends with it")

    @rule()
    def report(self) -> None:
        self.whole.report()

    @precondition(lambda self: self.late < MOST_LATE)
    @rule()
    def takes_long(self) -> None:
        """The carrier does not run for longer than the broker waits for its environment."""
        self.late += 1
        self.whole.settle()
        self.whole.now += ENVIRONMENT_S + 1
        self.whole.broker._agent_server.check_timeouts(self.whole.now)
        self.whole.settle()

    @rule()
    def die(self) -> None:
        self.whole.kill_broker()

    @rule(ident=IDS, same=st.booleans())
    def die_with_a_call_unread(self, ident: int, *, same: bool) -> None:
        self.call(ident, "plain", same=same)
        self.die()

    # --- what must hold ---

    @invariant()
    def nothing_is_run_twice(self) -> None:
        self.steps += 1
        runs: dict[str, int] = {}
        for run in self.runs:
            runs[run.text] = runs.get(run.text, 0) + 1
        for text, count in runs.items():
            most = self.said[text] - self.over.get(text, []).count("no")
            assert count <= most, f"{text} was run {count} times, and may have been {most} times"

    def teardown(self) -> None:
        try:
            for _ in range(4):
                self.settle()
                while self.pending:
                    self.answer(0)
            assert not self.open, "a request without an answer"
            self.call_and_have_the_answer(1, "own", same=False)
            assert self.over[self.last[1].text] == ["run"], "its variables are there by now"
            assert not self.carrier.kept.in_doubt
        finally:
            self.carrier.close()
            self.whole.close()
            self._folder.cleanup()


DeliveryMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDeliveryMachine = behaviour(
    "reattach:calls", "reattach:used-again", "reattach:late-environment", "calls:one-answer"
)(DeliveryMachine.TestCase)


def deliver(number: int) -> None:
    """Some runs of the machine, the same for each number. Raises what is wrong in one of them."""
    runs = settings(
        DeliveryMachine.TestCase.settings,
        max_examples=20,
        phases=[Phase.generate],
        database=None,
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(seed(number)(type("Seeded", (DeliveryMachine,), {})), settings=runs)
