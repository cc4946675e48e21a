"""A broker that is none: attach lines, a few canned answers, the lifeline. For tests of the client's half.

Standard library only. In a test's own process: `with FakeBroker(directory): …`. As a process it stands in
for the modules `carpool_broker` and `carpool_supervisor` (see `fake_packages`), and then does what the file
`behave-NAME` in the runtime directory says, one word a line: `refuse` (print a config error, exit 2), `crash`
(exit 1 at once), `spawner` (once: leave a child behind), `mute` (never a word), `alone` (says so), `note`
(says something to whoever starts it), `idle` (says so while it lives), `deaf` (ignores every word that ends
it), `drains` (has open calls at `stop again`, until there is a file `answered`).
What the launcher tells it goes to `heard-NAME`, each of its lives to `lives-NAME`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carpool_protocol.carrier.attach_line import ended_line

Json = dict[str, Any]

STOPS = (b"stop", b"stop again", b"stop again now")
"""All of `carpool_protocol.machine.stop_commands`: a fake has no call to wait for."""

_SAID_AT_FIRST = {"alone": b"alone\n", "note": b"note the configuration is broken\n"}

TOOLS: list[Json] = [
    {
        "name": "time__now",
        "server": "time",
        "tool": "now",
        "description": "Tell the time.",
        "aliases": ["time.now", "now"],
        "tags": ["web"],
    },
    {
        "name": "git__log",
        "server": "git",
        "tool": "log",
        "description": "Show\x1b[31m history.",
        "aliases": ["git.log"],
        "tags": [],
    },
]

OPEN_CALLS: list[Json] = [
    {"call": "c7", "server": "git", "tool": "log", "state": "running"},
    {"call": "c8; rm -rf .", "server": "git", "tool": "log", "state": "waiting"},
]

SEEN: list[Json] = [
    {"name": "bare", "state": "serving", "why": "", "tags": [], "tools": []},
    {"name": "dead\x1b", "state": "backing_off", "why": "no", "tags": ["web"], "tools": []},
    {"name": "git", "state": "given_up", "why": "no", "tags": [], "tools": ["git__log"]},
    {"name": "off", "state": "disabled", "why": "", "tags": [], "tools": []},
    {"name": "time", "state": "cold", "why": "", "tags": [], "tools": ["time__now"]},
    {"name": "waits", "state": "untrusted", "why": "no", "tags": [], "tools": []},
]
"""What a session sees of its servers."""

STATUS: Json = {
    "healthy": False,
    "silent": None,
    "reason": "git has given up",
    "broker": {"pid": 11, "uptime_s": 3700.5, "version": "0.1.0", "restarts": 2},
    "supervisors": [{"id": "sup1", "pid": 12}],
    "supervisors_away": [],
    "servers": {
        "time": {
            "state": "serving",
            "well": True,
            "sharing": "concurrent",
            "verified": False,
            "waiting": 0,
            "restarts": 0,
            "tools": 2,
            "last_error": "",
            "instances": [
                {
                    "id": 1,
                    "pid": 21,
                    "state": "fit",
                    "generation": 1,
                    "era": "2025-06-18",
                    "in_flight": 3,
                    "calls": 1234,
                    "rss_bytes": 31457280,
                    "pss_bytes": 20971520,
                    "cpu_percent": 1.5,
                    "uptime_s": 60.0,
                    "holder": "",
                    "holder_agent": "",
                    "holder_pid": 0,
                    "asks": 0,
                    "why": "it was given 1234 calls (limits.calls: 1000)",
                }
            ],
        },
        "browser": {
            "state": "serving",
            "well": True,
            "sharing": "session",
            "verified": True,
            "waiting": 3,
            "restarts": 0,
            "tools": 5,
            "last_error": "",
            "instances": [
                {
                    "id": 2,
                    "pid": 22,
                    "state": "serving",
                    "generation": 1,
                    "era": "2025-11-25",
                    "in_flight": 1,
                    "calls": 7,
                    "rss_bytes": 31457280,
                    "pss_bytes": 20971520,
                    "cpu_percent": 0.5,
                    "uptime_s": 30.0,
                    "holder": "s1",
                    "holder_agent": "clau\x1bde",
                    "holder_pid": 31,
                    "asks": 2,
                    "why": "",
                }
            ],
            "pools": [{"key": "browser:session", "sharing": "serial", "verified": True, "instances": [2]}],
        },
        "git": {
            "state": "breaker_open",
            "well": False,
            "sharing": "auto",
            "verified": False,
            "waiting": 2,
            "restarts": 5,
            "tools": 0,
            "last_error": "exit code 1: no \x1b]0;repository\x07",
            "instances": [],
            "pools": [
                {"key": "git:1", "sharing": "auto", "breaker": "open", "retry_after_s": 42.5, "instances": []}
            ],
        },
    },
    "sessions": [
        {"id": "s1", "agent": "claude", "pid": 31, "era": "2025-06-18", "profile": "", "in_flight": 3},
    ],
    "totals": {
        "instances": 1,
        "sessions": 1,
        "in_flight": 3,
        "calls": 1234,
        "node_sessions": 0,
        "private_processes_avoided": 4,
        "memory_saved_bytes": 83886080,
    },
    "processes": [
        {"role": "supervisor", "pid": 12, "rss_bytes": 36 << 20, "pss_bytes": 23 << 20, "cpu_s": 0.2},
        {"role": "broker", "pid": 11, "rss_bytes": 35 << 20, "pss_bytes": 22 << 20, "cpu_s": 0.3},
    ],
    "config": {"file": "/c.json", "problem": ""},
    "workspaces": [],
    "hooks": [],
    "trace": {"on": False, "problem": "", "exported": 0, "dropped": 0},
    "audit": {"on": False, "file": "", "problem": "", "missed": 0},
    "counters": {
        "enabled": True,
        "run": "0a1b2c3d.0",
        "since": "2026-11-22T10:00:00Z",
        "age_s": 60.0,
        "total": {},
        "servers": {},
        "recent": {
            "window_s": 60.0,
            "servers": {
                "time": {"ended": 7, "failed": 7, "mostly_failed": True},
                "git": {"ended": 7, "failed": 1, "mostly_failed": False},
            },
        },
    },
    "path": {"directories": ["/usr/bin", "/bin"], "login_shell": "asked"},
    "descriptors": {"limit": 1024, "used_up": False, "refused": 0},
}


POOLS: dict[str, list[Json]] = {
    "time": [
        {
            "key": f"time:{number}",
            "mode": "concurrent",
            "verified": False,
            "source": "assumed",
            "lines": ["time is shared as concurrent.", "  Nothing is\x1b[2J known."],
        }
        for number in (1, 2)
    ],
    "browser": [
        {
            "key": f"browser:{mode}",
            "mode": mode,
            "verified": True,
            "source": "config",
            "lines": [f"browser is shared as {mode}."],
        }
        for mode in ("session", "serial")
    ],
}


class FakeBroker:
    """Listens on the agents' socket of `directory` and keeps every message it got in `heard`."""

    def __init__(
        self,
        directory: str | Path,
        env: list[str] | None = None,
        refuse: str = "",
        dies_of: str = "",
    ) -> None:
        """`dies_of`: the method that it closes a connection at, without a word."""
        self.heard: list[Json] = []
        self._dies_of = dies_of
        self._env = env or []
        self._refuse = refuse
        self._path = Path(directory) / "agents.sock"
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "FakeBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        # shutdown wakes the thread in accept; close alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def methods(self) -> list[str]:
        return [message.get("method", "") for message in self.heard]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    self.heard.append(message)
                    if self._dies_of and message.get("method") == self._dies_of:
                        return
                    for answer in self._answers(message):
                        sock.sendall(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
                    if self._refuse:
                        return
                with contextlib.suppress(OSError):  # all is answered at the end of the agent's input
                    sock.sendall(ended_line(""))
            except OSError:
                return

    def _answers(self, message: Json) -> list[Json]:
        method, number, params = message.get("method"), message.get("id"), message.get("params", {})
        if method == "carpool/attach":
            if self._refuse:
                return [{"jsonrpc": "2.0", "method": "carpool/refused", "params": {"text": self._refuse}}]
            attached = {"version": 1, "session": "s1", "env": self._env}
            return [{"jsonrpc": "2.0", "method": "carpool/attached", "params": attached}]
        if number is None:
            return []
        answer = self._result(str(method), params)
        if isinstance(answer, FakeError):
            return [{"jsonrpc": "2.0", "id": number, "error": {"code": answer.code, "message": answer.text}}]
        # A ping first: a caller must not take somebody else's message for its answer.
        ping = {"jsonrpc": "2.0", "id": "p1", "method": "ping"}
        return [ping, {"jsonrpc": "2.0", "id": number, "result": answer}]

    def _result(self, method: str, params: Json) -> "Json | FakeError":
        results: dict[str, Callable[[], Json | FakeError]] = {
            "initialize": lambda: {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "serverInfo": {"name": "fake", "version": "0"},
            },
            "carpool/status": lambda: STATUS,
            "carpool/tools": lambda: self._tools(params.get("name")),
            "carpool/calls": lambda: {"total": len(OPEN_CALLS), "calls": OPEN_CALLS},
            "carpool/servers": lambda: {"servers": SEEN},
            "carpool/operate": lambda: {
                "results": [
                    {
                        "server": name,
                        "ok": name != "git",
                        "text": "done" if name != "git" else "git has given up",
                    }
                    for name in params["servers"] or ["time", "git"]
                ]
            },
            "carpool/reload": lambda: {
                "ok": False,
                "problems": ["carpool.json:3: unknown key 'comand'; did you mean 'command'?"],
                "warnings": ["supervisors: 2 in the configuration, and 1 in force"],
            },
            "carpool/why": lambda: self._why(params["server"]),
            "carpool/testify": dict,
            "carpool/node_act": dict,
            "tools/call": lambda: self._call(params),
        }
        return results.get(method, lambda: FakeError(-32601, f"no {method}"))()

    def _tools(self, name: str | None) -> "Json | FakeError":
        found = [tool for tool in TOOLS if name in (None, tool["name"], *tool["aliases"])]
        return FakeError(-32602, "There is no such tool.") if name == "gone" else {"tools": found}

    def _why(self, server: str) -> "Json | FakeError":
        if server not in STATUS["servers"]:
            return FakeError(-32602, "no such server")
        if server == "git":
            return FakeError(5301, "The server git has no pool: disabled in the configuration.")
        return {"server": server, "pools": POOLS[server]}

    def _call(self, params: Json) -> "Json | FakeError":
        if params["name"] == "unknown":
            return FakeError(-32602, "unknown tool 'unknown'")
        text = json.dumps(params.get("arguments", {}))
        return {
            "content": [{"type": "text", "text": f"{text}\x1b[2J"}],
            "isError": params["name"] == "git__log",
        }


class FakeError:
    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text


def fake_packages(folder: Path) -> str:
    """Make packages in `folder` that stand in for broker, supervisor and sweep: an entry of PYTHONPATH."""
    here = str(Path(__file__).resolve().parent)
    for package in ("carpool_broker", "carpool_supervisor"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        code = (
            f"import sys; sys.path.insert(0, {here!r})\nimport fake_broker; fake_broker.main({package!r})\n"
        )
        (folder / package / "__main__.py").write_text(code)
    sweep = (
        "import os, sys\nopen(os.environ['CARPOOL_RUNTIME_DIR'] + '/swept', 'a').write(sys.argv[1] + '\\n')\n"
    )
    (folder / "carpool_supervisor" / "spawn").mkdir()
    (folder / "carpool_supervisor" / "spawn" / "__init__.py").touch()
    (folder / "carpool_supervisor" / "spawn" / "orphans.py").write_text(sweep)
    return str(folder)


def _heard(lifeline: socket.socket) -> bytes | None:
    """Return what the launcher has sent; empty: it is gone; None: nothing yet."""
    try:
        return lifeline.recv(4096)
    except TimeoutError:
        return None
    except OSError:  # it was killed before it had read everything
        return b""


def main(package: str) -> None:
    """Be a daemon process: the lifeline, and for the broker the agents' socket."""
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    directory = Path(arguments["--runtime-dir"])
    name = arguments.get("--name", "broker")
    behaviour = directory / f"behave-{name}"
    words = behaviour.read_text().split() if behaviour.exists() else []
    lifeline = socket.socket(fileno=int(arguments["--lifeline"]))
    if package == "carpool_broker":
        with (directory / "heirs").open("ab") as heirs:
            while (byte := lifeline.recv(1)) not in {b"\n", b""}:
                heirs.write(byte)
            heirs.write(b"\n")
    with (directory / f"lives-{name}").open("a") as lives:
        lives.write(f"{os.getpid()} {json.dumps(arguments)} {json.dumps(dict(os.environ))}\n")
    if "refuse" in words:
        sys.stderr.write("carpool.json:3: unknown key 'comand'\n")
        sys.exit(2)
    if "crash" in words:
        sys.stderr.write("no module named sense\n")
        sys.exit(1)
    if "spawner" in words:
        spawner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (directory / "spawner").write_text(str(spawner.pid))
        behaviour.unlink()
    lifeline.sendall(b"".join(_SAID_AT_FIRST.get(word, b"") for word in words))
    broker = FakeBroker(directory) if package == "carpool_broker" else None
    if "mute" not in words:
        lifeline.sendall(b"ready\n")
    else:
        time.sleep(60)
    lifeline.settimeout(0.1)
    is_draining = False
    while not (is_draining and (directory / "answered").exists()):
        data = _heard(lifeline)
        if data is None:
            with contextlib.suppress(OSError):  # without a launcher the next read ends this process
                lifeline.sendall(b"idle\n" if "idle" in words else b"alive\n")
            continue
        with (directory / f"heard-{name}").open("ab") as heard:
            heard.write(data)
        if data == b"stop again\n" and "drains" in words:
            is_draining = True
            continue
        told_to_stop = any(line in STOPS for line in data.split(b"\n"))
        if not data or (told_to_stop and "deaf" not in words):
            break
    if broker:
        broker.close()
