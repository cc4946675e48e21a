"""What the quick verbs import, counted: a time depends on the machine (`bench/command_line.py` has those)."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

import carpool_protocol.bootstrap.release
from tests.behaviours import behaviour
from tests.kit.fake_broker import FakeBroker
from tests.kit.private_daemon import PrivateDaemon

_RUN = """
import atexit, sys
before = set(sys.modules)
atexit.register(lambda: print(*sorted(set(sys.modules) - before), file=sys.stderr))
{}
"""
_VERB = "sys.argv = ['carpool', *{!r}]; from carpool.entry import main; main()"


@pytest.fixture
def broker(house: PrivateDaemon) -> Iterator[FakeBroker]:
    with FakeBroker(house.directory) as broker:
        yield broker


def _modules(house: PrivateDaemon, code: str) -> set[str]:
    """Return the modules that the code imports in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _RUN.format(code)],
        env=house.environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return set(done.stderr.splitlines()[-1].split())


@behaviour("cli:start-up")
def test_the_version_is_told_without_the_command_line(house: PrivateDaemon) -> None:
    loaded = _modules(house, _VERB.format(["--version"]))
    assert not loaded & {"click", "msgspec", "importlib.metadata", "typing", "re", "carpool.cli.main"}
    assert len(loaded) <= 10
    shown = house.run("--version").stdout
    assert shown == f"carpool, version {carpool_protocol.bootstrap.release.RELEASE}\n"


@behaviour("cli:start-up")
@pytest.mark.parametrize("verb", ["status", "ps"])
def test_a_verb_that_looks_imports_little_beyond_click_and_msgspec(
    house: PrivateDaemon, broker: FakeBroker, verb: str
) -> None:
    libraries = _modules(house, "import click, msgspec")
    loaded = _modules(house, _VERB.format([verb]))
    heavy = {"subprocess", "importlib.metadata", "hashlib", "difflib", "shutil", "carpool.launcher.up"}
    assert not (loaded - libraries) & heavy
    assert "carpool.cli.tools" not in loaded
    assert len(loaded - libraries) <= 60


@behaviour("cli:start-up")
@pytest.mark.parametrize(
    ("verb", "unneeded"),
    [
        ("call", "carpool_protocol.config.reading.load"),
        ("edit", "carpool.setup.secrets"),
    ],
)
def test_a_verb_imports_what_few_runs_of_it_need_only_there(
    house: PrivateDaemon, verb: str, unneeded: str
) -> None:
    assert unneeded not in _modules(house, f"import carpool.cli.{verb}")
