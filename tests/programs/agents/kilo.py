"""Kilo CLI, a fork of opencode with the same shape of configuration."""

from typing import Final

from tests.programs.agents.opencode import ENTRY, IDLE, writer
from tests.programs.program import Program

PROGRAM: Final = Program(
    name="kilo",
    title="Kilo CLI",
    kind="agent",
    api="chat",
    executable=lambda directory: [str(directory / "kilo/node_modules/@kilocode/cli-linux-x64/bin/kilo")],
    configure=writer("kilo/kilo.json"),
    arguments=lambda prompt: ["run", "--auto", prompt],
    environ=lambda _: {"KILO_DISABLE_AUTOUPDATE": "1", "KILO_DISABLE_MODELS_FETCH": "1"},
    entry=ENTRY.format(file="~/.config/kilo/kilo.json"),
    package="npm @kilocode/cli-linux-x64",
    asks_progress=True,
    lists_again=True,
    idle=IDLE,
)
