"""A run of an agent program on a stage, with a scripted model, and what was seen of it.

Knows nothing of: single programs, what a run is compared with.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.kit.private_daemon import until
from tests.programs.installed import DIRECTORY
from tests.programs.model.requests import ModelRequest, OfferedTool, offers_tools
from tests.programs.model.server import ScriptedModel
from tests.programs.program import Program
from tests.programs.script import Json, Script
from tests.programs.stage import LATE, SERVER_NAMES, Arm, ProgramStage

PROMPT = "Go through the script."
_SERVER: Final = re.compile(rf"(?<![a-z])({'|'.join((*SERVER_NAMES, LATE))})[_-]")
_BARE: Final = re.compile(
    r"(pid|echo|facts|large|image|structured|structured_alone|links|fails|rejects|slow|steps|asks_user|grow|shrink"
    r"|dies|wordy|for_askable|added_later|shaped|a_tool_with_a_name_of_\w+|grown_\d+)$"
)
"""The odd server's names for its tools, which some programs show as they are."""


@dataclass
class Observation:
    """What was seen of one run."""

    arm: Arm
    code: int
    stdout: str
    stderr: str
    turns: list[ModelRequest]
    """The requests of the agent's loop, in order. The first holds no results."""
    requests: list[ModelRequest]
    events: dict[str, list[Json]]
    """What each server wrote down, until the program had ended."""
    wire: list[Json]
    """The messages between the program and `carpool connect`."""
    left: dict[int, str] = field(default_factory=dict)
    """What was left of the program after its end."""

    def offered(self, turn: int = 0) -> dict[str, OfferedTool]:
        """The tools of the servers that the model was offered in this turn, by their full name."""
        return {
            each.full_name: each
            for each in self.turns[turn].tools
            if _SERVER.search(each.full_name) or _BARE.match(each.full_name)
        }

    def result(self, turn: int) -> str:
        """The text of the answer to the one call of this turn; it stands in the next request."""
        [found] = self.turns[turn + 1].results
        return found.text

    def started(self, server: str = "odd") -> int:
        """So many processes of this server have greeted."""
        return sum(1 for each in self.events[server] if each["event"] == "initialize")

    def said(self) -> str:
        """The end of the program's output, for a failure."""
        return f"exit code {self.code}\n{self.stdout[-2000:]}\n{self.stderr[-3000:]}"

    def last_words(self) -> str:
        """The last line of its output that names an error, else the last one."""
        said = (self.stdout + "\n" + self.stderr).strip().splitlines() or [f"exit code {self.code}"]
        errors = [each for each in said if re.search(r"(Error|Exception)\w*: ", each)]
        return (errors or said)[-1].strip()


def run_program(
    program: Program,
    stage: ProgramStage,
    script: Script,
    *,
    prepare: Callable[[str], None] | None = None,
    is_turn: Callable[[ModelRequest], bool] = offers_tools,
) -> Observation:
    """Run the program to its end. `prepare` writes its files, given the URL of the model."""
    with ScriptedModel(script, stage.loopback.listen(), is_turn=is_turn) as model:
        if prepare is None:
            program.configure(stage.home, stage.entries(), model.url)
        else:
            prepare(model.url)
        command = [*program.executable(DIRECTORY), *program.arguments(PROMPT)]
        environ = {**stage.home.environ, **program.environ(model.url)}
        done = stage.run(command, environ)
        events = {name: stage.events(name) for name in stage.servers}
        seen = Observation(
            stage.arm,
            done.returncode,
            done.stdout,
            done.stderr,
            model.turns,
            model.requests,
            events,
            stage.wire(),
        )
        try:
            until(lambda: not stage.left_by_program(), "nothing of the program is left")
        except AssertionError:
            seen.left = stage.left_by_program()
    return seen
