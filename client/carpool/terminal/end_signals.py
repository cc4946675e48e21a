"""The signals that end a command which must first put things in order: Ctrl-C, TERM, HUP.

Process-wide, so for commands only. A signal that was ignored when the command began stays ignored
(`nohup`), but Ctrl-C.
"""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

_END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def interrupt() -> None:
    """From now on the first of these signals raises `KeyboardInterrupt`, and the next ones are ignored."""
    _all(_raise)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Run the block, in which the first of these signals raises `KeyboardInterrupt`; then act as before."""
    before = {number: signal.getsignal(number) for number in _END_SIGNALS}
    interrupt()
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def hold_off() -> None:
    """Ignore these signals from now on: the command ends in order, within a bound."""
    _all(signal.SIG_IGN)


@contextlib.contextmanager
def postpone_interrupt() -> Iterator[None]:
    """Run the block to its end, then act on a signal that came meanwhile.

    For the start of a process: an interrupt between its start and the line that keeps it would leave it
    running.
    """
    is_received = False

    def record(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_received
        is_received = True

    postponed = [number for number in _END_SIGNALS if signal.getsignal(number) is _raise]
    for number in postponed:
        signal.signal(number, record)
    try:
        yield
    finally:
        for number in postponed:
            signal.signal(number, _raise)
    if is_received:
        _raise(signal.SIGINT, None)


def _all(action: "signal._HANDLER") -> None:
    for number in _END_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:
            signal.signal(number, action)


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    hold_off()  # a second one would cut the end short
    raise KeyboardInterrupt
