"""The protocol between the broker and the process of one hook: JSON lines on its stdin and stdout.

Owns the shapes. The first line describes the hook; then runs begin and end by number. The process says once
that it is ready or unusable. For each `BeginHookRun` with a call there is one `HookAnswer` with a verdict or
a failure, unless the process ends. The broker chooses all numbers.

Pure. Knows nothing of: the meaning of a verdict (`verdicts`), processes.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

MAX_RUNNING: Final = 32
"""Maximum number of runs of one hook at a time; each run of a command is a process."""
NOTHING: Final = Raw()


class StartHook(Struct, kw_only=True):
    """The hook that the process runs: a Python function or a command."""

    python: str | None = None
    """`package.module:function`"""
    argv: list[str] = []
    folders: list[str] = []
    """Directories in which modules are looked up, besides the usual ones."""


class BeginHookRun(Struct, kw_only=True, omit_defaults=True):
    """Ask the hook about this call; without a call: end that run."""

    run: int
    call: Raw = NOTHING
    """`verdicts.HookCall`"""


class HookAnswer(Struct, kw_only=True, omit_defaults=True):
    """One line of the process, about one run or (run 0) about itself. Empty: it is ready for runs."""

    run: int = 0
    group: int = 0
    """The process group that the run has started."""
    verdict: Raw = NOTHING
    """The run is over with this verdict."""
    failed: str = ""
    """The run, or every run of this process, has failed for this reason. It holds no content of a call."""


def line_of(message: Struct) -> bytes:
    """One Struct as a JSON line, with its line end."""
    return msgspec.json.encode(message) + b"\n"


read_start = msgspec.json.Decoder(StartHook).decode
read_begin_run = msgspec.json.Decoder(BeginHookRun).decode
read_answer = msgspec.json.Decoder(HookAnswer).decode
