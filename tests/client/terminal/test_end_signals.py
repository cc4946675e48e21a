"""The signals that end a command: an interrupt waits for the end of a start that it must not cut."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from carpool.demo import crowd
from carpool.terminal import end_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _restored(default_signals: None) -> None:
    """Each test here changes the handlers of its process."""


@pytest.mark.parametrize("number", SIGNALS)
def test_an_interrupt_waits_for_the_end_of_the_block_and_then_is_raised(number: signal.Signals) -> None:
    steps: list[str] = []
    end_signals.interrupt()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the block is what is tested
        with end_signals.postpone_interrupt():
            os.kill(os.getpid(), number)
            steps.append("the block went on")
        steps.append("after the block")
    assert steps == ["the block went on"]
    os.kill(os.getpid(), number)  # a second one is ignored


def test_the_next_interrupt_after_a_block_without_one_is_raised_at_once() -> None:
    end_signals.interrupt()
    with end_signals.postpone_interrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_is_held_off_stays_so_in_a_block() -> None:
    end_signals.hold_off()
    with end_signals.postpone_interrupt():
        os.kill(os.getpid(), signal.SIGINT)


def test_an_agent_started_in_the_moment_of_an_interrupt_is_ended_by_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted_start(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        process = popen(*args, **kwargs)
        started.append(process)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted_start)
    agents = crowd.DemoAgents({**os.environ}, tmp_path, time.monotonic() + 60)
    end_signals.interrupt()
    with pytest.raises(KeyboardInterrupt):
        agents.start({"number": 0})
    agents.close()
    assert [process.poll() is None for process in started] == [False]
