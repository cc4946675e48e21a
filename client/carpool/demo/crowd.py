"""The agents of `carpool demo` as the demo sees them: started, told what to do, heard, ended.

Owns the processes of the agents and their pipes. Invariants: every wait has an end (`DemoError`); an agent
that fails ends the demo with its own words; `close` leaves none of them, and what they started ends with
them because their pipes do.
Knows nothing of: MCP (`agent`), figures.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carpool.demo.sandbox import DemoError
from carpool.terminal import end_signals

Report = dict[str, Any]
END_S = 8.0
_LOOK_S = 0.25


class _AgentProcess:
    """One agent process."""

    def __init__(self, number: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.number, self.process, self.log = number, process, log
        self.unread = b""
        self.attached: Report | None = None
        self.good: dict[str, int] = {}
        self.newest_s: dict[str, float] = {}

    def send_order(self, order: Report) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            raise DemoError(f"agent {self.number} has ended: {_last_line(self.log)}") from None


class DemoAgents:
    """Agents that were started together or after each other."""

    def __init__(self, environ: dict[str, str], logs: Path, deadline_s: float) -> None:
        """`environ`: of every agent. `deadline_s`: when the whole demo must be over, monotonic clock."""
        self._environ, self._logs, self._deadline_s = environ, logs, deadline_s
        self._members: list[_AgentProcess] = []
        self._selector = selectors.DefaultSelector()

    def start(self, plan: Report) -> None:
        """Start the agent that `plan` describes; it attaches by itself."""
        log = self._logs / f"agent-{len(self._members)}.log"
        with log.open("ab") as stderr, end_signals.postpone_interrupt():
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "carpool.demo.agent"],
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
                process_group=0,  # Ctrl-C is for the demo, which ends everything in order
            )
            member = _AgentProcess(plan["number"], process, log)
            self._members.append(member)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, member)
        member.send_order(plan)

    def attached(self, limit_s: float, tick: Callable[[], None] = lambda: None) -> list[Report]:
        """Wait until every agent has had its first answers. What they said, in their order."""
        self._listen_until(lambda: all(each.attached for each in self._members), limit_s, "attach", tick=tick)
        return [each.attached for each in self._members if each.attached]

    def order(self, **order: object) -> None:
        """The same order to every agent."""
        for member in self._members:
            member.send_order(order)

    def good(self) -> list[dict[str, int]]:
        """Each agent's good answers so far, by server, as it last told."""
        return [each.good for each in self._members]

    def wait_for_answers(self, server: str, since_s: float, limit_s: float, tick: Callable[[], None]) -> None:
        """Listen until every agent has a good answer of `server` to a call sent after `since_s`."""

        def all_have() -> bool:
            return all(each.newest_s.get(server, 0.0) > since_s for each in self._members)

        self._listen_until(all_have, limit_s, f"get a new answer of {server}", tick=tick)

    def listen_for(self, seconds: float, tick: Callable[[], None]) -> None:
        """Listen for some time."""
        until_s = time.monotonic() + seconds
        self._listen_until(
            lambda: time.monotonic() >= until_s, seconds + 5, "wait", tick=tick, until_s=until_s
        )

    def results(self, said: str, limit_s: float) -> list[list[Any]]:
        """The calls that each agent reports with `said`."""
        got: dict[int, list[Any]] = {}

        def take(member: _AgentProcess, message: Report) -> None:
            if message["said"] == said:
                got[member.number] = message["calls"]

        self._listen_until(lambda: len(got) == len(self._members), limit_s, f"report ({said})", take=take)
        return [got[each.number] for each in self._members]

    def close(self) -> None:
        """End of file for every agent; those that do not end are terminated, then killed."""
        for member in self._members:
            assert member.process.stdin is not None
            with contextlib.suppress(OSError):
                member.process.stdin.close()
        until_s = time.monotonic() + END_S
        for end in ("terminate", "kill", ""):
            for member in self._members:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    member.process.wait(max(0.0, until_s - time.monotonic()))
            for member in self._members:
                if end and member.process.poll() is None:
                    getattr(member.process, end)()
                    until_s = time.monotonic() + 1.0
        for member in self._members:
            assert member.process.stdout is not None
            member.process.stdout.close()
        self._selector.close()

    def _listen_until(
        self,
        condition: Callable[[], bool],
        limit_s: float,
        what: str,
        *,
        tick: Callable[[], None] = lambda: None,
        take: Callable[[_AgentProcess, Report], None] = lambda _member, _message: None,
        until_s: float = float("inf"),
    ) -> None:
        end_s = min(self._deadline_s, time.monotonic() + limit_s)
        while not condition():
            now_s = time.monotonic()
            if now_s >= end_s:
                all_ = f"all of {len(self._members)} agents did {what}"
                if end_s == self._deadline_s:
                    raise DemoError(f"the time of the demo was over before {all_}; is this machine busy?")
                raise DemoError(f"not {all_} within {limit_s:.0f} s")
            for key, _ in self._selector.select(max(0.0, min(_LOOK_S, until_s - now_s))):
                member: _AgentProcess = key.data
                for message in self._messages(member):
                    if message["said"] == "attached":
                        member.attached = message
                    elif message["said"] == "count":
                        member.good, member.newest_s = message["good"], message["newest_s"]
                    take(member, message)
            tick()

    def _messages(self, member: _AgentProcess) -> list[Report]:
        assert member.process.stdout is not None
        data = os.read(member.process.stdout.fileno(), 1 << 18)
        *lines, member.unread = (member.unread + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        failed = [message["why"] for message in messages if message["said"] == "failed"]
        if failed or not data:
            why = failed[0] if failed else "it ended"
            raise DemoError(f"agent {member.number} failed: {why}. {_last_line(member.log)}".strip())
        return messages


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][-300:] if lines else ""
