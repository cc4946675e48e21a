"""What the broker and the process of one hook say to each other: JSON lines on its stdin and stdout.

Owns the shapes. The first line says what the hook is; then runs begin and end by number. The process says
once that it is ready, or good for nothing. For each `BeginHookRun` with a call there is one `HookAnswer`
with a verdict or a failure, unless the process is at its end. Source of all numbers is the broker.

Pure. Knows nothing of: what a verdict means (`verdicts`), processes.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

MAX_RUNNING: Final = 32
"""Runs of one hook at once; each run of a command is a process."""
NOTHING: Final = Raw()


class StartHook(Struct, kw_only=True):
    """What the process is for: one of the two."""

    python: str | None = None
    """`package.module:function`"""
    argv: list[str] = []
    folders: list[str] = []
    """Where modules are looked for beside the usual places."""


class BeginHookRun(Struct, kw_only=True, omit_defaults=True):
    """Have the hook look at this call; or, without it, end that run."""

    run: int
    call: Raw = NOTHING
    """`verdicts.HookCall`"""


class HookAnswer(Struct, kw_only=True, omit_defaults=True):
    """One line of the process: of a run, or without one of itself; without anything: it is ready for runs."""

    run: int = 0
    group: int = 0
    """The run has started this process group."""
    verdict: Raw = NOTHING
    """The run is over, and this is what the hook said."""
    failed: str = ""
    """The run is over, or no run will ever be anything, for this reason. It holds nothing of a call."""


def line_of(what: Struct) -> bytes:
    """With its end."""
    return msgspec.json.encode(what) + b"\n"


read_start = msgspec.json.Decoder(StartHook).decode
read_begin_run = msgspec.json.Decoder(BeginHookRun).decode
read_answer = msgspec.json.Decoder(HookAnswer).decode
