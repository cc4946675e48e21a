"""Completion: which names a shell is offered, by its own protocol, and that nothing is started for it."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from carpool.cli import completion
from carpool.cli.completion_values import known_names, past_calls
from carpool.cli.main import VERBS, verbs
from carpool.launcher.up import USAGE as UP_USAGE
from carpool.shim.shim import USAGE
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.fake_broker import FakeBroker
from tests.kit.private_daemon import PrivateDaemon


@pytest.fixture
def broker(house: PrivateDaemon) -> Iterator[FakeBroker]:
    with FakeBroker(house.directory) as broker:
        yield broker


@pytest.fixture
def configured(house: PrivateDaemon) -> PrivateDaemon:
    file = house.base / "carpool.json"
    file.write_text(
        '{"mcpServers": {"alpha": {"command": "true"}, "alto": {"command": "true"}},'
        ' "profiles": {"reader": {"allow": ["*"]}}}'
    )
    house.environ["CARPOOL_CONFIG"] = str(file)
    return house


def _asked(house: PrivateDaemon, shell: str, *words: str) -> list[str]:
    """Return the lines that a shell's script gets for a command line whose last word is incomplete."""
    given = {"COMP_WORDS": shlex.join(["carpool", *words]), "COMP_CWORD": str(len(words))}
    if shell == "fish":
        given["COMP_CWORD"] = words[-1]
    done = subprocess.run(
        [sys.executable, "-m", "carpool"],
        env={**house.environ, **given, completion.VARIABLE: f"{shell}_complete"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def _offered(house: PrivateDaemon, *words: str) -> list[str]:
    return [line.partition(",")[2] for line in _asked(house, "bash", *words) if line.startswith("plain,")]


@behaviour("cli:completion")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("stat",), ["status", "stats"]),
        (("why", ""), ["time", "browser", "git"]),
        (("status", "--server", "g"), ["git"]),
        (("restart", "time", "b"), ["browser"]),
        (("call", "time"), ["time__now"]),
        (("status", "--session", ""), ["s1"]),
        (("cancel", ""), ["c7"]),
        (("story", ""), ["c7"]),
        (("status", "--state", "serv"), ["serving"]),
        (("up", "--de"), ["--detach"]),
        (("connect", "--pro"), ["--profile"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
    ],
)
def test_names_come_from_the_carpool_that_runs(
    house: PrivateDaemon, broker: FakeBroker, words: tuple[str, ...], names: list[str]
) -> None:
    assert _offered(house, *words) == names


@behaviour("cli:completion")
def test_past_calls_are_offered_from_an_audit_that_holds_other_lines_too(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    call = {"id": "c3", "server": "git", "name": "log", "outcome": "ok"}
    lines = [call, {"act": "stop", "targets": ["git"]}, {"missed": 4}, {**call, "id": "c4"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [name for name, _ in past_calls(str(file))] == ["c4", "c3"]


@behaviour("cli:completion")
def test_names_come_from_the_configuration_where_nothing_runs(configured: PrivateDaemon) -> None:
    assert _offered(configured, "start", "al") == ["alpha", "alto"]
    assert _offered(configured, "connect", "--profile", "") == ["reader"]
    assert _offered(configured, "tools", "--profile", "r") == ["reader"]
    assert _offered(configured, "call", "") == []
    assert not configured.launcher


@behaviour("cli:completion")
def test_a_broker_that_says_nothing_is_not_waited_for(house: PrivateDaemon) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(paths.agents_socket(str(house.directory)))
        mute.listen(1)
        assert _offered(house, "status", "--session", "") == []
        assert _offered(house, "call", "") == []
    os.unlink(paths.agents_socket(str(house.directory)))


@behaviour("cli:completion")
def test_the_time_is_bounded_whatever_is_waited_for(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = house.base / "never-written"
    os.mkfifo(pipe)
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(house.directory))
    monkeypatch.setattr("carpool.cli.completion_values.LIMIT_S", 0.05)
    monkeypatch.setattr("carpool.cli.completion_values._read", lambda *_: pipe.read_text())
    assert known_names("server") == []


def test_a_place_that_is_not_trusted_is_not_asked(
    house: PrivateDaemon, broker: FakeBroker, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    house.environ["CARPOOL_RUNTIME_DIR"] = os.path.relpath(house.directory)
    assert _offered(house, "why", "") == []
    assert broker.heard == []


@behaviour("cli:completion")
def test_bash_completes_names(house: PrivateDaemon, broker: FakeBroker) -> None:
    command = house.base / "bin" / "carpool"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m carpool "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(carpool completion bash)"; complete -p carpool; COMP_WORDS=(carpool call ""); COMP_CWORD=2;'
        ' _carpool_completion carpool; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**house.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["time__now", "git__log"]


def test_zsh_gets_a_name_and_its_words_in_three_lines(house: PrivateDaemon, broker: FakeBroker) -> None:
    assert _asked(house, "zsh", "status", "--session", "") == ["plain", "s1", "claude"]


def test_fish_gets_a_name_and_its_words_in_one_line(house: PrivateDaemon, broker: FakeBroker) -> None:
    assert _asked(house, "fish", "call", "time") == ["plain,time__now\ttime"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_one_of_its_shell(house: PrivateDaemon, shell: str) -> None:
    script = house.run("completion", shell).stdout
    assert f"{completion.VARIABLE}={shell}_complete" in script
    if shutil.which(shell) is not None:
        done = subprocess.run(
            [shell, "--no-execute"], input=script, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_every_parameter_of_the_table_is_one() -> None:
    context = click.Context(verbs)
    there = set()
    for verb in VERBS:
        command = verbs.get_command(context, verb)
        assert command is not None
        there |= {(verb, parameter.name or "") for parameter in command.params}
    assert completion.OF_A_VERB.keys() <= there
    assert completion.OF_ALL_VERBS.keys() <= {name for _, name in there}


@pytest.mark.parametrize("verb", ["up", "connect", "run"])
def test_the_options_of_verbs_without_click_are_those_of_their_help(verb: str) -> None:
    text = UP_USAGE if verb == "up" else USAGE[verb]
    options = {name for each in completion.early_command(verb, "", ()).params for name in each.opts}
    assert {each.strip("[]") for each in text.split() if each.startswith("[--") and each != "[--]"} == {
        each for each in options if each.startswith("--")
    }


def test_help_completes_verbs(house: PrivateDaemon) -> None:
    assert _offered(house, "help", "stat") == ["status", "stats"]
    assert _offered(house, "version", "") == []
