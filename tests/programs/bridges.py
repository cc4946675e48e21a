"""Bridges between MCP transports: how each is started in front of carpool, around `carpool connect` and as
a server behind carpool.

Owns the commands and what each bridge passes on, with carpool or without. `reached` makes a server
reachable at a URL without carpool.

Knows nothing of: what a test compares.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.kit.ports import free_port
from tests.kit.private_daemon import until
from tests.programs.installed import DIRECTORY, node_program
from tests.programs.pinned import pinned
from tests.programs.program import Entry
from tests.programs.stage import BOUND_S, ProgramStage

_FASTMCP: Final = str(Path(__file__).parent / "agents" / "drivers" / "fastmcp_proxy.py")
_SUPERGATEWAY: Final = "supergateway/dist/index.js"


LISTS: Final = "lists that change"
QUESTIONS: Final = "questions to the user"
PROGRESS: Final = "progress"
CANCEL: Final = "cancel reaches the server"
PASSED_ON: Final = (LISTS, QUESTIONS, PROGRESS, CANCEL)
"""What needs more than calls and answers, so that a bridge may not pass it on."""


@dataclass(frozen=True)
class BridgeProgram:
    """A program between two MCP transports, or between MCP and another API."""

    name: str
    """Also that of its pins and of its directory below `.venv/programs`."""
    title: str
    package: str

    @property
    def version(self) -> str:
        """The version that is pinned."""
        return pinned(self.name, self.package)


MCP_REMOTE: Final = BridgeProgram("mcp-remote", "mcp-remote", "npm mcp-remote")
SUPERGATEWAY: Final = BridgeProgram("supergateway", "supergateway", "npm supergateway")
MCP_PROXY: Final = BridgeProgram("mcp-proxy", "mcp-proxy", "PyPI mcp-proxy")
FASTMCP: Final = BridgeProgram("fastmcp", "fastmcp's proxy", "PyPI fastmcp")
MCPO: Final = BridgeProgram("mcpo", "mcpo", "PyPI mcpo")
BRIDGE_PROGRAMS: Final = (MCP_REMOTE, SUPERGATEWAY, MCP_PROXY, FASTMCP, MCPO)


@dataclass(frozen=True)
class UrlBridge:
    """A bridge that is an MCP server on stdio and passes everything on to a URL."""

    program: BridgeProgram
    to_url: Callable[[str], list[str]]
    passes: frozenset[str]
    """Of `PASSED_ON`, by itself."""
    restores_session: bool
    """It greets again when the server at the URL has forgotten its session."""


@dataclass(frozen=True)
class Wrapper:
    """A bridge that starts an MCP server on stdio and offers it on at a URL or on stdio itself."""

    program: BridgeProgram
    around: Callable[[Entry, int], list[str]]
    """Its command around a server, with the port that it listens on."""
    ready: str
    """It says so once it listens; empty: it speaks on stdio."""
    passes: frozenset[str]
    """Of `PASSED_ON`, by itself."""


def _python(name: str, program: str, *words: str) -> list[str]:
    return [str(DIRECTORY / name / "bin" / program), *words]


URL_BRIDGES: Final = (
    UrlBridge(
        MCP_REMOTE,
        lambda url: [*node_program("mcp-remote", "mcp-remote/dist/proxy.js"), url, "--allow-http"],
        frozenset({LISTS, QUESTIONS, PROGRESS, CANCEL}),
        restores_session=True,
    ),
    UrlBridge(
        SUPERGATEWAY,
        lambda url: [
            *node_program("supergateway", _SUPERGATEWAY),
            *("--streamableHttp", url, "--logLevel", "none"),
        ],
        frozenset({CANCEL}),
        restores_session=False,
    ),
    UrlBridge(
        MCP_PROXY,
        lambda url: _python("mcp-proxy", "mcp-proxy", "--transport", "streamablehttp", url),
        frozenset({PROGRESS}),
        restores_session=False,
    ),
    UrlBridge(
        FASTMCP,
        lambda url: _python("fastmcp", "python", _FASTMCP, url),
        # It makes a session of its own for each call, so that the next one does not see what has changed.
        frozenset({QUESTIONS, PROGRESS, CANCEL}),
        restores_session=True,
    ),
)


def _around_supergateway(entry: Entry, port: int) -> list[str]:
    return [
        *node_program("supergateway", _SUPERGATEWAY),
        *("--stdio", " ".join((entry.command, *entry.args))),
        *("--outputTransport", "streamableHttp", "--stateful", "--port", str(port)),
    ]


def _around_mcp_proxy(entry: Entry, port: int) -> list[str]:
    # By itself it keeps the variables from the server, CARPOOL_RUNTIME_DIR too.
    listens = ("--pass-environment", "--port", str(port))
    return _python("mcp-proxy", "mcp-proxy", *listens, "--", entry.command, *entry.args)


def _around_fastmcp(entry: Entry, _: int) -> list[str]:
    return _python("fastmcp", "python", _FASTMCP, entry.command, *entry.args)


WRAPPERS: Final = (
    Wrapper(
        SUPERGATEWAY,
        _around_supergateway,
        "Listening on port",
        frozenset({LISTS, QUESTIONS, PROGRESS, CANCEL}),
    ),
    Wrapper(MCP_PROXY, _around_mcp_proxy, "Uvicorn running on", frozenset()),
    # Around a command it refuses a question, which it passes on to a URL.
    Wrapper(FASTMCP, _around_fastmcp, "", frozenset({PROGRESS, CANCEL})),
)


def mcpo(entry: Entry, port: int) -> list[str]:
    """mcpo offers the tools of a server as an API of HTTP on this port."""
    listens = ("--host", "127.0.0.1", "--port", str(port))
    if entry.url:
        return _python("mcpo", "mcpo", *listens, "--type", "streamable-http", "--", entry.url)
    return _python("mcpo", "mcpo", *listens, "--", entry.command, *entry.args)


class BridgedServer:
    """A program of a stage that listens on a port, until the end of the block. `end` is the signal for it."""

    def __init__(
        self,
        stage: ProgramStage,
        command: Callable[[int], list[str]],
        ready: str,
        *,
        end: signal.Signals = signal.SIGTERM,
    ) -> None:
        self._signal = end
        self.port = free_port()
        self._stage = stage
        self._command = command(self.port)
        self._ready = ready
        self._log = stage.base / f"listener-{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start it on its port, and wait until it listens."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*self._stage.loopback.prefix, *self._command],
                env=self._stage.shell_environ(),
                cwd=self._stage.base,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until(self._is_ready, f"{self._ready!r} is said", BOUND_S)

    def _is_ready(self) -> bool:
        assert self._process is not None
        said = self._log.read_text(errors="replace")
        assert self._process.poll() is None, f"it has ended: {said[-2000:]}"
        return self._ready in said

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._signal)

    def die_and_come_back(self) -> None:
        """Kill it, with what it has started, and start it again on the same port."""
        self._end(signal.SIGKILL)
        self.start()

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)
        self._process.wait(BOUND_S)

    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


def reached(stage: ProgramStage, entry: Entry) -> BridgedServer:
    """The server of this entry at a URL, by a bridge that passes everything on and keeps sessions."""
    return BridgedServer(stage, partial(_around_supergateway, entry), "Listening on port")
