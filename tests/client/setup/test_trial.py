"""The trial before servers are moved: which are tried, with what, and what follows."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

from carpool.setup.client_files import CLAUDE_CODE, CURSOR, ClientFilePath, McpClient
from carpool.setup.model import CarpoolFile, ClientFile, SecretsFile, SetupPlan
from carpool.setup.plan import make_plan
from carpool.setup.trial import (
    TrialEntry,
    TrialResult,
    mask_of,
    server_key,
    trial_config,
    trial_entries,
    trial_result,
)
from carpool_protocol.link.messages import Policy
from tests.behaviours import behaviour

CONFIG = "/home/u/.config/carpool/carpool.json"
FILE = "/home/u/a.json"


def planned(
    held: Any, client: McpClient = CLAUDE_CODE, path: str = FILE, own: Any = None, **more: Any
) -> SetupPlan:
    scope: Any = "project" if path.startswith("/w/") else "user"
    return make_plan(
        [ClientFile(ClientFilePath(client, path, scope), path, json.dumps(held, indent=2))],
        CarpoolFile(CONFIG, None if own is None else json.dumps(own)),
        CarpoolFile("/w/.carpool/mcp.json", None),
        SecretsFile("/home/u/.config/carpool/secrets.env", None, {}, "secrets.env"),
        lambda _: ["carpool", "connect"],
        home="/home/u",
        **more,
    )


def entries(plan: SetupPlan, here: str = "", *, trusted: bool = True) -> list[TrialEntry]:
    return trial_entries(plan, lambda _: trusted, here)


def result(text: str, *stderr: str, environ: Sequence[str] = (), hidden: Sequence[str] = ()) -> TrialResult:
    entry = TrialEntry("a", {"command": "a", "env": {"GIVEN_KEY": "1"}}, (), 1.0)
    return trial_result(
        entry, ok=False, is_unset=False, text=text, stderr=stderr, environ=environ, mask=mask_of(hidden)
    )


@behaviour("setup:tried")
def test_only_stdio_servers_that_are_new_to_carpool_are_tried() -> None:
    held = {
        "mcpServers": {
            "new": {"command": "new"},
            "far": {"type": "http", "url": "https://h/mcp"},
            "off": {"command": "off", "disabled": True},
            "old": {"command": "old"},
        }
    }
    own = {"mcpServers": {"old": {"command": "old"}}}
    assert [each.name for each in entries(planned(held, own=own))] == ["new"]


@behaviour("setup:tried", "trust:asked")
def test_a_project_s_server_is_tried_only_once_it_may_run_and_runs_in_the_project() -> None:
    held = {"mcpServers": {"a": {"command": "./a", "args": ["${workspaceFolder}/x"]}}}
    plan = planned(held, CURSOR, "/w/.cursor/mcp.json")
    assert entries(plan, trusted=False) == []
    (entry,) = entries(plan)
    assert entry.server == {"command": "./a", "args": ["/w/x"], "cwd": "/w"}


@behaviour("setup:tried")
def test_a_server_of_a_directory_is_tried_there_beside_one_of_the_same_name() -> None:
    held = {
        "mcpServers": {"a": {"command": "a"}},
        "projects": {"/p": {"mcpServers": {"a": {"command": "b", "cwd": "sub"}}}},
    }
    first, second = entries(planned(held))
    assert (first.name, first.server) == ("a", {"command": "a"})
    assert (second.name, second.server) == ("a-2", {"command": "b", "cwd": "/p/sub"})
    assert first.limit_s == Policy().first_start_s


@behaviour("setup:tried")
def test_a_server_that_needs_a_project_is_moved_untried_where_there_is_none() -> None:
    plan = planned({"mcpServers": {"a": {"command": "./a"}}})
    (entry,) = entries(plan)
    assert entry.why_not == "was not tried: it runs in a project's directory, and setup runs in none"
    (here,) = entries(plan, "/w")
    assert (here.why_not, here.server["cwd"]) == ("", "/w")


@behaviour("setup:tried")
def test_the_private_configuration_has_only_what_decides_a_start() -> None:
    entry = TrialEntry("a", {"command": "a"}, (), 1.0)
    own: Any = {"mcpServers": {"x": {"command": "x"}}, "hooks": {}, "login_shell": False}
    own["http"] = {"port": 8808}
    assert json.loads(trial_config([entry], own, has_env_file=True)) == {
        "mcpServers": {"a": {"command": "a"}},
        "login_shell": False,
        "env_file": "secrets.env",
    }


@behaviour("setup:tried")
@pytest.mark.parametrize(
    ("text", "stderr"),
    [
        ("ended with exit code 1: ACME_TOKEN environment variable is required", ()),
        ("ended with exit code 1", ("Error: please set ACME_TOKEN",)),
        ("ended with exit code 1 before it had greeted: KeyError: 'ACME_TOKEN'", ()),
    ],
)
def test_a_server_that_names_a_missing_variable_is_moved_and_the_variable_is_named(
    text: str, stderr: tuple[str, ...]
) -> None:
    assert result(text, *stderr) == TrialResult(note="needs ACME_TOKEN, without which it does not start")
    assert result(text, *stderr, environ=["ACME_TOKEN"]).stays, "it is set: something else is wrong"


@behaviour("setup:tried")
def test_a_server_that_asks_for_a_login_is_moved() -> None:
    assert result("ended with exit code 1: you are not logged in; run `x login`").note.startswith(
        "needs a login or a key"
    )


@behaviour("setup:tried")
@pytest.mark.parametrize(
    "text",
    [
        "ended with exit code 1: Error: Cannot find module '/x/index.js'",
        "ended with exit code 1: code: 'ERR_MODULE_NOT_FOUND', required by x",
        "ended with exit code 1: GIVEN_KEY is required",
        "did not answer `initialize` within 300 s",
    ],
)
def test_any_other_server_that_does_not_start_stays_with_the_reason(text: str) -> None:
    assert result(text) == TrialResult(stays=f"setup started it once, and it does not work: {text}")


@behaviour("setup:tried", "setup:secrets")
def test_the_reason_of_a_server_holds_no_secret_of_the_programs() -> None:
    assert "hunter22" not in result("bad value hunter22", hidden=["hunter22", "a"]).stays
    basic = base64.b64encode(b"someone:hunter22-and-more").decode()
    assert basic not in result(f"it sent {basic}", hidden=["hunter22-and-more"]).stays


@behaviour("setup:tried")
def test_what_was_tried_decides_where_each_server_is_afterwards() -> None:
    held = {
        "mcpServers": {name: {"command": name, "env": {"K_TOKEN": name * 9}} for name in ("aa", "bb", "cc")}
    }
    keys = {each.name: server_key(each) for each in planned(held).moved}
    tried = {
        keys["aa"]: TrialResult(),
        keys["bb"]: TrialResult(stays="broken"),
        keys["cc"]: TrialResult(note="n"),
    }
    plan = planned(held, tried=tried)
    assert {each.name: each.notes for each in plan.moved} == {"aa": (), "cc": ("n",)}
    assert [(each.name, each.why) for each in plan.left] == [("bb", "broken")]
    assert plan.secrets == ("CARPOOL_AA_K_TOKEN", "CARPOOL_CC_K_TOKEN")
    every = dict.fromkeys(keys.values(), TrialResult(stays="broken"))
    assert planned(held, tried=every).changes == ()


@behaviour("setup:tried")
def test_a_server_of_two_programs_is_tried_once_for_both() -> None:
    held = json.dumps({"mcpServers": {"a": {"command": "a"}}})
    plan = make_plan(
        [
            ClientFile(ClientFilePath(client, f"/home/u/{client.id}", "user"), f"/home/u/{client.id}", held)
            for client in (CLAUDE_CODE, CURSOR)
        ],
        CarpoolFile(CONFIG, None),
        None,
        SecretsFile("/home/u/.config/carpool/secrets.env", None, {}, "secrets.env"),
        lambda _: ["carpool", "connect"],
        home="/home/u",
    )
    (entry,) = entries(plan)
    assert entry.keys == (("/home/u/claude-code", "", "a"), ("/home/u/cursor", "", "a"))
