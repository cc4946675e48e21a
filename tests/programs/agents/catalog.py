"""Every program that runs can be made of."""

from typing import Final

from tests.programs.agents import (
    claude_code,
    cline,
    codex,
    continue_cli,
    gemini_cli,
    kilo,
    opencode,
    python_agents,
    qwen_code,
)
from tests.programs.program import Program

_AGENTS: Final = (
    codex.PROGRAM,
    claude_code.PROGRAM,
    opencode.PROGRAM,
    gemini_cli.PROGRAM,
    qwen_code.PROGRAM,
    cline.PROGRAM,
    continue_cli.PROGRAM,
    kilo.PROGRAM,
    *python_agents.PROGRAMS,
)
PROGRAMS: Final[dict[str, Program]] = {each.name: each for each in _AGENTS}
CI: Final = ("codex", "claude-code")
"""The programs of `make programs-ci`."""
