"""The environment in carpool's entry: places of carpool's files, and variables that servers use."""

import json
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from carpool.setup.client_files import (
    CLAUDE_CODE,
    CLIENTS,
    CODEX,
    CURSOR,
    GEMINI,
    OPENCODE,
    VS_CODE,
    ClientFilePath,
    McpClient,
)
from carpool.setup.entry_environment import non_default_places
from carpool.setup.model import CarpoolFile, ClientFile, SecretsFile, SetupPlan
from carpool.setup.plan import make_plan
from carpool.setup.undo import undo_verdict
from carpool_protocol.config.edit.edit import set_member
from tests.behaviours import behaviour

CONFIG: Final = "/home/u/.config/carpool/carpool.json"
UID: Final = 4_000_000_000
PLACES: Final = {"XDG_CONFIG_HOME": "/c"}
HOLDERS: Final = {"plain": "mcpServers", "vscode": "servers", "opencode": "mcp", "codex": "mcp_servers"}


def planned(*held: tuple[McpClient, Any], own: Any = None, **more: Any) -> SetupPlan:
    sources = [
        ClientFile(
            ClientFilePath(client, place(client), "user"),
            place(client),
            text if isinstance(text, str) else json.dumps(text, indent=2),
        )
        for client, text in held
    ]
    return make_plan(
        sources,
        CarpoolFile(CONFIG, None if own is None else json.dumps(own)),
        CarpoolFile("/w/.carpool/mcp.json", None),
        SecretsFile("/home/u/.config/carpool/secrets.env", None, {}, "secrets.env"),
        lambda _: ["carpool", "connect"],
        home="/home/u",
        **more,
    )


def place(client: McpClient) -> str:
    return f"/home/u/{client.id}"


def entry_of(plan: SetupPlan, client: McpClient) -> dict[str, Any]:
    text = next(each.after for each in plan.changes if each.path == place(client)).decode()
    whole = tomllib.loads(text) if client is CODEX else json.loads(text)
    found: dict[str, Any] = whole[HOLDERS[client.form]]["carpool"]
    return found


def one_server(client: McpClient) -> Any:
    if client.form == "codex":
        return '[mcp_servers.a]\ncommand = "a"\n'
    command: Any = ["a"] if client.form == "opencode" else "a"
    return {HOLDERS[client.form]: {"a": {"command": command}}}


@behaviour("setup:environment")
def test_codex_s_entry_names_every_variable_that_its_moved_servers_use() -> None:
    """Codex passes few variables on: the servers were without theirs, and nothing said so."""
    text = """
[mcp_servers.a]
command = "a"
env_vars = ["A", { name = "B", source = "local" }]
[mcp_servers.docs]
url = "https://h/mcp"
bearer_token_env_var = "DOCS_TOKEN"
env_http_headers = { "X-A" = "HEADER" }
[mcp_servers.secret]
command = "b"
env = { B_TOKEN = "ghp_0123456789abcdef" }
"""
    plan = planned((CODEX, text))
    assert entry_of(plan, CODEX) == {
        "command": "carpool",
        "args": ["connect", "--tool-name-length", "50"],
        "env_vars": ["A", "B", "DOCS_TOKEN", "HEADER"],
    }


@behaviour("setup:environment")
def test_a_variable_that_codex_leaves_out_while_it_is_not_set_is_told() -> None:
    plan = planned((CODEX, '[mcp_servers.a]\ncommand = "a"\nenv_vars = ["A"]\n'))
    (moved,) = plan.moved
    assert moved.notes == ("A is empty for it where Codex has no such variable",)


@behaviour("setup:environment")
def test_codex_s_entry_names_the_variables_of_the_servers_of_others_that_it_sees() -> None:
    others = {"mcpServers": {"x": {"command": "x", "env": {"X": "${X}"}}, "y": {"command": "${Y}"}}}
    codex = '[mcp_servers.x]\ncommand = "x"\n[mcp_servers.x.env]\nX = "1"\n'
    held = ((CLAUDE_CODE, others), (CODEX, codex))
    assert entry_of(planned(*held), CODEX)["env_vars"] == ["X", "Y"]
    assert "env_vars" not in entry_of(planned(*held, separate=True), CODEX)


@behaviour("setup:environment")
@pytest.mark.parametrize(
    ("client", "written", "expected"),
    [
        (GEMINI, "$TOKEN", {"TOKEN": "${TOKEN}"}),
        (CURSOR, "${env:TOKEN}", {"TOKEN": "${env:TOKEN}"}),
        (CLAUDE_CODE, "${TOKEN}", None),
        (VS_CODE, "${env:TOKEN}", None),
    ],
)
def test_other_programs_name_a_variable_in_their_own_spelling_where_they_may_keep_it(
    client: McpClient, written: str, expected: Any
) -> None:
    """Gemini CLI keeps variables with names of secrets to itself."""
    held = {HOLDERS[client.form]: {"a": {"command": "a", "env": {"TOKEN": written}}}}
    assert entry_of(planned((client, held)), client).get("env") == expected


@behaviour("setup:environment")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)
def test_every_entry_leads_to_the_places_of_the_shell(client: McpClient) -> None:
    plan = planned((client, one_server(client)), places=PLACES)
    entry = entry_of(plan, client)
    assert entry["environment" if client is OPENCODE else "env"] == PLACES


@behaviour("setup:environment", "setup:undone")
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)
def test_a_second_setup_updates_the_places_and_an_undo_takes_them_back(client: McpClient) -> None:
    first = planned((client, one_server(client)), places={"XDG_CONFIG_HOME": "/old"})
    (old,) = (each.after for each in first.changes if each.path == place(client))
    text = old.decode()
    own = json.loads(first.changes[0].after)
    assert planned((client, text), own=own, places={"XDG_CONFIG_HOME": "/old"}).changes == ()
    second = planned((client, text), own=own, places=PLACES)
    (change,) = second.changes
    assert entry_of(second, client) == {
        **entry_of(first, client),
        "environment" if client is OPENCODE else "env": PLACES,
    }
    assert undo_verdict("client", change.before, change.after, change.after, change.regions).data == old
    since = (
        b'model = "m"\n' + change.after
        if client is CODEX
        else set_member(change.after.decode(), ("since",), 1).encode()
    )
    back = undo_verdict("client", change.before, change.after, since, change.regions).data
    assert back is not None
    there = tomllib.loads(back.decode()) if client is CODEX else json.loads(back)
    assert there[HOLDERS[client.form]]["carpool"] == entry_of(first, client)


@behaviour("setup:undone.since")
def test_an_updated_entry_that_somebody_has_edited_since_is_kept_unless_forced() -> None:
    first = planned((CURSOR, one_server(CURSOR)), places={"XDG_CONFIG_HOME": "/old"})
    old = next(each.after for each in first.changes if each.path == place(CURSOR)).decode()
    (change,) = planned((CURSOR, old), own=json.loads(first.changes[0].after), places=PLACES).changes
    path = ("mcpServers", "carpool", "env")
    since = set_member(change.after.decode(), path, {"XDG_CONFIG_HOME": "/mine"}).encode()
    told = undo_verdict("client", change.before, change.after, since, change.regions)
    assert (told.outcome, told.data) == ("kept", since)
    forced = undo_verdict("client", change.before, change.after, since, change.regions, force=True)
    assert forced.data is not None
    assert json.loads(forced.data) == json.loads(old)


@behaviour("setup:environment")
def test_a_file_that_others_get_as_well_has_no_places_and_only_variables_of_its_own_servers() -> None:
    mine = {"mcpServers": {"a": {"command": "a", "env": {"A": "${env:A}"}}}}
    its = {"mcpServers": {"b": {"command": "b", "env": {"B": "${env:B}"}}}}
    path = "/w/.cursor/mcp.json"
    sources = [
        ClientFile(ClientFilePath(CURSOR, place(CURSOR), "user"), place(CURSOR), json.dumps(mine)),
        ClientFile(ClientFilePath(CURSOR, path, "project"), path, json.dumps(its)),
    ]
    plan = make_plan(
        sources,
        CarpoolFile(CONFIG, None),
        CarpoolFile("/w/.carpool/mcp.json", None),
        SecretsFile("/home/u/.config/carpool/secrets.env", None, {}, "secrets.env"),
        lambda _: ["carpool", "connect"],
        home="/home/u",
        shared=[path],
        places=PLACES,
    )
    shared = json.loads(next(each.after for each in plan.changes if each.path == path))
    assert shared["mcpServers"]["carpool"]["env"] == {"B": "${env:B}"}
    assert entry_of(plan, CURSOR)["env"] == {**PLACES, "A": "${env:A}", "B": "${env:B}"}
    assert any(path in each and "XDG_CONFIG_HOME" in each for each in plan.notes)


@behaviour("setup:environment")
def test_a_place_that_an_entry_names_and_the_shell_does_not_stays_and_is_told() -> None:
    held = {"mcpServers": {"carpool": {"command": "carpool", "args": ["connect"], "env": PLACES}}}
    held["mcpServers"]["a"] = {"command": "a"}
    plan = planned((CURSOR, held))
    assert entry_of(plan, CURSOR)["env"] == PLACES
    told = f"carpool's entry in {place(CURSOR)} sets XDG_CONFIG_HOME, which is not set here: it stays"
    assert told in plan.notes


@behaviour("setup:environment")
def test_a_place_that_a_program_would_take_for_a_variable_is_in_no_entry_and_is_told() -> None:
    plan = planned((CURSOR, one_server(CURSOR)), places={"XDG_CONFIG_HOME": "/c$HOME"})
    assert "env" not in entry_of(plan, CURSOR)
    assert [each for each in plan.notes if each.startswith("XDG_CONFIG_HOME holds a `$`")]


@behaviour("setup:environment")
def test_only_variables_that_change_a_place_are_named(tmp_path: Path) -> None:
    home = str(tmp_path)
    plain = {"HOME": home, "PATH": "/bin", "CARPOOL_HTTP": "1"}
    assert non_default_places(plain, UID) == {}
    usual = {"XDG_CONFIG_HOME": f"{home}/.config", "XDG_STATE_HOME": f"{home}/.local/state"}
    assert non_default_places({**plain, **usual, "XDG_CACHE_HOME": "/x"}, UID) == {}
    other = {"XDG_CONFIG_HOME": f"{home}/c", "CARPOOL_STATE_DIR": "~/s", "CARPOOL_RUNTIME_DIR": f"{home}/r"}
    found = non_default_places({**plain, **other}, UID)
    assert found.keys() == other.keys()
    assert found["XDG_CONFIG_HOME"] == f"{home}/c"
    assert found["CARPOOL_STATE_DIR"].startswith("/")
    both = {"XDG_CONFIG_HOME": "/c", "CARPOOL_CONFIG": "/c/carpool/carpool.json"}
    assert len(non_default_places({**plain, **both}, UID)) == 1
    assert non_default_places({**plain, "XDG_CONFIG_HOME": "relative"}, UID) == {}
