"""A private carpool of real processes, and agents that speak lines to it. For tests under trio.

`Daemon` owns a runtime directory under /tmp, a configuration file and the command line; its agents
(`tests.kit.line_agent`) come over the socket or over `carpool connect`. A daemon that
closes proves that nothing of it runs and that no socket is left; `quiet` proves the same of a shared one
between two tests.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import trio

from carpool.cli.daemon import bring_down
from carpool.control.control_client import ControlClient
from carpool.launcher import processes
from carpool.launcher.http_door import read_door_url
from carpool.launcher.runtime_place import RuntimePlace
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION
from carpool_protocol.carrier.attach_line import Attach, attach_line
from carpool_supervisor import marks
from tests.kit.leaks import zombies_of
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, LineAgent, settled, spoken
from tests.kit.private_daemon import ROOTS, kill_all
from tests.kit.private_daemon import until as until_now
from tests.kit.waits import until

Make = Callable[..., "Daemon"]
"""Makes a daemon of the test's own: `make(servers, up=True, **settings)`."""
SERVERS = Path(__file__).parent / "servers"
LIVE = Path(__file__).parents[1] / "live"
BUGS = ("Traceback", "a bug in carpool", "said what only a", "a message that only a")
"""What our own processes log only when carpool is wrong."""

DAEMON_WORDS = ("carpool.launcher", "carpool.cluster", "carpool_broker", "carpool_supervisor", "carpool.http")
"""One of them is in the command line of each of carpool's own processes."""

ENDED_S = 5.0
"""So long after `carpool down` the launcher's own process may still be there on a busy machine."""

LIST_WAIT_S = 30.0
"""So long lists wait for servers unless a test says otherwise: one on an SDK may take more than the default,
10 s, where the machine is busy.
"""


def kit(name: str, *args: str, **settings: Any) -> Json:
    """The configuration of one of `tests/kit/servers`."""
    return {"command": sys.executable, "args": ["-S", "-E", str(SERVERS / f"{name}.py"), *args], **settings}


def observer(*args: str, **settings: Any) -> Json:
    """The configuration of `tests/live/observer.py`: a good server that tells what it has seen."""
    return {"command": sys.executable, "args": ["-S", "-E", str(LIVE / "observer.py"), *args], **settings}


def texts_below(directory: Path) -> Iterator[tuple[Path, str]]:
    """Each file below it and what it says; a part file that became the whole meanwhile is passed over."""
    for path in sorted(directory.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file():
                yield path, path.read_text(errors="replace")


class Daemon:
    """One carpool of its own: directory, configuration, command line. Not running until `up`."""

    def __init__(self, servers: Mapping[str, Json] | None = None, **settings: Any) -> None:
        # Not pytest's tmp_path: a socket's path is at most 103 bytes long.
        self.base = Path(tempfile.mkdtemp(prefix="cpl-", dir="/tmp"))
        self.directory = self.base / "rt"
        self.logs = self.directory / "state" / "log"
        self.config = self.base / "carpool.json"
        self.configure(servers or {}, **settings)
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        scripts = str(Path(sys.executable).parent)
        self.environ = {
            **kept,
            "PYTHONPATH": os.pathsep.join(ROOTS),
            "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
            "HOME": str(self.base),
            "SHELL": "/bin/false",  # no login shell is asked, unless a test says which
            "CARPOOL_RUNTIME_DIR": str(self.directory),
            "CARPOOL_STATE_DIR": str(self.directory / "state"),
            "CARPOOL_CONFIG": str(self.config),
            # Every invariant of both cores after every event.
            "CARPOOL_CHECK": os.environ.get("CARPOOL_CHECK", "1"),
        }
        self._fds: dict[int, int] = {}

    def configured(self) -> Json:
        """The configuration file."""
        found: Json = json.loads(self.config.read_text())
        return found

    def configure(self, servers: Mapping[str, Json], **settings: Any) -> None:
        """Write the configuration file, whole or not at all."""
        fresh = self.config.with_suffix(".new")
        whole = {"mcpServers": dict(servers), "list_wait_s": LIST_WAIT_S, **settings}
        fresh.write_text(json.dumps(whole))
        fresh.replace(self.config)

    # --- the command line ------------------------------------------------------------------------------

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "carpool", *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`carpool ARGUMENTS` to its end, while nothing else happens: for fixtures."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def carpool_json(self, *arguments: str) -> Json:
        """What `carpool ARGUMENTS --json` prints."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        found: Json = json.loads(done.stdout)
        return found

    async def carpool(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        """`carpool ARGUMENTS` to its end: (exit code, stdout, stderr)."""
        with trio.fail_after(LIMIT_S):
            done = await trio.run_process(
                self.command(*arguments),
                env=self.environ,
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def up(self) -> None:
        done = self.run("up", "--detach", "--config", str(self.config))
        assert done.returncode == 0, done.stderr
        self.note_fds()

    def note_fds(self) -> None:
        """Remember how many descriptors the broker has while nobody is there."""
        until_now(lambda: self.facts()["supervisors"], "the supervisor is linked")
        broker = self.facts()["broker"]["pid"]
        until_now(lambda: not self.open_connections(), "nobody is connected")
        self._fds = {broker: fd_count(broker)}

    def open_connections(self) -> int:
        """Connections that the broker holds open, but for the line of the HTTP door where there is one."""
        path = paths.agents_socket(str(self.directory))
        rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
        # The listening socket is in state 01, an accepted one in state 03 (unix(7) names no numbers: net.h).
        count = sum(1 for row in rows if len(row) == 8 and row[7] == path and row[5] == "03")
        return count - bool(read_door_url(str(self.directory)))

    # --- looking ---------------------------------------------------------------------------------------

    def facts(self) -> Json:
        """What `carpool status --json` says, asked directly. Blocks for a moment."""
        with ControlClient(str(self.directory), control=True) as door:
            found: Json = msgspec.json.decode(door.request("carpool/status", {}, WAIT_S))
        return found

    async def status(self) -> Json:
        return await trio.to_thread.run_sync(self.facts)

    async def until(self, condition: Any, what: str) -> Json:
        """Wait until `condition(status)` holds; the status then."""
        return await settled(self.status, condition, what)

    async def ask(self, method: str, params: Json) -> Json:
        """One `carpool/…` request of an operator."""

        def do() -> Json:
            with ControlClient(str(self.directory), control=True) as door:
                found: Json = msgspec.json.decode(door.request(method, params, WAIT_S))
            return found

        return await trio.to_thread.run_sync(do)

    async def reload(self) -> Json:
        return await self.ask("carpool/reload", {})

    async def operate(self, verb: str, *servers: str) -> list[Json]:
        done = await self.ask("carpool/operate", {"verb": verb, "servers": list(servers)})
        results: list[Json] = done["results"]
        return results

    async def pids(self, server: str) -> list[int]:
        """The instances of a server that serve."""
        facts = await self.status()
        return [each["pid"] for each in facts["servers"][server]["instances"] if each["state"] == "serving"]

    def running(self) -> dict[int, str]:
        """Every process of this carpool: daemon, instances and what they started, shims, verbs."""
        return running(str(self.directory))

    def log_text(self) -> str:
        """All that was written into the state directory."""
        return "\n".join(text for _, text in texts_below(self.directory))

    def log(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    # --- agents ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def agent(self, *, greet: bool = True, attach: Attach | None = None) -> "AsyncIterator[LineAgent]":
        """An agent on the socket; `attach`: with an attach line in front."""
        stream = await trio.open_unix_socket(paths.agents_socket(str(self.directory)))
        if attach is not None:
            await stream.send_all(attach_line(attach))
        async with spoken(stream, stream) as one:
            if greet:
                await one.greet()
            yield one

    @asynccontextmanager
    async def shim(
        self,
        *words: str,
        greet: bool = True,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        command: list[str] | None = None,
    ) -> "AsyncIterator[LineAgent]":
        """An agent behind `carpool connect` (or `WORDS`, or a whole COMMAND). It must end by itself when the
        agent has gone.
        """
        with (self.base / "shims.log").open("ab") as stderr:
            process = await trio.lowlevel.open_process(
                command or self.command(*(words or ("connect",))),
                env={**self.environ, **(environ or {})},
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with spoken(process.stdin, process.stdout, process.pid) as one:
                if greet:
                    await one.greet()
                yield one
            with trio.fail_after(WAIT_S):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()

    def operator(self) -> Attach:
        return Attach(version=ATTACH_VERSION, carrier="cli", pid=os.getpid(), control=True)

    # --- proof -----------------------------------------------------------------------------------------

    def quiet(self) -> None:
        """Fails unless the tests before left no session, no open call, no process and no descriptor."""
        found: list[str] = []

        def still() -> bool:
            found[:] = self.left_over()
            return not found

        try:
            until_now(still, "nothing is left over")
        except AssertionError:
            raise AssertionError(f"left over: {found}") from None

    def left_over(self) -> list[str]:
        """Return what a shared daemon should not have between two tests. Other nodes keep their sessions."""
        facts = self.facts()
        left = [f"session {each}" for each in facts["sessions"] if each["carrier"] != "node"]
        of_nodes = len(facts["sessions"]) - len(left)
        left += [f"{facts['totals']['in_flight']} calls"] if facts["totals"]["in_flight"] else []
        left += [f"stranger {pid} {line}" for pid, line in self.strangers(facts).items()]
        left += [f"zombies of {pid}: {ended}" for pid in self.daemons() if (ended := zombies_of(pid))]
        left += [f"{count} sockets of agents"] if (count := self.open_connections() - of_nodes) else []
        broker = facts["broker"]["pid"]
        if fd_count(broker) - of_nodes > self._fds.get(broker, 1 << 20):
            left.append(f"{fd_count(broker)} descriptors of the broker, {self._fds[broker]} at first")
        return left

    def strangers(self, facts: Json | None = None) -> dict[int, str]:
        """What runs and is neither the daemon's own, nor an instance, nor what an instance has started."""
        facts = facts or self.facts()
        instances = {each["pid"] for server in facts["servers"].values() for each in server["instances"]}
        everything = self.running()
        own = {pid for pid, line in everything.items() if any(word in line for word in DAEMON_WORDS)}
        return {
            pid: line
            for pid, line in everything.items()
            if pid not in own | instances and not instances & set(ancestors(pid))
        }

    def daemons(self) -> list[int]:
        """Launcher, broker, supervisor and spawner."""
        return [pid for pid, line in self.running().items() if any(word in line for word in DAEMON_WORDS)]

    def close(self) -> None:
        """End it as `carpool down` does, without an interpreter for it; fails when that leaves a process or a
        socket.
        """
        try:
            bring_down(RuntimePlace(self.environ))
            deadline = time.monotonic() + ENDED_S
            while (left := self.running()) and time.monotonic() < deadline:
                time.sleep(0.01)  # the launcher has said that it ends, and its process is just going
            assert not left, f"left running: {left}"
            assert not list(self.base.rglob("*.sock")), "a socket is left"
            logs = self.log("broker") + self.log("supervisor-sup1")
            assert not [sign for sign in BUGS if sign in logs], logs
        finally:
            kill_all(self.running)
            shutil.rmtree(self.base, ignore_errors=True)


def running(directory: str) -> dict[int, str]:
    """Processes whose environment says that they belong to this runtime directory, with their commands."""
    runtime = paths.runtime_id(directory)
    signs = {
        f"{paths.RUNTIME_VARIABLE}={directory}",
        f"{paths.DAEMON_MARK}={runtime}",
        f"{marks.RUNTIME}={runtime}",
    }
    return dict(processes.with_environment(lambda environ: not signs.isdisjoint(environ)))


def ancestors(pid: int) -> list[int]:
    """Parents of a process, the nearest first."""
    found: list[int] = []
    while (pid := marks.parent_of(pid)) > 1 and pid not in found:
        found.append(pid)
    return found


def fd_count(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def alive(pid: int) -> bool:
    """It runs; a zombie does not."""
    return marks.state_and_group(pid)[0] not in {"", "Z", "X"}


def gone(pids: Iterable[int]) -> bool:
    return not any(map(alive, pids))


@asynccontextmanager
async def undisturbed(daemon: Daemon, tool: str = "good__echo") -> AsyncIterator[None]:
    """A second agent calls a good server all the while, and each of its answers must be right."""
    count = 0

    async def chat(one: LineAgent) -> None:
        nonlocal count
        while True:
            assert await one.text(tool, {"text": f"good {count}"}) == f"good {count}"
            count += 1
            await trio.sleep(0.005)

    async with daemon.agent() as one:
        await one.text(tool, {"text": "first"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chat, one)
            yield
            enough = count + 3
            await until(lambda: count >= enough, "the good server answers", WAIT_S)
            nursery.cancel_scope.cancel()
