"""`carpool doctor` on a real carpool: nothing wrong, then a missing program and an unset variable."""

import json
from typing import Any

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
