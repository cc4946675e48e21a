"""The CPU time of a test run, by file, by fixture and by test: `pytest -p tests.kit.cpu_report PATHS`.

Owns the measurement: before and after each phase of a test and each set-up of a fixture it reads the CPU
time that this pytest process and everything below it have used. Where the kernel's `cpuacct` controller may
be used, each pytest process moves into a control group of its own, which counts daemons as well. Elsewhere
it counts only children that have ended and were waited for, so that live tests look cheaper than they are.
Judges no test.
"""

import os
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

CONTROLLER = Path("/sys/fs/cgroup/cpuacct")
PREFIX = "cpu "
"""Names of the properties of a test that this plugin writes begin with it."""

SHOWN = 60


class CpuClock:
    """Seconds of CPU of this process and of everything that it has started."""

    def __init__(self) -> None:
        self._group: Path | None = CONTROLLER / f"pytest-{os.getpid()}"
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            self.close()
            self._group = None

    @property
    def counts_daemons(self) -> bool:
        return self._group is not None

    def now(self) -> float:
        if self._group is not None:
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in both)

    def close(self) -> None:
        if self._group is not None:
            with suppress(OSError):
                (CONTROLLER / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()


class Measurement:
    """In each process that runs tests: writes what a test has used into its properties."""

    def __init__(self) -> None:
        self._clock = CpuClock()
        self._item: pytest.Item | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        began = self._clock.now()
        result = yield
        self._collected_s = self._clock.now() - began
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        self._item = item
        if self._collected_s:
            item.user_properties.append((f"{PREFIX}collection", self._collected_s))
            self._collected_s = 0.0
        return (yield from self._measured(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measured(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        return (yield from self._measured(item, "teardown"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        assert self._item is not None
        return (yield from self._measured(self._item, f"fixture {fixturedef.baseid}::{fixturedef.argname}"))

    def pytest_unconfigure(self) -> None:
        self._clock.close()

    def _measured(self, item: pytest.Item, what: str) -> Iterator[None]:
        began = self._clock.now()
        try:
            return (yield)
        finally:
            item.user_properties.append((PREFIX + what, self._clock.now() - began))


class Summary:
    """In the process that reports: sums over all tests."""

    def __init__(self) -> None:
        self._by_file: Counter[str] = Counter()
        self._by_fixture: Counter[str] = Counter()
        self._by_phase: Counter[str] = Counter()
        self._by_test: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if not name.startswith(PREFIX) or not isinstance(value, float):
                continue
            what = name.removeprefix(PREFIX)
            if what.startswith("fixture "):
                self._by_fixture[what] += value  # type: ignore[assignment]
                self._calls[what] += 1
            else:
                self._by_phase[what] += value  # type: ignore[assignment]
            if what in {"setup", "call", "teardown"}:
                self._by_test[report.nodeid] += value  # type: ignore[assignment]
                self._by_file[report.nodeid.partition("::")[0]] += value  # type: ignore[assignment]
                self._calls[report.nodeid.partition("::")[0]] += what == "call"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        line = terminalreporter.write_line
        terminalreporter.section("CPU")
        line("  ".join(f"{what} {value:.1f} s" for what, value in self._by_phase.most_common()))
        for title, counter in (
            ("file", self._by_file),
            ("fixture", self._by_fixture),
            ("test", self._by_test),
        ):
            line(f"-- CPU by {title}, the first {SHOWN} of {len(counter)}")
            for what, value in counter.most_common(SHOWN):
                count = f"{self._calls[what]:5d} x " if what in self._calls else ""
                line(f"{value:9.2f} s  {count}{what}")


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if is_worker or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Measurement())
    if not is_worker:
        config.pluginmanager.register(Summary())
