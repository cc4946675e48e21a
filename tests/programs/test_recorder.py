"""The recorder between a program and its server changes nothing and writes down each message."""

import json
import subprocess
import sys
from pathlib import Path

from tests.kit.live import SERVERS
from tests.programs.stage import read_lines

RECORDER = Path(__file__).with_name("recorder.py")
LINES = "".join(
    f'{{"jsonrpc": "2.0", "id": {at}, "method": "{each}"}}\n'
    for at, each in enumerate(["ping", "tools/list"])
)
PYTHON = [sys.executable, "-S", "-E"]


def talk(file: Path, command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PYTHON, str(RECORDER), str(file), *command],
        input=LINES,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_messages_pass_unchanged_and_are_written_down(tmp_path: Path) -> None:
    server = [*PYTHON, str(SERVERS / "odd.py")]
    file = tmp_path / "wire.jsonl"
    done = talk(file, server)
    alone = subprocess.run(
        server,
        input=LINES,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == alone.stdout
    lines = read_lines(file)
    said = [each["message"]["method"] for each in lines if each["from"] == "program"]
    assert said == ["ping", "tools/list"]
    answers = [each["message"] for each in lines if each["from"] == "server"]
    assert answers[0] == {"jsonrpc": "2.0", "id": 0, "result": {}}
    assert answers[1]["tools"][0] == "pid"
    assert len(json.dumps(answers[1])) < 4096


def test_the_exit_code_and_the_last_words_of_the_server_pass(tmp_path: Path) -> None:
    done = talk(tmp_path / "wire.jsonl", ["sh", "-c", "echo gone >&2; exit 7"])
    assert (done.returncode, done.stderr) == (7, "gone\n")
