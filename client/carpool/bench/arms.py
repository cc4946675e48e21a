"""The ways from an agent to a server that a bench compares: straight over pipes, and through carpool.

Owns the processes of an arm from start to end: an arm ends only what it started, and ends all of it. An
arm says which descriptors N agents speak over, which processes take part (by role), and what its tools
are called. The load itself is the driver's (`agents`).
Knows nothing of: calls, latencies, tables.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from carpool import launcher_lock
from carpool.bench import processes as bench_processes
from carpool.bench.attach import AgentDescriptors, BenchError
from carpool.bench.spawn import carpool, connect, end_all, spawn_piped
from carpool.launcher import processes
from carpool.launcher.own_command import carpool_argv
from carpool_protocol.bootstrap import paths

ECHO_ARGV = [sys.executable, "-S", "-E", str(Path(__file__).parents[1] / "demo" / "echo_server.py")]
"""The same server, started the same way, in every arm."""

PRIVATE_MOST = 8
"""The most agents that get a private server each in the direct arm; more are one pipe with as many calls."""


class Arm(Protocol):
    """One way from agents to the echo server."""

    name: str

    def start(self) -> None:
        """Start what all agents share."""
        ...

    def shape(self, agents: int, in_flight: int) -> tuple[int, int]:
        """Return the (agents, in flight) with which this arm plays `agents` with `in_flight` calls each."""
        ...

    def attach(self, agents: int) -> list[AgentDescriptors]:
        """Return the descriptors of `agents` new agents, not yet greeted."""
        ...

    def detach(self) -> None:
        """End what `attach` started, after the driver has closed the descriptors."""
        ...

    def roles(self) -> dict[str, list[int]]:
        """Role to the pids of all processes that take part now, the driver left out."""
        ...

    def tool(self, name: str) -> str:
        """Return the name by which agents call a tool of the echo server in this arm."""
        ...

    def stop(self) -> None:
        """End everything. Safe to call twice, and after a failed start."""
        ...


class DirectArm:
    """Every agent has the echo server to itself, over pipes: what people do without a broker.

    More agents than `PRIVATE_MOST` are played as one pipe with as many calls in flight: hundreds of
    private servers would measure this machine's scheduler instead.
    """

    name = "direct"

    def __init__(self, argv: Sequence[str] | None = None) -> None:
        self._argv = list(ECHO_ARGV if argv is None else argv)
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Do nothing: the agents share nothing."""

    def shape(self, agents: int, in_flight: int) -> tuple[int, int]:
        return (agents, in_flight) if agents <= PRIVATE_MOST else (1, agents * in_flight)

    def attach(self, agents: int) -> list[AgentDescriptors]:
        attachments = []
        for _ in range(agents):
            process, attachment = spawn_piped(self._argv)
            self._servers.append(process)
            attachments.append(attachment)
        return attachments

    def detach(self) -> None:
        end_all(self._servers)
        self._servers.clear()

    def roles(self) -> dict[str, list[int]]:
        return {"server": [process.pid for process in self._servers]}

    def tool(self, name: str) -> str:
        return name

    def stop(self) -> None:
        self.detach()


class SocketArm:
    """Agents at `agents.sock` of a runtime directory: on the socket itself, or each through its shim."""

    def __init__(self, runtime_dir: str, *, shims: bool) -> None:
        self.runtime_dir = runtime_dir
        self.shims = shims
        self._shims: list[subprocess.Popen[bytes]] = []

    def reachable(self) -> bool:
        """Somebody listens at the socket."""
        try:
            connect(self.socket_path).close()
        except OSError:
            return False
        return True

    @property
    def socket_path(self) -> str:
        """The path of the socket that agents connect to."""
        return paths.agents_socket(self.runtime_dir)

    def shape(self, agents: int, in_flight: int) -> tuple[int, int]:
        return agents, in_flight

    def attach(self, agents: int) -> list[AgentDescriptors]:
        if not self.shims:
            return [connect(self.socket_path) for _ in range(agents)]
        env = {**os.environ, "CARPOOL_RUNTIME_DIR": self.runtime_dir}
        shim = carpool_argv()
        attachments = []
        for _ in range(agents):
            process, attachment = spawn_piped([*shim, "connect"], env)
            self._shims.append(process)
            attachments.append(attachment)
        return attachments

    def detach(self) -> None:
        end_all(self._shims)
        self._shims.clear()

    def roles(self) -> dict[str, list[int]]:
        return {"shims": [process.pid for process in self._shims]} if self._shims else {}


def daemon_roles(status: dict[str, Any]) -> dict[str, list[int]]:
    """Role to pids of a daemon's processes, from its `status --json` and the process tree.

    The broker's parent is the launcher; what is below it and is nobody known is called after its module.
    """
    broker = status["broker"]["pid"]
    supervisors = [each["pid"] for each in status["supervisors"]]
    instances = [each for server in status["servers"].values() for each in server["instances"]]
    servers = [each["pid"] for each in instances if each["pid"]]  # sessions at other nodes have no process
    roles = {"broker": [broker], "supervisor": supervisors}
    launcher = bench_processes.parent(broker)
    known = {broker, *supervisors, *servers}
    if launcher is not None and launcher > 1:
        roles["launcher"] = [launcher]
        below_servers = {pid for server in servers for pid in bench_processes.descendants(server)}
        others = [pid for pid in bench_processes.descendants(launcher) if pid not in known | below_servers]
        roles.update({"spawner": others} if others else {})
        servers.extend(sorted(below_servers - known))
    if servers:
        roles["server"] = servers
    return roles


class PrivateCarpoolArm(SocketArm):
    """A private daemon in a directory of its own with the echo server, on sockets or through shims."""

    def __init__(self, *, shims: bool, profile_dir: str | None = None) -> None:
        # The socket's path is limited to 104 bytes (rule 20), and TMPDIR may be long.
        base = tempfile.gettempdir()
        super().__init__(tempfile.mkdtemp(prefix="cpb-", dir=base if len(base) < 60 else "/tmp"), shims=shims)  # noqa: S108
        self.name = "carpool-shims" if shims else "carpool-sockets"
        self._up = False
        self._env = {
            **os.environ,
            "CARPOOL_RUNTIME_DIR": self.runtime_dir,
            "CARPOOL_STATE_DIR": os.path.join(self.runtime_dir, "state"),
        }
        if profile_dir is not None:
            self._env["CARPOOL_PROFILE"] = profile_dir

    def start(self) -> None:
        config = os.path.join(self.runtime_dir, "bench.json")
        command = {"command": ECHO_ARGV[0], "args": ECHO_ARGV[1:], "sharing": "concurrent"}
        Path(config).write_text(json.dumps({"mcpServers": {"echo": command}}), encoding="utf-8")
        self._up = True
        carpool(["up", "--detach", "--config", config], self._env)

    def roles(self) -> dict[str, list[int]]:
        status = json.loads(carpool(["status", "--json"], self._env))
        return {**daemon_roles(status), **super().roles()}

    def tool(self, name: str) -> str:
        return f"echo__{name}"

    def stop(self) -> None:
        self.detach()
        if self._up:
            self._up = False
            try:
                carpool(["down"], self._env)
            except BenchError:
                self._end_by_force()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)

    def _end_by_force(self) -> None:
        """`carpool down` failed: end what carries the mark of this directory, which is ours alone."""
        holder = launcher_lock.holder(self.runtime_dir)
        pids = [holder.pid] if holder is not None and holder.pid else []
        pids += [pid for pid, _ in processes.marked(paths.runtime_id(self.runtime_dir))]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class RunningCarpoolArm(SocketArm):
    """The daemon that is already running: nothing of it is started or ended here."""

    def __init__(self, runtime_dir: str, *, shims: bool) -> None:
        super().__init__(runtime_dir, shims=shims)
        self.name = "carpool-shims" if shims else "carpool-sockets"

    def start(self) -> None:
        """Do nothing: the daemon runs already."""

    def roles(self) -> dict[str, list[int]]:
        env = {**os.environ, "CARPOOL_RUNTIME_DIR": self.runtime_dir}
        try:
            status = json.loads(carpool(["status", "--json"], env))
        except BenchError:
            return super().roles()  # processes that cannot be seen are left out of the report
        return {**daemon_roles(status), **super().roles()}

    def tool(self, name: str) -> str:
        return name

    def stop(self) -> None:
        self.detach()
