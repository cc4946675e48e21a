"""A verb on a terminal: its tables are as wide as that, in colour; in a pipe they are whole, without."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.behaviours import behaviour

COLUMNS = 70
LONG = "/home/me/" + "a/" * 60


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "carpool.json"
    file.write_text(f'{{"mcpServers": {{"one": {{"command": "true", "cwd": "{LONG}"}}}}}}')
    cleared = {
        key: value
        for key, value in os.environ.items()
        if key not in {"NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"}
    }
    return {
        **cleared,
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "CARPOOL_CONFIG": str(file),
    }


def _on_terminal(environ: dict[str, str]) -> str:
    """Return what `carpool check` writes to a terminal of that width."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "carpool", "check"],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ):
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # Linux: the last writer has gone
        return b""


def _table(shown: str) -> list[str]:
    return shown.partition("\n\n")[0].splitlines()


@behaviour("cli:tables")
def test_a_table_fits_the_terminal(environ: dict[str, str]) -> None:
    lines = _table(_on_terminal({**environ, "NO_COLOR": "1"}))
    assert lines[0].startswith("SETTING")
    assert "FROM" in lines[0]
    assert max(map(len, lines)) <= COLUMNS
    assert any("…" in line and "cwd" in line for line in lines)


@behaviour("cli:colours")
@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"FORCE_COLOR": "0"}, False)],
)
def test_a_terminal_has_colours_unless_the_environment_refuses(
    environ: dict[str, str], variables: dict[str, str], coloured: bool
) -> None:
    assert ("\x1b[" in _on_terminal({**environ, **variables})) is coloured


@behaviour("cli:tables", "cli:colours")
@pytest.mark.parametrize(("variables", "coloured"), [({}, False), ({"FORCE_COLOR": "1"}, True)])
def test_a_pipe_gets_whole_tables_and_colours_only_if_forced(
    environ: dict[str, str], variables: dict[str, str], coloured: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "carpool", "check"],
        env={**environ, **variables, "COLUMNS": "40"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert LONG in done.stdout
    assert ("\x1b[" in done.stdout) is coloured
    assert "…" not in done.stdout
