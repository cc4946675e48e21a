"""What holds for every test: generating examples may take as long as a busy machine needs, the garbage
collector passes over what collecting the tests has made, and a test leaves the signals as it found them.

`make test` runs several at once. So a test has its own directory, looks for processes by its own marks only,
takes a port that it must know from `tests.kit.ports`, and has the same name in every process: parameters come
in an order (no set), and what differs from run to run (a pid) has an id.
"""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Collecting six thousand tests makes millions of objects that stay: the garbage collector went through them
# again and again, for two fifths of the time that collecting took, and in every test afterwards.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on the garbage collector sees what tests make, and no longer the tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have to say though they passed (`record_property("report", TEXT)`)."""
    for test in terminalreporter.getreports("passed"):
        for name, text in test.user_properties:
            if name == "report" and test.when == "call":
                terminalreporter.write_line(f"{test.nodeid} passed:\n{text}")


# A shell lets a job in the background ignore SIGINT, and `nohup` SIGHUP. What tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)


_HANDLERS = pytest.StashKey[dict[signal.Signals, Any]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Remember how the test finds the signals."""
    item.stash[_HANDLERS] = {number: signal.getsignal(number) for number in _SIGNALS}
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fail a test that leaves another handler: what later tests start would inherit a signal that is ignored,
    and end by KILL alone.
    """
    result = yield
    found = item.stash[_HANDLERS]
    changed = [number for number in _SIGNALS if signal.getsignal(number) != found[number]]
    for number in changed:
        signal.signal(number, found[number])
    assert not changed, f"the test has changed the handler of {', '.join(each.name for each in changed)}"
    return result


# No test reads the configuration of whoever runs the tests, or writes into their state.
_HOME, _PID = tempfile.mkdtemp(prefix="carpool-tests-"), os.getpid()
for _variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
    os.environ[_variable] = os.path.join(_HOME, _variable)


@atexit.register
def _remove_home() -> None:
    if os.getpid() == _PID:  # no child that a test has forked
        shutil.rmtree(_HOME, ignore_errors=True)


# No test runs the login shell of whoever runs the tests: this one is none that carpool asks.
os.environ["SHELL"] = "/bin/false"

settings.register_profile(
    "busy machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
