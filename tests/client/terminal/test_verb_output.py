"""Verbs whose output cannot be written end with a sentence and code 1."""

import os
import subprocess
import sys

import click
import pytest

from carpool.terminal import screen
from carpool.terminal.verb_output import fail
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

VERBS = (
    ("--help",),
    ("schema",),
    ("check", "--json"),
    ("token", "list"),
    ("tools", "--json"),
    ("up", "--help"),
    ("connect", "--help"),
    ("--version",),
)


def said(house: PrivateDaemon, shell: str, verb: tuple[str, ...], unbuffered: str) -> tuple[int, str]:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {shell}', "sh", sys.executable, "-m", "carpool", *verb],
        env={**house.environ, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@behaviour("cli:output")
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_told_in_one_line(
    house: PrivateDaemon, verb: tuple[str, ...], unbuffered: str
) -> None:
    if os.path.exists("/dev/full"):  # not on macOS
        full = "carpool: cannot write the output: No space left on device\n"
        assert said(house, ">/dev/full", verb, unbuffered) == (1, full)
    closed = "carpool: cannot write the output: Bad file descriptor\n"
    assert said(house, ">&-", verb, unbuffered) == (1, closed)


def test_a_verb_that_fails_before_it_prints_keeps_its_code(house: PrivateDaemon) -> None:
    code, text = said(house, ">&-", ("nonsense",), "")
    assert (code, "there is no verb" in text) == (2, True)


def test_an_error_is_wrapped_on_a_terminal_and_whole_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for width in (24, None):
        monkeypatch.setattr(screen, "error_width", lambda width=width: width)
        with pytest.raises(click.exceptions.Exit):
            fail("no server is called git; `carpool status` lists all")
        shown.append(capsys.readouterr().err.splitlines())
    assert shown[0] == ["carpool: no server is", "called git; `carpool", "status` lists all"]
    assert shown[1] == ["carpool: no server is called git; `carpool status` lists all"]
