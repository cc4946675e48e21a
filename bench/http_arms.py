"""The arms of the HTTP bench: the minimal relay, and carpool's door; each for agents of both eras.

Owns the processes of an arm from start to end. Knows nothing of: calls, figures.
"""

import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from bench.http_agents import Era, HttpCrowd, StatelessEcho, connected
from carpool.bench import processes
from carpool.bench.arms import ECHO_ARGV, PrivateCarpoolArm
from carpool.bench.attach import AgentDescriptors
from carpool.bench.spawn import end_all, until
from carpool.bench.work import EchoWorkload
from carpool.http.generated_token import read_generated_token
from carpool_protocol.bootstrap import paths

RELAY = Path(__file__).with_name("http_relay.py")
START_S = 20.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def accepts(port: int) -> bool:
    """Somebody accepts connections there."""
    with suppress(OSError):
        connected(port).close()
        return True
    return False


class HttpArm(Protocol):
    """One way over HTTP from agents of one era to the echo server."""

    name: str

    def start(self) -> None: ...
    def crowd(self, agents: int, *, streams: bool) -> HttpCrowd: ...
    def work(self) -> EchoWorkload: ...
    def roles(self) -> dict[str, list[int]]: ...
    def stop(self) -> None: ...


class _OverHttp:
    """Agents of one era at a port of this machine."""

    def __init__(self, era: Era, url_path: str, tool: str) -> None:
        self.era: Era = era
        self.port = free_port()
        self._path, self._tool = url_path, tool
        self.token = ""
        """The bearer token that its agents need; empty: none."""

    def crowd(self, agents: int, *, streams: bool) -> HttpCrowd:
        """So many agents, connected and not yet greeted."""
        attachments = [AgentDescriptors.of_socket(connected(self.port)) for _ in range(agents)]
        return HttpCrowd(
            attachments, self.era, self.port, self._path, self._tool, streams=streams, token=self.token
        )

    def work(self) -> EchoWorkload:
        """What the agents call."""
        return EchoWorkload(self._tool) if self.era == "handshake" else StatelessEcho(self._tool)


class HttpRelay(_OverHttp):
    """The least any HTTP door must cost (`http_relay.py`)."""

    def __init__(self, era: Era) -> None:
        super().__init__(era, "/mcp", "echo")
        self.name = f"relay-http-{era}"
        self._relay: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [sys.executable, str(RELAY), str(self.port), *ECHO_ARGV]
        self._relay = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        until(lambda: accepts(self.port), START_S, "the relay's port")

    def roles(self) -> dict[str, list[int]]:
        assert self._relay is not None
        return {"relay": [self._relay.pid], "server": processes.descendants(self._relay.pid)}

    def stop(self) -> None:
        if self._relay is not None:
            self._relay.terminate()
            end_all([self._relay])
            self._relay = None


class HttpDoor(_OverHttp):
    """A private carpool with the echo server, at its HTTP door."""

    def __init__(self, era: Era, profile_dir: str | None = None) -> None:
        super().__init__(era, "/mcp", "echo__echo")
        self.name = f"door-{era}"
        self._carpool = _WithDoor(self.port, profile_dir)

    def start(self) -> None:
        self._carpool.start()
        until(lambda: accepts(self.port), START_S, "the door's port")
        self.token = read_generated_token(paths.generated_token_file(self._carpool.state_dir))

    def roles(self) -> dict[str, list[int]]:
        found = self._carpool.roles()
        others = found.pop("spawner", [])
        doors = [pid for pid in others if any("http" in word for word in processes.words(pid))]
        spawners = [pid for pid in others if pid not in doors]
        return {**found, "door": doors, **({"spawner": spawners} if spawners else {})}

    def stop(self) -> None:
        self._carpool.stop()


class _WithDoor(PrivateCarpoolArm):
    """The carpool of the other arms, with a door at this port."""

    def __init__(self, port: int, profile_dir: str | None) -> None:
        super().__init__(shims=False, profile_dir=profile_dir)
        self._env["CARPOOL_HTTP"] = f"127.0.0.1:{port}"
        self.state_dir = self._env["CARPOOL_STATE_DIR"]


ARMS = ("relay-http-handshake", "door-handshake", "relay-http-stateless", "door-stateless")


def make_arms(names: Sequence[str], profile_dir: str | None = None) -> list[HttpArm]:
    """New arms by name, not yet started. With `profile_dir`, carpool's processes leave profiles there."""
    kinds: dict[str, Any] = {"relay-http": HttpRelay, "door": lambda era: HttpDoor(era, profile_dir)}
    made: list[HttpArm] = []
    for name in names:
        kind, _, era = name.rpartition("-")
        made.append(kinds[kind](era))
    return made
