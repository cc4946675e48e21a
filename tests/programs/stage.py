"""The place of one run: a home, two servers, and for the arm through carpool a carpool of its own that runs.

Owns the directory below /tmp, what runs in it, the hooks that kill and restart parts of it, and the proof
that nothing is left. Every process of a run has this directory in its environment: it is below HOME.

Knows nothing of: single programs, models.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

import msgspec

from carpool.control.control_client import ControlClient, ControlClientError
from carpool.launcher import processes
from carpool.launcher.http_door import read_door_url
from carpool_supervisor import marks
from tests.kit.live import DAEMON_WORDS, SERVERS, alive
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.kit.private_daemon import ROOT, ROOTS, until
from tests.programs.homes import COMMAND, SHAPES, make_home
from tests.programs.loopback import Loopback
from tests.programs.program import Entry
from tests.programs.script import Json, ScriptedCall, Turn

Arm = Literal["direct", "carpool"]
ARMS: Final[tuple[Arm, ...]] = ("direct", "carpool")
CARPOOL: Final = (
    (str(Path(sys.executable).with_name("carpool")),)
    if Path(sys.prefix).resolve().parent == ROOT
    else (sys.executable, "-m", "carpool")
)
"""The command: the installed one, or in a copy of the checkout (`make mutants`) the product of that copy."""
BOUND_S: Final = 180.0
"""The longest that a run waits for anything: the machine may be busy."""
_LIST_S: Final = 60.0
"""The longest that it waits for a list of tools: a program may not ask for it."""
SERVER_NAMES: Final = ("odd", "plain")
_RECORDER: Final = Path(__file__).with_name("recorder.py")
LATE: Final = "late"
"""A third server, which greets late."""
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {"plain": ("--brief",), LATE: ("--brief",)}
GATEWAY: Final = "http_gateway.py"
"""The program that makes a server reachable over HTTP without carpool."""
_ASK_S: Final = 20.0


class ProgramStage:
    """One run's place. `server_options` are more words in the command of a server, by its name;
    `server_settings` are carpool's for each server.
    """

    def __init__(
        self,
        arm: Arm,
        loopback: Loopback,
        *,
        shape: str = "fresh",
        servers: Iterable[str] = SERVER_NAMES,
        server_options: Mapping[str, tuple[str, ...]] | None = None,
        server_environ: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        server_settings: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        configured: bool = True,
    ) -> None:
        self.arm: Arm = arm
        # Not pytest's tmp_path: a socket's path is at most 103 bytes long.
        self.base = Path(tempfile.mkdtemp(prefix="cpp-", dir="/tmp"))
        self.loopback = loopback
        self.shape = shape
        self.home = make_home(self.base, shape, variables or {})
        self.directory = self.base / "rt"
        self.wire_file = self.base / "wire.jsonl"
        self.servers = {
            name: self._server(name, (server_options or {}).get(name, ()), server_environ or {})
            for name in servers
        }
        self.server_settings = dict(server_settings or {})
        self.settings = dict(settings or {})
        self.configured = configured
        self.slow_calls = 0
        config = Path(self.home.environ.get("XDG_CONFIG_HOME", str(self.home.path / ".config")))
        self.config = config / "carpool" / "carpool.json"

    def _server(self, name: str, options: tuple[str, ...], environ: Mapping[str, str]) -> Entry:
        words = ("--name", name, "--log", str(self.log_file(name)), *_OPTIONS.get(name, ()), *options)
        if SHAPES[self.shape].installed:
            return Entry(COMMAND, words, dict(environ))
        return Entry(sys.executable, ("-S", "-E", str(SERVERS / "odd.py"), *words), dict(environ))

    def __enter__(self) -> Self:
        try:
            if self.configured:
                self.write_configuration()
        except BaseException:
            shutil.rmtree(self.base, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_up():
                done = self.carpool("down")
                assert error or done.returncode == 0, done.stderr
            if error is None:
                until(lambda: not self.running(), "nothing of the run is left running")
                assert not list(self.base.rglob("*.sock")), "a socket is left"
        finally:
            for pid in self.running():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.base, ignore_errors=True)

    # --- what programs are told ------------------------------------------------------------------------

    def entries(self) -> dict[str, Entry]:
        """The servers as the program's file has them in this arm."""
        return dict(self.servers) if self.arm == "direct" else {"carpool": self.carpool_entry()}

    def carpool_entry(self) -> Entry:
        """`carpool connect`. A carpool of the run's own needs its runtime directory in the entry, as
        docs/files.md says.
        """
        return self.recorded(Entry(CARPOOL[0], (*CARPOOL[1:], "connect")))

    def recorded(self, entry: Entry) -> Entry:
        """This entry of carpool with a recorder in front and the variables of this run."""
        words = ("-S", "-E", str(_RECORDER), str(self.wire_file), entry.command, *entry.args)
        return Entry(sys.executable, words, {**entry.env, **self.carpool_environ()})

    def carpool_environ(self) -> dict[str, str]:
        """The variables that lead to the carpool of this run, and to the product of this checkout."""
        return {
            "PYTHONPATH": os.pathsep.join(ROOTS),
            "CARPOOL_RUNTIME_DIR": str(self.directory),
            "CARPOOL_CHECK": os.environ.get("CARPOOL_CHECK", "1"),
        }

    def shell_environ(self) -> dict[str, str]:
        """The variables of the user's shell in this home."""
        return {**self.home.environ, **self.carpool_environ()}

    def write_configuration(self, without: str = "") -> None:
        """Write carpool.json with the servers of this run, all or all but one."""
        servers = {
            name: {
                "command": entry.command,
                "args": list(entry.args),
                **({"env": dict(entry.env)} if entry.env else {}),
                **self.server_settings,
            }
            for name, entry in self.servers.items()
            if name != without
        }
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(json.dumps({"mcpServers": servers, **self.settings}), encoding="utf-8")

    # --- running ---------------------------------------------------------------------------------------

    def run(
        self, command: list[str], environ: Mapping[str, str] | None = None, *, cwd: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """A command in the home and the namespace, to its end. Its output goes to files: what outlives the
        command may keep them.
        """
        with (self.base / "stdout").open("w+") as out, (self.base / "stderr").open("w+") as err:
            process = subprocess.Popen(
                [*self.loopback.prefix, *command],
                env=dict(environ if environ is not None else self.shell_environ()),
                cwd=cwd or self.home.project,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                code = process.wait(BOUND_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), err.read())

    def carpool(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`carpool ARGUMENTS` in the user's shell."""
        return self.run([*CARPOOL, *arguments])

    def up(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        http: bool = False,
        start: bool = True,
        without: str = "",
    ) -> None:
        """Start carpool and its servers, so that it knows their tools; without `start` carpool alone. Does
        nothing in the direct arm.
        """
        if self.arm == "direct":
            return
        if http:  # programs are given the URL alone
            self.settings = {**self.settings, "http": open_door(free_port())}
            self.write_configuration(without)
        done = self.run([*CARPOOL, "up", "--detach"], environ or self.shell_environ())
        assert done.returncode == 0, done.stderr
        if start:
            names = [name for name in self.servers if name != without]
            done = self.carpool("start", *names)
            assert done.returncode == 0, done.stdout + done.stderr
            until(partial(self._tools_are_known, names), "carpool knows the tools of every server", BOUND_S)

    def greet_askable_agent(self) -> None:
        """Let an agent that can be asked come, list and go: servers have then been greeted for such
        agents, too.
        """
        if self.arm == "direct":
            return
        names = [name for name in self.servers if self.events(name, "initialize")]
        greeted = {name: len(self.events(name, "initialize")) for name in names}
        hello = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "earlier-agent", "version": "1"},
        }
        with (self.base / "earlier-agent.err").open("wb") as err:
            agent = subprocess.Popen(
                [*CARPOOL, "connect"],
                env=self.shell_environ(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )
            assert agent.stdin is not None
            assert agent.stdout is not None
            with agent.stdin, agent.stdout:
                _send(agent.stdin, {"id": 1, "method": "initialize", "params": hello})
                _read_answer(agent.stdout, 1)
                _send(agent.stdin, {"method": "notifications/initialized"})
                _send(agent.stdin, {"id": 2, "method": "tools/list"})
                _read_answer(agent.stdout, 2)
                until(lambda: self._greeted_since(greeted), "servers are greeted once more", BOUND_S)
            agent.wait(BOUND_S)

    def _tools_are_known(self, names: list[str]) -> bool:
        servers = self.status()["servers"]
        return all(name in servers and servers[name].get("tools") for name in names)

    def _greeted_since(self, counts: Mapping[str, int]) -> bool:
        return all(len(self.events(name, "initialize")) > count for name, count in counts.items())

    def url(self) -> str:
        """The address of MCP at the HTTP door."""
        return read_door_url(str(self.directory))

    def is_up(self) -> bool:
        return bool(self.daemons("launcher"))

    def status(self) -> Json:
        """What `carpool status --json` says."""
        with ControlClient(str(self.directory), control=True) as door:
            found: Json = msgspec.json.decode(door.request("carpool/status", {}, _ASK_S))
        return found

    # --- looking ---------------------------------------------------------------------------------------

    def log_file(self, server: str) -> Path:
        return self.base / f"{server}.jsonl"

    def events(self, server: str, event: str = "") -> list[Json]:
        """What this server wrote down: starts, calls, answers, cancels, ends."""
        return [each for each in read_lines(self.log_file(server)) if event in {"", each["event"]}]

    def wire(self) -> list[Json]:
        """The messages between the program and carpool."""
        return read_lines(self.wire_file)

    def running(self) -> dict[int, str]:
        """Every process of this run and its command."""
        sign = str(self.base)
        return dict(processes.with_environment(lambda environ: any(sign in each for each in environ)))

    def daemons(self, kind: str = "") -> list[int]:
        """carpool's own processes; `kind`: launcher, broker, supervisor."""
        return [
            pid
            for pid, line in self.running().items()
            if any(word in line for word in DAEMON_WORDS) and kind in line and "recorder.py" not in line
        ]

    def server_pids(self, server: str) -> list[int]:
        """Processes of this server that run."""
        log = str(self.log_file(server))
        return [
            pid
            for pid, line in self.running().items()
            if log in line and "odd.py" in line and GATEWAY not in line
        ]

    def left_by_program(self) -> dict[int, str]:
        """What runs and is neither carpool's own nor a server of carpool's or of a gateway."""
        own = set(self.daemons())
        gateways = {pid for pid, line in self.running().items() if GATEWAY in line}
        own |= {pid for pid in self.running() if pid in gateways or marks.parent_of(pid) in gateways}
        if self.arm == "carpool":
            own |= {pid for name in self.servers for pid in self.server_pids(name)}
        return {pid: line for pid, line in self.running().items() if pid not in own}

    # --- hooks: each does nothing where there is no carpool ------------------------------------------------

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(alive, pids)), "a killed process is gone")

    def kill_broker(self) -> None:
        self._kill(self.daemons("carpool_broker"))

    def kill_supervisor(self) -> None:
        """Kill the supervisor, and wait for the next one: a call that comes before counts as open."""
        dead = self.daemons("carpool_supervisor")
        self._kill(dead)
        if dead:
            until(lambda: self._linked() - set(dead), "the next supervisor is linked", BOUND_S)

    def _linked(self) -> set[int]:
        try:
            return {each["pid"] for each in self.status()["supervisors"]}
        except ControlClientError:  # the broker does not answer yet
            return set()

    def kill_launcher(self) -> None:
        """Kill the launcher, and wait until the rest has ended: a call that comes before counts as open."""
        rest = self.daemons()
        self._kill(self.daemons("carpool.launcher"))
        until(lambda: not any(map(alive, rest)), "the processes of a dead launcher end", BOUND_S)

    def kill_door(self) -> None:
        """Kill the HTTP door, and wait until the next one listens.

        The URL of the dead door stays in its file until the launcher has seen its end.
        """
        dead = self.daemons("carpool.http")
        self._kill(dead)
        until(
            lambda: bool(self.url()) and bool(set(self.daemons("carpool.http")) - set(dead)),
            "the next HTTP door listens",
            BOUND_S,
        )

    def restart_all(self) -> None:
        if self.arm == "carpool":
            done = self.carpool("restart", "--all")
            assert done.returncode == 0, done.stderr

    def down(self) -> None:
        if self.arm == "carpool":
            done = self.carpool("down")
            assert done.returncode == 0, done.stderr

    def down_and_up(self) -> None:
        self.down()
        self.up()

    def kill_server(self, name: str) -> None:
        """Kill this server, in either arm."""
        self._kill(self.server_pids(name))

    def slow_call(self, act: Callable[[], None], *, ends_first: bool = False) -> Turn:
        """A call of `slow` during which something happens, and which then ends.

        `ends_first`: what happens waits for the end of the call, so it is begun and not waited for.
        """
        self.slow_calls += 1
        number, gate = self.slow_calls, self.base / f"gate-{self.slow_calls}"

        def open_calls() -> int:
            return sum(1 for each in self.events("odd", "call") if each["tool"] == "slow")

        def during() -> None:
            try:
                until(lambda: open_calls() >= number, "the slow call has reached the server", BOUND_S)
                if ends_first:
                    acting = threading.Thread(target=act)
                    acting.start()
                    until((self.directory / "restart").exists, "carpool restarts", BOUND_S)
                    gate.touch()
                    acting.join()
                else:
                    act()
            finally:
                gate.touch()

        return Turn(calls=(ScriptedCall("odd", "slow", {"until": str(gate)}),), during=during)

    def wait_for_list(self) -> None:
        """Wait until a list of tools has been answered to the program."""
        self.wait_for_lists(1)

    def program_lists(self) -> int:
        """So many lists of tools have been answered to the program since its start."""
        if self.arm == "carpool":
            return sum(map(lists_tools, self.wire()))
        starts = [at for at, each in enumerate(self.events("odd")) if each["event"] == "start"]
        return sum(1 for each in self.events("odd")[starts[-1] :] if each["event"] == "list")

    def wait_for_lists(self, count: int) -> None:
        """Wait until so many lists of tools have been answered to the program."""
        until(lambda: self.program_lists() >= count, f"list {count} of tools is answered", _LIST_S)


def lists_tools(line: Json) -> bool:
    """This line of the recorder is an answer with tools."""
    message = line["message"]
    return line["from"] == "server" and ("tools" in message or "tools" in (message.get("result") or ()))


def _send(stdin: IO[bytes], message: Json) -> None:
    stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    stdin.flush()


def _read_answer(stdout: IO[bytes], ident: int) -> Json:
    for line in stdout:
        message: Json = json.loads(line)
        if message.get("id") == ident:
            return message
    raise AssertionError(f"no answer to request {ident}")


def read_lines(file: Path) -> list[Json]:
    """The JSON lines of a file; a line that is being written is left out."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1] if line]
