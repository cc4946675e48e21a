"""The driver of every bench: one process that plays N agents with M calls in flight each.

Owns the agents' ends of the pipes and sockets, their handshake, the load and what is measured of it.
It is the same code, with the same batching, whatever stands behind the descriptors: one read, and one
write with all the calls that became free. Latency is from the write of a call to the read that brought
its answer. Every answer is checked (`work`); a call that never came back is counted.

Bounded: by time, by count, and by `patience_s` without a byte. Starts and ends no process.
Knows nothing of: arms, carpool, what a tool does.
"""

import array
import gc
import json
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from carpool.bench.attach import AgentDescriptors, BenchAgent, BenchError
from carpool.bench.work import Workload, answer_id

_PROTOCOL = "2025-11-25"
_TICK_S = 0.25

now_s = time.perf_counter


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load that agents put on an arm. Ends at `seconds` or at `calls`, whichever is first."""

    in_flight: int = 1
    seconds: float = 2.0
    warmup_s: float = 0.3
    calls: int | None = None
    """The number of answers in the window after which the load stops."""
    patience_s: float = 15.0
    """Without any byte from any agent for this long, what is open counts as unanswered."""


class WindowFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One window. `latencies_s` is sorted and holds the good answers of the window."""

    calls: int
    """Answers in the window, good or not."""
    seconds: float
    latencies_s: Sequence[float]
    errors: dict[str, int]
    """Kind of failure to its count; what failed in warm-up or while draining is a kind of its own."""
    unanswered: int
    driver_cpu_s: float


class BenchAgents:
    """All agents of one bench, attached and greeted, ready to call."""

    def __init__(self, attachments: Sequence[AgentDescriptors], *, patience_s: float = 30.0) -> None:
        self._attachments = list(attachments)
        self._agents = [BenchAgent(index, each) for index, each in enumerate(attachments)]
        self._selector = selectors.DefaultSelector()
        for agent in self._agents:
            self._selector.register(agent.read_fd, selectors.EVENT_READ, agent)
        self._patience_s = patience_s
        self._stalled: set[int] = set()

    def close(self) -> None:
        """Detach every agent."""
        self._selector.close()
        for each in self._attachments:
            each.close()

    # --- one at a time: greeting and lone calls ------------------------------------------------------------

    def greet(self) -> None:
        """`initialize`, `notifications/initialized` and `tools/list` by every agent."""
        hello = {
            "protocolVersion": _PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "carpool-bench", "version": "1"},
        }
        for reply in self.request_all("initialize", hello):
            if "result" not in reply:
                raise BenchError(f"initialize was refused: {json.dumps(reply.get('error'))}")
        for agent in self._agents:
            agent.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        self.request_all("tools/list", {})

    def request_all(self, method: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        """The same request by every agent at once; all parsed answers, in the agents' order."""
        return self._request(self._agents, method, params)

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """One request by the first agent; its parsed answer."""
        return self._request(self._agents[:1], method, params)[0]

    def _request(self, agents: list[BenchAgent], method: str, params: dict[str, Any]) -> list[dict[str, Any]]:
        waiting: dict[int, int] = {}
        answers: dict[int, dict[str, Any]] = {}
        for agent in agents:
            waiting[agent.index] = agent.next_id
            message = {"jsonrpc": "2.0", "id": agent.next_id, "method": method, "params": params}
            agent.next_id += 1
            agent.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        for agent, line in self._lines_until(now_s() + self._patience_s):
            message = json.loads(line)
            if "method" in message:
                _serve(agent, message)
            elif message.get("id") == waiting.get(agent.index):
                answers[agent.index] = message
                del waiting[agent.index]
            if not waiting:
                return [answers[agent.index] for agent in agents]
        raise BenchError(
            f"{len(waiting)} of {len(agents)} agents had no answer to {method} within {self._patience_s:g} s"
        )

    def _lines_until(self, until_s: float) -> Iterator[tuple[BenchAgent, bytes]]:
        """Every line that comes, until `until_s`."""
        while (left_s := until_s - now_s()) > 0:
            for key, events in self._select(left_s):
                agent: BenchAgent = key.data
                if events & selectors.EVENT_WRITE:
                    agent.write(b"")
                for line in agent.lines():
                    if line:
                        yield agent, line
                self._watch(agent)
                if agent.ended:
                    raise BenchError("an agent's connection was closed; see `carpool logs`")

    def _select(self, timeout_s: float) -> list[tuple[selectors.SelectorKey, int]]:
        for agent in self._agents:
            if agent.out:
                self._watch(agent)
        return self._selector.select(timeout_s)

    def _watch(self, agent: BenchAgent) -> None:
        """Be told when a stalled write can go on, and only then."""
        if agent.ended:
            self._stalled.discard(agent.index)
            for fd in {agent.read_fd, agent.write_fd} & set(self._selector.get_map()):
                self._selector.unregister(fd)
            return
        if bool(agent.out) == (agent.index in self._stalled):
            return
        if agent.read_fd == agent.write_fd:
            mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if agent.out else 0)
            self._selector.modify(agent.read_fd, mask, agent)
        elif agent.out:
            self._selector.register(agent.write_fd, selectors.EVENT_WRITE, agent)
        else:
            self._selector.unregister(agent.write_fd)
        self._stalled ^= {agent.index}

    # --- under load ----------------------------------------------------------------------------------------

    def run_load(
        self,
        work: Workload,
        load: Load,
        *,
        at_warm: Callable[[], None] = lambda: None,
        at_start: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
        tick: Callable[[int, float], None] = lambda _done, _elapsed_s: None,
    ) -> WindowFigures:
        """Keep `in_flight` calls of each agent open until the load's end, then take in what is open.

        `at_warm` comes in the middle of the warm-up and may take its time; `at_start` and `at_end` stand at
        the edges of the window and should not. `tick(calls so far, seconds so far)` comes a few times a
        second. A gone agent's open calls count as unanswered, and the others go on.
        """
        run = _LoadRun(work, load)
        gc.collect()
        gc.disable()  # a collection in the window would show as latency of the arm
        try:
            for agent in self._agents:
                run.refill(agent)
            self._run_until(run, until_s=now_s() + load.warmup_s / 2, tick=lambda _: None)
            at_warm()
            self._run_until(run, until_s=now_s() + load.warmup_s / 2, tick=lambda _: None)
            run.begin()
            at_start()
            run.fair_from_s = now_s()
            until_s = run.began_s + load.seconds
            self._run_until(run, until_s=until_s, tick=lambda now: tick(run.calls, now - run.began_s))
            run.end()
            at_end()
            self._run_until(run, until_s=now_s() + load.patience_s, tick=lambda _: None)
        finally:
            gc.enable()
        return run.measured(sum(len(agent.open) for agent in self._agents))

    def _run_until(self, run: "_LoadRun", *, until_s: float, tick: Callable[[float], None]) -> None:
        """Take in answers and send the next calls until a time, or until nothing is open any more."""
        heard_s = ticked_s = now_s()
        while not run.is_full():
            now = now_s()
            if now - ticked_s > _TICK_S:
                tick(now)
                ticked_s = now
            if now >= until_s or now - heard_s > run.load.patience_s or not self._selector.get_map():
                break
            if run.draining and not any(agent.open and not agent.ended for agent in self._agents):
                break
            for key, events in self._selector.select(min(_TICK_S, until_s - now)):
                agent: BenchAgent = key.data
                if events & selectors.EVENT_WRITE:
                    agent.write(b"")
                if events & selectors.EVENT_READ:
                    lines = agent.lines()
                    heard_s = now_s()
                    if lines:
                        run.answers_received(agent, lines, heard_s)
                        run.refill(agent)
                if agent.out or agent.ended or self._stalled:
                    self._watch(agent)


class _LoadRun:
    """The tally of one load."""

    def __init__(self, work: Workload, load: Load) -> None:
        self.work = work
        self.load = load
        self.counting = False
        self.draining = False
        self.began_s = 0.0
        self.fair_from_s = 0.0
        """Calls sent before have waited for the driver itself: counted, but their latency is not."""
        self.calls = 0
        self._took_s = 0.0
        self._cpu_s = 0.0
        self._latencies_s = array.array("d")
        self._errors: dict[str, int] = {}

    def begin(self) -> None:
        self._cpu_s = time.process_time()
        self.began_s = now_s()
        self.counting = True

    def end(self) -> None:
        self._took_s = now_s() - self.began_s
        self._cpu_s = time.process_time() - self._cpu_s
        self.counting = False
        self.draining = True

    def is_full(self) -> bool:
        return self.counting and self.load.calls is not None and self.calls >= self.load.calls

    def refill(self, agent: BenchAgent) -> None:
        """One write with as many calls as the agent may still open."""
        free = self.load.in_flight - len(agent.open)
        if free <= 0 or self.draining:
            return
        first = agent.next_id
        agent.next_id = last = first + free
        index, request = agent.index, self.work.request
        if free == 1:
            line = request(index, first)
        else:
            line = b"".join([request(index, number) for number in range(first, last)])
        sent_s = now_s()
        for number in range(first, last):
            agent.open[number] = sent_s
        agent.write(line)

    def answers_received(self, agent: BenchAgent, lines: list[bytes], at_s: float) -> None:
        """Judge the answers that one read brought."""
        good, index, is_open = self.work.is_right, agent.index, agent.open
        for line in lines:
            number = answer_id(line)
            if number in is_open and good(index, number, line):
                sent_s = is_open.pop(number)
                if self.counting:
                    self.calls += 1
                    if sent_s >= self.fair_from_s:
                        self._latencies_s.append(at_s - sent_s)
            elif line:
                self._check_answer(agent, line, at_s)

    def _check_answer(self, agent: BenchAgent, line: bytes, at_s: float) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._count("not a JSON object")
            return
        if "method" in message:
            _serve(agent, message)
            return
        number = message.get("id")
        sent_s = agent.open.pop(number, None) if type(number) is int else None
        if sent_s is None or not isinstance(number, int):
            self._count("an answer to no open call")
            return
        kind = self.work.fault(agent.index, number, line)
        if self.counting:
            self.calls += 1
        if kind:
            self._count(kind)
        elif self.counting and sent_s >= self.fair_from_s:
            self._latencies_s.append(at_s - sent_s)

    def _count(self, kind: str) -> None:
        if not self.counting:
            kind = f"{kind} (outside the window)"  # not hidden, and not to be set against `calls`
        self._errors[kind] = self._errors.get(kind, 0) + 1

    def measured(self, unanswered: int) -> WindowFigures:
        return WindowFigures(
            calls=self.calls,
            seconds=self._took_s,
            latencies_s=array.array("d", sorted(self._latencies_s)),
            errors=dict(sorted(self._errors.items())),
            unanswered=unanswered,
            driver_cpu_s=self._cpu_s,
        )


def _serve(agent: BenchAgent, message: dict[str, Any]) -> None:
    """Answer a ping that comes to an agent, and decline any other request."""
    if "id" not in message:
        return
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": -32601, "message": "the bench's agents answer pings only"}
    agent.write(json.dumps(answer).encode() + b"\n")
