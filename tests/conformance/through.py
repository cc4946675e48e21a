"""The fixture over stdio behind a private carpool, at the carpool's HTTP door: what `--through` runs against.

Owns that carpool from start to proven end: its directory, configuration and port. It runs with every
invariant checked after every event, and ends with a look into its logs for bugs.
Knows nothing of: the suite.
"""

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.conformance.results import SuiteError
from tests.kit.live import Daemon
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.kit.private_daemon import until
from tests.kit.stateless_agent import MODERN, PREFIX

FIXTURE: Final = Path(__file__).parents[1] / "kit" / "servers" / "conformance.py"
SERVER: Final = "fixture"
ERAS: Final = ("auto", "match", "legacy", "modern")
"""`auto` and `match`: each agent gets a process of its own era; else all get one, half of them bridged."""
SHARINGS: Final = ("auto", "serial", "session", "concurrent")
"""`auto` is concurrent here: where several calls run at once, what a server logs is nobody's (rule 5). The
suite wants it, so several suites of the handshake era at once want `serial`.
"""
LANES: Final = 2
"""Of a `serial` fixture of the handshake era, for each suite: the suite leaves questions open, and there a
call that asks keeps its lane, since its handler runs (rule 5). In the stateless era one lane does for all.
"""
PARK_S: Final = 5.0
"""And so long such a question is waited for: the suite gives up on a call after 10 s."""
START_S: Final = 30.0


def listens(port: int) -> bool:
    """Somebody accepts at this port of 127.0.0.1."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def entry(era: str, sharing: str, lanes: int) -> dict[str, Any]:
    """The fixture's configuration: nothing is set that is as it is by default. It keeps to one era itself
    where all agents are to get that one. `lanes`: of its pool, where that is not as it is by default.
    """
    own = ["--era", era] if era in ("legacy", "modern") else []
    pool = {"pool": {"min": lanes, "max": 2 * lanes + 2}} if lanes else {}
    chosen = {"era": era, "sharing": sharing}
    settings = {key: value for key, value in chosen.items() if value != "auto"}
    return {"command": sys.executable, "args": [str(FIXTURE), *own], **settings, **pool}


def _post(url: str, message: dict[str, Any], **headers: str) -> str:
    """POST one message; the session id that came back, if any."""
    said = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    said |= {name.replace("_", "-"): value for name, value in headers.items()}
    asked = urllib.request.Request(url, json.dumps({"jsonrpc": "2.0", **message}).encode(), said)
    with urllib.request.urlopen(asked, timeout=START_S) as answer:
        answer.read()
        session: str = answer.headers.get("Mcp-Session-Id", "")
        return session


def _warm(url: str, daemon: Daemon, lanes: int) -> None:
    """List tools in both eras, and wait for the processes that this starts: the suite gives some calls
    500 ms, and a server on the SDK takes longer to start.
    """
    old = {"protocolVersion": "2025-11-25", "capabilities": {"sampling": {}, "elicitation": {}}}
    info = {"name": "warm", "version": "1"}
    session = _post(url, {"id": 1, "method": "initialize", "params": {**old, "clientInfo": info}})
    _post(url, {"method": "notifications/initialized"}, Mcp_Session_Id=session)
    _post(url, {"id": 2, "method": "tools/list"}, Mcp_Session_Id=session)
    meta = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientCapabilities": {}}
    listing = {"id": 1, "method": "tools/list", "params": {"_meta": meta}}
    _post(url, listing, MCP_Protocol_Version=MODERN, Mcp_Method="tools/list")

    def ready() -> bool:
        states = [each["state"] for each in daemon.facts()["servers"][SERVER]["instances"]]
        return len(states) >= max(lanes, 1) and set(states) == {"serving"}

    until(ready, "the fixture is there", START_S * 2)


@contextmanager
def through(log: Path, *, era: str = ERAS[0], sharing: str = SHARINGS[0], suites: int = 1) -> Iterator[str]:
    """A carpool with the fixture; the URL where its door serves the fixture alone, under its own names.

    `suites`: so many will run at once. At the end what its processes logged is in `log`.

    Raises:
        SuiteError: it did not start, left something running, or logged a bug.
    """
    port = free_port()
    lanes = LANES * suites if (era, sharing) == ("legacy", "serial") else 0
    settings = {"session": {"park_s": PARK_S}} if lanes else {}
    daemon = Daemon({SERVER: entry(era, sharing, lanes)}, http=open_door(port), **settings)
    try:
        try:
            done = daemon.run("up", "--detach", "--config", str(daemon.config))
            if done.returncode:
                raise SuiteError(f"carpool did not start: {done.stderr[-2000:]}")
            deadline = time.monotonic() + START_S
            while not listens(port):
                if time.monotonic() > deadline:
                    raise SuiteError(f"nobody listens at port {port}: {daemon.log_text()[-2000:]}")
                time.sleep(0.05)
            url = f"http://127.0.0.1:{port}/mcp/s/{SERVER}"
            _warm(url, daemon, lanes)
            yield url
        finally:
            if daemon.directory.exists():
                log.write_text(daemon.log_text())
            daemon.close()
    except AssertionError as error:
        raise SuiteError(f"carpool: {error}") from error
