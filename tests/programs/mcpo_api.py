"""mcpo in front of a server: an API of HTTP, as a caller of it sees it.

Owns the calls of a caller, and the words in answers that mcpo or carpool chooses.

Knows nothing of: what is expected.
"""

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.kit.private_daemon import until
from tests.programs.bridge_tours import CancelledCall, Name
from tests.programs.bridges import CANCEL, LISTS, QUESTIONS, BridgedServer, mcpo
from tests.programs.program import Entry
from tests.programs.script import Json
from tests.programs.stage import ProgramStage

_CALLER: Final = str(Path(__file__).parent / "agents" / "drivers" / "api_caller.py")
_READY: Final = "Uvicorn running on"
CALLS: Final[dict[str, Json]] = {
    "large": {},
    "image": {},
    "structured": {},
    "structured_alone": {},
    "links": {},
    "fails": {},
    "rejects": {},
    "steps": {"count": 3, "seconds": 0.3},
    "asks_user": {},
    "echo": {"text": "well"},
}
"""The tools that are called, with their arguments."""


class McpoApi:
    """mcpo in front of this entry, as a caller of its API sees it."""

    def __init__(self, stage: ProgramStage, entry: Entry, name: Name) -> None:
        self._stage = stage
        self._name = name
        # After SIGTERM it waits for a session that its server has forgotten, for minutes.
        self.server = BridgedServer(stage, lambda port: mcpo(entry, port), _READY, end=signal.SIGKILL)

    def _ask(self, *words: str) -> str:
        done = self._stage.run(["python3", _CALLER, *words])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.port}/{path}"

    def tools(self) -> dict[str, str]:
        """The description of each tool, by its name in this arm."""
        _, _, body = self._ask("GET", self._url("openapi.json")).partition(" ")
        return {
            path.lstrip("/"): told["post"]["description"] for path, told in json.loads(body)["paths"].items()
        }

    def call(self, tool: str, arguments: Json | None = None) -> str:
        """The status and body of a call of this tool."""
        told = CALLS[tool] if arguments is None else arguments
        return self._ask("POST", self._url(self._name(tool)), json.dumps(told))

    def answers(self) -> dict[str, str]:
        """The answer to each call, without words that carpool or mcpo chooses."""
        return {tool: _said(self.call(tool)) for tool in CALLS}

    def passed(self, answers: dict[str, str]) -> frozenset[str]:
        """What it passes on of `bridges.PASSED_ON`. Its API has no word for progress."""
        self.call("grow", {})
        found = {
            LISTS: self._name("grown_1") in self.tools(),
            QUESTIONS: "accept" in answers["asks_user"],
            CANCEL: self._cancels(),
        }
        return frozenset(name for name, there in found.items() if there)

    def _cancels(self) -> bool:
        """A caller goes away during a call."""
        cancel = CancelledCall(self._stage)
        arguments = cancel.step("slow")["params"]["arguments"]
        words = ["python3", _CALLER, "POST", self._url(self._name("slow")), json.dumps(arguments)]
        with subprocess.Popen(
            [*self._stage.loopback.prefix, *words],
            env=self._stage.shell_environ(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as caller:
            try:
                until(cancel.is_called, "the slow call has reached the server")
            finally:
                caller.kill()
        cancel.look()
        return cancel.seen


def _said(answer: str) -> str:
    answer = re.sub(r"carpool\+odd\+odd://", "odd://", answer)
    # carpool asks every server for progress, since it restarts the limit of a call.
    answer = re.sub(r"(?<=steps are done), (told|not asked for)", "", answer)
    return re.sub(r'-326\d\d, \\*"message\\*": \\*"[^"\\]*', "refused", answer)
