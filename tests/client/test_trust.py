"""The verb `trust`: what is shown, who is asked, what is kept."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.behaviours import behaviour
from tests.kit.house import House


def project(
    house: House, text: str = '{"mcpServers": {"b": {"command": "echo", "args": ["hello world"]}}}'
) -> Path:
    file = house.base / "work" / ".mcp.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def trusted(house: House) -> list[str]:
    return [each["file"] for each in json.loads(house.run("trust", "--list", "--json").stdout)]


def answered(house: House, directory: Path, answer: str) -> tuple[int, str]:
    """`carpool trust` on a terminal where somebody types."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "carpool", "trust", str(directory)],
            env=house.environ,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.write(ours, f"{answer}\n".encode())
        said, _ = process.communicate(timeout=30)
    finally:
        os.close(ours)
        os.close(theirs)
    return process.returncode, said.decode()


@behaviour("trust:asked")
def test_a_person_is_shown_the_commands_and_asked(house: House) -> None:
    file = project(house)
    code, said = answered(house, file.parent, "n")
    assert (code, trusted(house)) == (1, [])
    assert "b       echo 'hello world'  -" in said
    assert f"{file} would run, in {file.parent}:" in said
    code, said = answered(house, file.parent / "deep" / "er", "y")
    assert (code, trusted(house)) == (0, [str(file)])
    assert f"{file} is trusted" in said
    assert house.run("trust", str(file.parent)).stdout == f"{file} is trusted already\n"


def test_without_a_terminal_nothing_is_trusted_unless_said(house: House) -> None:
    file = project(house)
    done = house.run("trust", str(file.parent))
    assert (done.returncode, trusted(house)) == (2, [])
    assert "say `carpool trust --yes`" in done.stderr
    done = house.run("trust", "--yes", "--json", str(file.parent))
    assert (done.returncode, trusted(house)) == (0, [str(file)])
    facts = json.loads(done.stdout)
    assert (facts["trust"], facts["workspace"]) == ("trusted", str(file.parent))
    assert facts["servers"] == [
        {
            "name": "b",
            "command": ["echo", "hello world"],
            "env": [],
            "cwd": "${workspace}",
            "disabled": False,
        }
    ]


@behaviour("trust:asked-again")
def test_a_change_is_said_and_asked_again(house: House) -> None:
    file = project(house)
    house.run("trust", "--yes", str(file.parent))
    project(house, '{"mcpServers": {"b": {"command": "rm"}}}')
    done = house.run("trust", str(file.parent))
    assert done.returncode == 2
    assert "has changed since you trusted it" in done.stdout


def test_trust_is_taken_back(house: House) -> None:
    file = project(house)
    house.run("trust", "--yes", str(file.parent))
    done = house.run("trust", "--revoke", "--json", str(file.parent))
    assert json.loads(done.stdout) == {"file": str(file), "trust": "untrusted", "was": True}
    assert trusted(house) == []


def test_what_it_would_replace_and_shadow_is_said_and_values_are_not(house: House) -> None:
    own = house.base / ".config" / "carpool" / "carpool.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"mcpServers": {"b": {"command": "mine"}}}')
    file = project(house, '{"mcpServers": {"b": {"command": "x", "env": {"K": "hunter2"}, "odd": 1}}}')
    (file.parent / "opencode.json").write_text("{}")
    done = house.run("trust", "--yes", str(file.parent))
    assert "b takes the place of your own server of this name" in done.stdout
    assert f"{file.parent}/opencode.json is not read: {file} shadows it" in done.stdout
    assert 'does not know the key "odd"' in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_where_there_is_no_project_or_a_broken_one_the_exit_code_is_2(house: House) -> None:
    bare = house.base / "bare"
    bare.mkdir()
    done = house.run("trust", str(bare))
    assert done.returncode == 2
    assert f"no project file from {bare} upwards" in done.stderr
    file = project(house, "{")
    done = house.run("trust", "--yes", str(file.parent))
    assert done.returncode == 2
    assert f"{file}:1: this {{ is not closed" in done.stderr
    assert house.run("trust", "--yes", "--revoke").returncode == 2
