"""`carpool doctor` on a real carpool: nothing wrong, then a missing program and an unset variable."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Make, kit


async def problems(daemon: Any, code: int) -> list[dict[str, Any]]:
    done, out, said = await daemon.carpool("doctor", "--json")
    assert done == code, said
    found: list[dict[str, Any]] = json.loads(out)["problems"]
    return found


@behaviour("doctor:repair")
async def test_doctor_names_what_is_wrong_and_how_to_repair_it(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")})
    with trio.fail_after(LIMIT_S):
        assert await problems(one, 0) == []
        code, out, _ = await one.carpool("doctor")
        assert (code, out) == (0, "nothing is wrong that carpool doctor knows of\n")
        one.configure(
            {
                "echo": kit("echo"),
                "gone": {"command": "no-such-program-here"},
                "token": {"command": "true", "env": {"KEY": "${NO_SUCH_VARIABLE_HERE}"}},
            }
        )
        await one.reload()
        found = await problems(one, 1)
        assert [(each["id"], each["server"]) for each in found] == [
            ("program-missing", "gone"),
            ("variable-unset", ""),
        ]
        code, out, _ = await one.carpool("doctor")
        assert code == 1
        assert "no-such-program-here" in out
        assert "2 problems; `carpool docs problems`" in out
        one.config.write_text('{"mcpServers": {,}}', encoding="utf-8")
        assert (await problems(one, 1))[0]["id"] == "config-broken"


BANNER = """
import runpy, sys
print("*** hello ***", flush=True)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


async def one_problem(daemon: Any, kind: str) -> dict[str, Any]:
    """The only problem of this kind."""
    (found,) = (each for each in await problems(daemon, 1) if each["id"] == kind)
    return found


def failing(*lines: str) -> dict[str, Any]:
    """A server that writes these lines to stderr and ends before its greeting."""
    text = f"import sys; sys.stderr.write({json.dumps(chr(10).join(lines))} + chr(10)); sys.exit(1)"
    return {"command": sys.executable, "args": ["-c", text], "restart": {"give_up_after": 1}}


@behaviour("doctor:repair")
async def test_what_a_server_writes_tells_its_fault(daemon: Make) -> None:
    echo = kit("echo")["args"][-1]
    one = daemon(
        {
            "prints": {"command": sys.executable, "args": ["-c", BANNER, echo]},
            "old": failing("npm warn EBADENGINE   required: { node: '>=99' },", "SyntaxError: at the top"),
            "mistyped": failing("npm error code E404", "npm error 404 Not Found - GET https://r/nope"),
            "token": failing("Error: ACME_TOKEN environment variable is required"),
        }
    )
    with trio.fail_after(LIMIT_S):
        assert (await one.carpool("start", "--all"))[0] == 1
        found = {each["server"]: each for each in await problems(one, 1)}
        assert {server: each["id"] for server, each in found.items()} == {
            "prints": "stdout-noise",
            "old": "version-wrong",
            "mistyped": "package-not-found",
            "token": "server-failing",
        }
        assert "node: '>=99'" in found["old"]["text"]
        assert "ACME_TOKEN environment variable is required" in found["token"]["text"]
        assert "*** hello ***" in (await one.carpool("logs", "prints"))[1]


@behaviour("doctor:fix")
async def test_an_env_file_that_all_may_read_is_found_and_restricted(daemon: Make) -> None:
    one = daemon({"echo": kit("echo")})
    secrets = one.base / "secrets.env"
    secrets.write_text("API_KEY=abc\n")
    secrets.chmod(0o644)
    one.base.chmod(0o755)
    one.configure({"echo": kit("echo")}, env_file="secrets.env")
    await one.reload()
    with trio.fail_after(LIMIT_S):
        problem = await one_problem(one, "secrets-readable")
        assert "API_KEY" in problem["text"]
        assert "abc" not in json.dumps(problem)
        code, out, _ = await one.carpool("doctor", "--json", "--fix", "--yes")
        assert (code, json.loads(out)["problems"]) == (0, [])
        assert secrets.stat().st_mode & 0o777 == 0o600


@behaviour("doctor:repair")
async def test_a_server_of_a_project_that_replaces_one_of_the_user_is_named_with_the_winner(
    daemon: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = daemon({"echo": kit("echo")})
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"echo": kit("echo"), "own": kit("echo")}}))
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(LIMIT_S):
        untrusted = await one_problem(one, "project-untrusted")
        assert untrusted["repair"] == "Run `carpool trust` here."
        assert (await one.carpool("trust", "--yes"))[0] == 0
        (found,) = await problems(one, 1)
        assert found["id"] == "shadowed"
        assert found["text"].startswith(str(tmp_path / ".mcp.json"))
        assert f"takes the place of your server of this name in {one.config}" in found["text"]
