"""What `carpool check` says of hooks that cannot run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from carpool.check.hooks import hook_warnings
from carpool_protocol.config.reading.parse import read_config

PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/home/me"}


def warned(tmp_path: Path, **hook: Any) -> str:
    text = json.dumps({"mcpServers": {}, "hooks": [{"name": "h", **hook}]}, indent=1)
    loaded = read_config(text, str(tmp_path / "carpool.json"))
    assert loaded.config is not None, loaded.problems
    return "\n".join(hook_warnings(loaded.config, {**PLAIN, "HOME": str(tmp_path)}))


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ({"command": "no-such-command"}, "there is no command 'no-such-command'"),
        ({"command": "~/bin/guard"}, "there is no command"),
        ({"command": "sh", "args": ["${NO_SUCH}"]}, "the environment variable NO_SUCH is not set"),
        ({"command": "sh", "env": {"A": "${NO_SUCH}"}}, "the environment variable NO_SUCH is not set"),
        ({"python": "no_such_module:f"}, "there is no module no_such_module that Python finds"),
        ({"python": "json.no_such_part:f"}, "there is no module json.no_such_part that Python finds"),
        ({"python": "json.decoder.deeper:f"}, "there is no module json.decoder.deeper"),
    ],
)
def test_what_a_hook_lacks_is_said_with_its_place_and_its_consequence(
    tmp_path: Path, hook: dict[str, Any], said: str
) -> None:
    text = warned(tmp_path, **hook)
    assert said in text
    assert "carpool.json:" in text
    assert text.endswith("the calls of this hook are refused meanwhile")
    assert "let through meanwhile" in warned(tmp_path, on_failure="allow", **hook)


def test_hooks_that_are_there_are_not_mentioned_and_none_is_run(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "guard"
    script.write_text("#!/bin/sh\ntouch ran\n")
    script.chmod(0o700)
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs.py").write_text("")
    for hook in (
        {"command": "~/bin/guard"},
        {"command": "guard", "env": {"PATH": str(tmp_path / "bin")}},
        {"command": sys.executable},
        {"python": "mine:f"},
        {"python": "theirs:f", "env": {"PYTHONPATH": str(elsewhere)}},
        {"python": "json.decoder:f"},
        {"python": "sys:f"},
    ):
        assert warned(tmp_path, **hook) == ""
    assert not (tmp_path / "ran").exists()
