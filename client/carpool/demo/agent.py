"""One agent of `carpool demo`: a process of its own that speaks MCP and nothing else, as any agent would.

Run by command. It is told its life on stdin, one JSON object a line, and tells what it saw on stdout:

    {"number", "repo", "commits", "wires": [{"argv", "env", "prefixes", "hurry"}]}     first line
        -> {"said": "attached", "pids", "first_s": {server: s}, "calls"}      after one call to each server
    {"do": "lap", "seconds"}   one call at a time, the servers in turn    -> {"said": "lap", "calls"}
    {"do": "work"}             one call open to each server, no pause
        -> {"said": "count", "good", "newest_s"} again and again: good answers so far by server, and when the
           call was sent that has the newest
    {"do": "stop"}             finish what is open                        -> {"said": "work", "calls"}
    end of file                detach and end

`calls` is a list of [server, tool, [[sent_s, answered_s, outcome], ...]], one entry per try; seconds of the
monotonic clock, which all processes of a machine share; the last outcome is the call's. Outcomes: `ok`,
`wrong` (an answer, but not the right one), `error` (the server's own), and what carpool says about a call
that has no answer: `lost` (it may have been executed) or `unavailable` (it was not). The agent asks only
what may safely be asked twice, so it repeats both.

A wire is one MCP connection: with carpool one `carpool connect` for all servers, without it each server.
`prefixes` says what stands before a server's tool names. A wire in a `hurry` is terminated at the end: these
servers take half a second of CPU each to end by themselves, and nobody learns from that.
Standard library only. Knows nothing of: figures, what it is compared with.
"""

import itertools
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from carpool.demo.questions import DemoQuestion, question, text_of

TRIES = 12
COUNT_EVERY_S = 0.25
END_S = 5.0
GREETING = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "carpool-demo-agent", "version": "1"},
}


class McpPipe:
    """One MCP connection: a process and its pipes."""

    def __init__(self, argv: list[str], env: dict[str, str], prefixes: dict[str, str], hurry: bool) -> None:
        self.prefixes, self._hurry = prefixes, hurry
        self.process = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self._unread = b""

    def send(self, message: dict[str, Any]) -> None:
        self.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that have come; waits for the first byte. Raises `EOFError` at
        the end of the pipe.
        """
        data = os.read(self.stdout.fileno(), 1 << 16)
        if not data:
            raise EOFError(f"{os.path.basename(self.process.args[0])} ended")  # type: ignore[index,arg-type]
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End of file for it, and wait."""
        self.stdin.close()
        if self._hurry:
            self.process.terminate()
        for end in (self.process.terminate, self.process.kill):
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                end()
        self.process.wait()
        self.stdout.close()


class CallSequence:
    """A line of work with at most one open call: which servers it asks in turn, and the call."""

    def __init__(self, servers: list[str], calls: int | None = None) -> None:
        self.servers = itertools.cycle(servers)
        self.left = calls
        self.server = ""
        self.asked: DemoQuestion | None = None
        self.tries: list[list[object]] = []
        self.sent_s = 0.0
        self.sent_at = datetime.now(UTC)
        self.again_s: float | None = None
        """The time to repeat the call, while it is not open."""


class DemoAgent:
    """The agent, from its first line on."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.number = int(plan["number"])
        self._repo, self._commits = plan["repo"], plan["commits"]
        self._wires = [McpPipe(**each) for each in plan["wires"]]
        self._wire_of = {server: wire for wire in self._wires for server in wire.prefixes}
        self._ids = itertools.count(1)
        self._numbers = dict.fromkeys(self._wire_of, 0)
        self._good = dict.fromkeys(self._wire_of, 0)
        self._newest_s = dict.fromkeys(self._wire_of, 0.0)
        """The time at which the call with the newest good answer was sent, by server."""
        self._sequences: dict[int, CallSequence] = {}
        """By the id of the open call."""
        self._calls: list[list[object]] = []
        self._orders = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        for wire in self._wires:
            self._selector.register(wire.stdout, selectors.EVENT_READ, wire)

    def run(self, since_s: float) -> None:
        """Until end of file. `since_s`: when the wires were started."""
        for wire in self._wires:
            self._greet(wire)
        first: dict[str, float] = {}
        self._run_sequences(
            [CallSequence([server], calls=1) for server in self._wire_of], since_s=since_s, first=first
        )
        self._report(said="attached", pids=[wire.process.pid for wire in self._wires], first_s=first)
        for order in self._orders_until_end():
            if order["do"] == "lap":
                self._run_sequences(
                    [CallSequence(list(self._wire_of))], until_s=time.monotonic() + order["seconds"]
                )
                self._report(said="lap")
            elif order["do"] == "work":
                self._run_sequences([CallSequence([server]) for server in self._wire_of], counted=True)
                self._report(said="work")

    def close(self) -> None:
        self._selector.close()
        for wire in self._wires:
            wire.stdin.close()
        for wire in self._wires:
            wire.close()

    # --- talking to servers ---------------------------------------------------------------------------------

    def _greet(self, wire: McpPipe) -> None:
        for method, params in (("initialize", GREETING), ("tools/list", {})):
            number = next(self._ids)
            wire.send({"id": number, "method": method, "params": params})
            while not any(message.get("id") == number for message in self._messages(wire)):
                pass
            if method == "initialize":
                wire.send({"method": "notifications/initialized"})

    def _messages(self, wire: McpPipe) -> list[dict[str, Any]]:
        """Answer the requests of a server, and return the answers that came from it."""
        messages = wire.messages()
        for message in messages:
            if "method" in message and "id" in message:
                refusal = {"error": {"code": -32601, "message": "this agent answers no questions"}}
                wire.send(
                    {"id": message["id"], **({"result": {}} if message["method"] == "ping" else refusal)}
                )
        return [message for message in messages if "method" not in message]

    def _run_sequences(
        self,
        lanes: list[CallSequence],
        *,
        until_s: float = float("inf"),
        counted: bool = False,
        since_s: float = 0.0,
        first: dict[str, float] | None = None,
    ) -> None:
        """Keep every lane busy until its calls are made, the time is over or `stop` (or the end) is said."""
        busy = [lane for lane in lanes if self._next_call(lane)]
        count_s = time.monotonic() + COUNT_EVERY_S
        while busy:
            now_s = time.monotonic()
            for lane in busy:
                if lane.again_s is not None and lane.again_s <= now_s:
                    self._send(lane)
            if counted and count_s <= now_s:
                self._report(said="count", good=self._good, newest_s=self._newest_s)
                count_s = now_s + COUNT_EVERY_S
            alarms = [lane.again_s for lane in busy if lane.again_s is not None] + [count_s] * counted
            ready = self._selector.select(max(0.0, min(alarms) - now_s) if alarms else None)
            for key, _ in ready:
                if key.data is None:
                    if any(order["do"] == "stop" for order in self._read_orders()):
                        until_s = 0.0
                    continue
                for message in self._messages(key.data):
                    lane_ = self._sequences.pop(message.get("id", 0), None)
                    if lane_ is not None and self._answer_received(lane_, message):
                        if first is not None:
                            first[lane_.server] = time.monotonic() - since_s
                        if time.monotonic() >= until_s or not self._next_call(lane_):
                            busy.remove(lane_)

    def _next_call(self, sequence: CallSequence) -> bool:
        """Ask the lane's next question, if it has one left."""
        if sequence.left == 0:
            return False
        sequence.left = None if sequence.left is None else sequence.left - 1
        sequence.server = next(sequence.servers)
        number = self._numbers[sequence.server]
        self._numbers[sequence.server] += 1
        sequence.asked = question(sequence.server, self.number, number, self._repo, self._commits)
        sequence.tries = []
        self._send(sequence)
        return True

    def _send(self, sequence: CallSequence) -> None:
        assert sequence.asked is not None
        wire = self._wire_of[sequence.server]
        number = next(self._ids)
        sequence.again_s = None
        sequence.sent_s, sequence.sent_at = time.monotonic(), datetime.now(UTC)
        self._sequences[number] = sequence
        name = wire.prefixes[sequence.server] + sequence.asked.tool
        wire.send(
            {
                "id": number,
                "method": "tools/call",
                "params": {"name": name, "arguments": sequence.asked.arguments},
            }
        )

    def _answer_received(self, sequence: CallSequence, message: dict[str, Any]) -> bool:
        """Judge an answer. Returns false if the call is to be made again."""
        assert sequence.asked is not None
        now_s = time.monotonic()
        outcome, pause_s = _outcome(message)
        if outcome == "ok" and not sequence.asked.is_right(
            text_of(message["result"]), sequence.sent_at, datetime.now(UTC)
        ):
            outcome = "wrong"
        sequence.tries.append([round(sequence.sent_s, 6), round(now_s, 6), outcome])
        if outcome in {"lost", "unavailable"} and len(sequence.tries) < TRIES:
            sequence.again_s = now_s + pause_s
            return False
        if outcome == "ok":
            self._good[sequence.server] += 1
            self._newest_s[sequence.server] = sequence.sent_s
        self._calls.append([sequence.server, sequence.asked.tool, sequence.tries])
        return True

    # --- talking to the demo --------------------------------------------------------------------------------

    def _report(self, said: str, **more: object) -> None:
        if said != "count":
            more["calls"], self._calls = self._calls, []
        sys.stdout.write(json.dumps({"said": said, **more}) + "\n")
        sys.stdout.flush()

    def _orders_until_end(self) -> Iterator[dict[str, Any]]:
        """Orders, until the end. What servers say in between (`list_changed`) is read and let go."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    yield from self._read_orders()
                else:
                    self._messages(key.data)

    def _read_orders(self) -> list[dict[str, Any]]:
        data = os.read(0, 1 << 16)
        if not data:
            raise KeyboardInterrupt  # the demo wants the end, or is gone
        *lines, self._orders = (self._orders + data).split(b"\n")
        return [json.loads(line) for line in lines]


def _outcome(message: dict[str, Any]) -> tuple[str, float]:
    """Return the outcome of a call, and the seconds to wait before it is made again."""
    result = message.get("result")
    if not isinstance(result, dict):
        ours = (message.get("error") or {}).get("data") or {}
    elif result.get("isError"):
        ours = (result.get("_meta") or {}).get("carpool/error") or {}
    else:
        return "ok", 0.0
    if not isinstance(ours, dict) or "delivered" not in ours:
        return "error", 0.0
    if ours["delivered"] == "maybe":
        return "lost", 0.0
    return "unavailable", min(float(ours.get("retry_after_s") or 0.2), 5.0)


def main() -> int:
    """Live. 0, or 1 after saying what went wrong."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):  # no more than the line: orders follow
            return 0
        line += byte
    plan = json.loads(line)
    since_s = time.monotonic()
    agent = DemoAgent(plan)
    try:
        agent.run(since_s)
    except KeyboardInterrupt:
        return 0
    except (EOFError, OSError, ValueError) as error:
        sys.stdout.write(json.dumps({"said": "failed", "why": str(error) or type(error).__name__}) + "\n")
        return 1
    finally:
        agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
