"""The signals that end a command which must first put things in order: Ctrl-C, TERM, HUP.

Process-wide, so for commands only. A signal that was ignored when the command began stays ignored
(`nohup`), but Ctrl-C.
"""

import signal
from types import FrameType
from typing import NoReturn


def interrupt() -> None:
    """From now on the first of these signals raises `KeyboardInterrupt`, and the next ones are ignored."""
    _all(_raise)


def hold_off() -> None:
    """Ignore these signals from now on: the command ends in order, within a bound."""
    _all(signal.SIG_IGN)


def _all(action: "signal._HANDLER") -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:
            signal.signal(number, action)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    hold_off()  # a second one would cut the end short
    raise KeyboardInterrupt
