"""What becomes of the programs' files, decided: names, secrets, places, and the way back."""

import json
import re
import tomllib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carpool.setup import target_file, toml
from carpool.setup.client_files import (
    CLAUDE_CODE,
    CLAUDE_DESKTOP,
    CLIENTS,
    CODEX,
    CURSOR,
    GEMINI,
    OPENCODE,
    VS_CODE,
    ClientFilePath,
    McpClient,
    candidates,
)
from carpool.setup.diff import page
from carpool.setup.model import CarpoolFile, ClientFile, FileChange, SecretsFile, SetupPlan
from carpool.setup.plan import make_plan
from carpool.setup.undo import undo_verdict
from carpool_protocol.config.edit import edit
from carpool_protocol.config.edit.edit import set_member
from carpool_protocol.config.foreign.formats import is_own_entry
from carpool_protocol.config.text.jsonc import parse
from tests.behaviours import behaviour

HOME = "/home/u"
CONFIG = f"{HOME}/.config/carpool/carpool.json"
PLAIN = {"command": "carpool", "args": ["connect"]}
ENTRY = {"command": "carpool", "args": ["connect", "--tool-name-length", "50"]}
"""Of a program that puts a prefix before names of tools."""


def source(client: McpClient, held: Any, path: str = "", scope: Any = "user") -> ClientFile:
    path = path or f"{HOME}/{client.id}.json"
    text = held if isinstance(held, str) else json.dumps(held, indent=2)
    return ClientFile(ClientFilePath(client, path, scope), path, text)


def planned(
    *sources: ClientFile, own: Any = None, secrets: dict[str, str] | None = None, **more: Any
) -> SetupPlan:
    return make_plan(
        sources,
        CarpoolFile(CONFIG, own if own is None or isinstance(own, str) else json.dumps(own)),
        CarpoolFile("/w/.carpool/mcp.json", None),
        SecretsFile(
            f"{HOME}/.config/carpool/secrets.env", None, secrets or {}, "" if secrets else "secrets.env"
        ),
        lambda _: ["carpool", "connect"],
        home=HOME,
        **more,
    )


def after(plan: SetupPlan, path: str = CONFIG) -> Any:
    return json.loads(next(each.after for each in plan.changes if each.path == path))


def servers(plan: SetupPlan) -> Any:
    return after(plan)["mcpServers"]


def variables(plan: SetupPlan) -> str:
    return next(each.after.decode() for each in plan.changes if each.role == "secrets")


def undone(change: FileChange, now: bytes | None) -> bytes | None:
    return undo_verdict(change.role, change.before, change.after, now, change.regions).data


def test_our_file_is_read_as_often_for_many_servers_as_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each edit reads it all: eight thousand tables of Codex took minutes."""
    readings: list[int] = []

    def parse_and_count(text: str, file: str) -> Any:
        readings.append(len(text))
        return parse(text, file)

    for module in (edit, target_file):
        monkeypatch.setattr(module, "parse", parse_and_count)
    counts = []
    for many in (1, 40):
        readings.clear()
        tables = "".join(f'[mcp_servers.s{number}]\ncommand = "x{number}"\n' for number in range(many))
        assert len(servers(planned(source(CODEX, tables)))) == many
        counts.append(len(readings))
    assert counts[0] == counts[1]


@behaviour("trust:asked")
@pytest.mark.parametrize(
    ("args", "goes"),
    [
        (["--dsn=postgres://u@localhost/db"], True),
        (["--api-key", "k1-0123456789"], True),
        (["postgres://u:hunter2@localhost/db"], True),
        (["-c", 'TOKEN="$(evil)" fine'], False),
        (["--api-key=$(evil)"], False),
        (["--api-key", "x; evil"], False),
        (["-y", "evil-7f3k2m9q4x8z1c6v5b0n"], False),
        (["https://h/ghp_0123456789abcdef/evil.sh"], False),
    ],
)
def test_a_stranger_s_command_is_not_taken_where_a_secret_would_hide_it(args: list[str], goes: bool) -> None:
    held = {"mcpServers": {"s": {"command": "sh", "args": args}}}
    plan = planned(source(CURSOR, held, "/w/.cursor/mcp.json", "project"))
    assert (len(plan.moved), len(plan.left)) == (int(goes), int(not goes))
    assert goes or "is part of what it runs" in plan.left[0].why
    assert len(planned(source(CURSOR, held)).moved) == 1, "in a file of the user's own it is his"


# --- what goes, under which name ---------------------------------------------------------------------------


def test_a_command_that_is_not_there_is_said_where_our_path_counts() -> None:
    written = {
        "here": {"command": "npx"},
        "gone": {"command": "nowhere"},
        "placed": {"command": "/opt/nowhere"},
        "own": {"command": "nowhere", "env": {"PATH": "/opt"}},
        "far": {"type": "http", "url": "https://h/mcp"},
    }
    plan = planned(source(CLAUDE_CODE, {"mcpServers": written}), starts=lambda program: program == "npx")
    noted = {each.name: each.notes for each in plan.moved if each.notes}
    assert noted == {"gone": ("nowhere is not in PATH here, so it cannot start yet",)}


@behaviour("setup:moved")
def test_the_same_server_of_two_programs_goes_once_and_another_one_of_its_name_gets_a_second() -> None:
    one, other = {"command": "a", "args": ["x"]}, {"command": "a", "args": ["y"]}
    plan = planned(
        source(CLAUDE_DESKTOP, {"mcpServers": {"a": one}}),
        source(CURSOR, {"mcpServers": {"a": other}}),
        source(GEMINI, {"mcpServers": {"a": one}}),
    )
    assert servers(plan) == {"a": one, "a-cursor": other}
    assert [(each.name, each.client, each.known) for each in plan.moved] == [
        ("a", "Claude Desktop", False),
        ("a-cursor", "Cursor", False),
        ("a", "Gemini CLI", True),
    ]
    assert [after(plan, each.path) for each in plan.changes if each.role == "client"] == [
        {"mcpServers": {"carpool": each}} for each in (PLAIN, ENTRY, ENTRY)
    ]


@behaviour("setup:moved")
@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        ({}, {"timeout": 30_000}, {}),
        ({}, {"timeout": 90_000}, {"timeout_s": 90.0}),
        ({"timeout": 30_000}, {}, {"timeout_s": 60.0}),
        ({"timeout": 90_000}, {"timeout": 120_000}, {"timeout_s": 120.0}),
        ({"timeout": 120_000}, {"timeout": 90_000}, {"timeout_s": 120.0}),
        ({"timeout": 1000}, {"timeout": 2_000_000}, {"timeout_s": 2000.0, "max_total_s": 2000.0}),
        ({"env": {}}, {"args": []}, {}),
        ({}, {"env": {"A": "1"}}, None),
        ({}, {"includeTools": ["x"]}, None),
        ({}, {"cwd": "/x"}, None),
    ],
)
def test_servers_that_differ_only_in_how_long_they_are_waited_for_are_one(
    one: Any, other: Any, left: Any
) -> None:
    """A second, identical time server made \'get_current_time\' ambiguous."""
    plan = planned(
        source(CLAUDE_CODE, {"mcpServers": {"a": {"command": "a", **one}}}),
        source(GEMINI, {"mcpServers": {"a": {"command": "a", **other}}}),
    )
    if left is None:
        assert list(servers(plan)) == ["a", "a-gemini"]
        return
    assert servers(plan) == {"a": {"command": "a", **left}}
    assert "a: is the same server as that of Claude Code, from Gemini CLI" in page(plan)


@pytest.mark.parametrize(
    ("one", "other", "left"),
    [
        ({"url": "https://h/mcp"}, {"type": "http", "url": "https://h/mcp"}, {"transport": "http"}),
        ({"type": "http", "url": "https://h/mcp"}, {"url": "https://h/mcp"}, {"transport": "http"}),
        ({"type": "http", "url": "https://h/mcp"}, {"type": "sse", "url": "https://h/mcp"}, None),
    ],
)
def test_a_url_whose_transport_one_program_leaves_open_is_one_server(one: Any, other: Any, left: Any) -> None:
    plan = planned(
        source(CURSOR, {"mcpServers": {"a": one}}), source(CLAUDE_CODE, {"mcpServers": {"a": other}})
    )
    if left is None:
        assert list(servers(plan)) == ["a", "a-claude-code"]
    else:
        assert servers(plan) == {"a": {"url": "https://h/mcp", **left}}


def test_a_longer_time_of_another_program_comes_to_a_server_that_carpool_has_and_goes_with_undo() -> None:
    own = '{\n  "mcpServers": { "a": { "command": "a", "timeout_s": 70 } } // mine\n}\n'
    plan = planned(source(GEMINI, {"mcpServers": {"a": {"command": "a", "timeout": 90000}}}), own=own)
    ours = plan.changes[0]
    assert b'"timeout_s": 90.0 } } // mine' in ours.after
    assert "a: is in carpool already, from Gemini CLI" in page(plan)
    assert undone(ours, ours.after + b"\n") == own.encode() + b"\n"


def test_a_server_that_carpool_has_is_not_written_again() -> None:
    one = {"command": "a"}
    plan = planned(source(CURSOR, {"mcpServers": {"a": one}}), own={"mcpServers": {"a": one}})
    assert [each.role for each in plan.changes] == ["client"]
    assert plan.moved[0].known


def test_the_same_secret_is_one_variable_and_another_one_a_second() -> None:
    plan = planned(
        source(CLAUDE_DESKTOP, {"mcpServers": {"a": {"command": "a", "env": {"A_TOKEN": "one"}}}}),
        source(CURSOR, {"mcpServers": {"a": {"command": "a", "env": {"A_TOKEN": "two"}}}}),
        source(GEMINI, {"mcpServers": {"a": {"command": "a", "env": {"A_TOKEN": "one"}}}}),
    )
    assert servers(plan) == {
        "a": {"command": "a", "env": {"A_TOKEN": "${CARPOOL_A_TOKEN}"}},
        "a-cursor": {"command": "a", "env": {"A_TOKEN": "${CARPOOL_A_TOKEN_2}"}},
    }
    assert variables(plan) == 'CARPOOL_A_TOKEN="one"\nCARPOOL_A_TOKEN_2="two"\n'
    assert after(plan)["env_file"] == "secrets.env"


def test_a_secret_that_the_env_file_has_is_not_written_again() -> None:
    held = {"mcpServers": {"a": {"command": "a", "env": {"A_TOKEN": "one"}}}}
    plan = planned(source(CURSOR, held), secrets={"CARPOOL_A_TOKEN": "one"})
    assert [each.role for each in plan.changes] == ["own", "client"]


@behaviour("setup:stays")
@pytest.mark.parametrize(
    ("client", "entry", "why"),
    [
        (VS_CODE, {"command": "a", "env": {"A": "${input:a}"}}, "only the program can fill in ${input:…}"),
        (CURSOR, {"command": "a", "args": ["${fileDirname}"]}, "only the program can fill in ${file"),
        (VS_CODE, {"command": "a", "envFile": ".env"}, 'carpool does not know its key "envFile"'),
        (
            CLAUDE_CODE,
            {"type": "http", "url": "https://h", "headersHelper": "h"},
            "carpool does not support `headersHelper`",
        ),
        (CURSOR, {"command": 3}, "must be"),
        (CURSOR, "text", "it is no object"),
        (CURSOR, {"command": "a", "env": {"KEY": "one\ntwo"}}, "a secret of several lines"),
        (CODEX, '[mcp_servers.a]\ncommand = "a"\nwhat = "x"\n', "`what`: unknown key"),
        (CODEX, "[mcp_servers.a]\ncommand = 2026-01-01\n", "`command`: must be"),
        (CODEX, '[mcp_servers.a]\ncommand = "a"\ntool_timeout_sec = nan\n', ""),
    ],
)
def test_what_carpool_cannot_run_as_the_program_does_stays_there_with_the_reason(
    client: McpClient, entry: Any, why: str
) -> None:
    holder = "servers" if client is VS_CODE else "mcpServers"
    held = entry if client is CODEX else {holder: {"a": entry}}
    plan = planned(source(client, held))
    assert (plan.changes, [each.name for each in plan.left]) == ((), ["a"])
    assert why in plan.left[0].why


def test_without_the_part_for_urls_those_servers_stay() -> None:
    plan = planned(source(CURSOR, {"mcpServers": {"a": {"url": "https://h/mcp"}}}), remote=False)
    assert plan.changes == ()
    assert "-m pip install 'mcp>=2.3,<3'" in plan.left[0].why


def test_the_entry_has_another_name_beside_a_server_of_that_name_that_stays() -> None:
    held = {"mcpServers": {"carpool": {"command": "a", "envFile": "x"}, "b": {"command": "b"}}}
    plan = planned(source(CURSOR, held))
    servers_there = after(plan, f"{HOME}/cursor.json")["mcpServers"]
    assert list(servers_there) == ["carpool", "carpool-broker"]
    assert servers_there["carpool-broker"]["args"][-1] == "43", "its name is part of the prefix"


@pytest.mark.parametrize("name", ["Brave Search", "a.b", "a__b", "_", "日本", "x" * 99, "a/b"])
def test_a_name_that_no_server_may_have_is_made_one(name: str) -> None:
    plan = planned(source(CURSOR, {"mcpServers": {name: {"command": "a"}}}))
    assert plan.moved[0].notes[0].startswith("was called ")
    assert list(servers(plan)) == [plan.moved[0].name]


def test_a_server_with_a_relative_path_runs_in_the_project_as_it_did() -> None:
    held = {
        "mcpServers": {
            "a": {"command": "node", "args": ["./a.js"]},
            "b": {"command": "npx", "args": ["@a/b"]},
        }
    }
    assert servers(planned(source(GEMINI, held)))["a"]["cwd"] == "${workspace}"
    assert "cwd" not in servers(planned(source(GEMINI, held)))["b"]
    assert "cwd" not in servers(planned(source(CLAUDE_DESKTOP, held)))["a"]


def test_a_variable_of_gemini_is_one_of_ours_wherever_it_stands() -> None:
    held = {
        "mcpServers": {"a": {"httpUrl": "https://h/$ID/mcp", "headers": {"X-Key": "$KEY"}, "timeout": 5000}}
    }
    assert servers(planned(source(GEMINI, held)))["a"] == {
        "url": "https://h/${ID}/mcp",
        "transport": "http",
        "headers": {"X-Key": "${KEY}"},
        "timeout_s": 5.0,
    }


def test_what_claude_code_keeps_for_a_directory_goes_to_a_workspace_of_it() -> None:
    held = {
        "projects": {
            "/w/shop": {"mcpServers": {"a": {"command": "a"}}},
            "/x/shop": {"mcpServers": {"a": {"command": "b"}}},
            "/gone": {"mcpServers": {"a": {"command": "c"}}},
            HOME: {"mcpServers": {"a": {"command": "d"}}},
        }
    }
    plan = planned(source(CLAUDE_CODE, held), alive=lambda root: root != "/gone")
    assert after(plan)["workspaces"] == {
        "shop": {"root": "/w/shop", "mcpServers": {"a": {"command": "a"}}},
        "shop-2": {"root": "/x/shop", "mcpServers": {"a": {"command": "b"}}},
    }
    left = after(plan, f"{HOME}/claude-code.json")
    assert left["mcpServers"] == {"carpool": ENTRY}
    assert [list(each["mcpServers"]) for each in left["projects"].values()] == [[], [], ["a"], ["a"]]
    assert len(plan.left) == 2


def test_a_project_keeps_its_servers_in_a_file_of_its_own() -> None:
    held = {"mcpServers": {"a": {"command": "./a"}}}
    plan = planned(source(CLAUDE_CODE, held, "/w/.mcp.json", "project"))
    assert after(plan, "/w/.carpool/mcp.json") == held
    assert after(plan, "/w/.mcp.json") == {"mcpServers": {"carpool": ENTRY}}
    assert plan.moved[0].under == "/w"


def test_a_program_that_is_named_gets_the_entry_without_having_servers() -> None:
    assert planned(source(CURSOR, "{}\n")).changes == ()
    plan = planned(source(CURSOR, "{}\n"), named=["cursor"])
    assert after(plan, f"{HOME}/cursor.json") == {"mcpServers": {"carpool": ENTRY}}


def test_a_program_with_several_files_gets_the_entry_in_one_of_them() -> None:
    one = source(OPENCODE, "{}", f"{HOME}/opencode.json")
    plan = planned(one, source(OPENCODE, "{}", f"{HOME}/opencode.jsonc"), named=["opencode"])
    assert [each.path for each in plan.changes] == [f"{HOME}/opencode.json"]
    there = source(OPENCODE, {"mcp": {"carpool": {"type": "local", "command": ["carpool", "connect"]}}})
    assert planned(there, one, named=["opencode"]).changes == ()
    assert planned(source(VS_CODE, "{}", f"{HOME}/User/settings.json"), named=["vscode"]).changes == ()


@pytest.mark.parametrize(
    ("client", "held", "expected"),
    [
        (
            VS_CODE,
            '{"servers": {"a": {"command": "a"}}}',
            {"servers": {"carpool": {"type": "stdio", **ENTRY}}},
        ),
        (
            OPENCODE,
            '{"mcp": {"a": {"type": "local", "command": ["a"]}}}',
            {"mcp": {"carpool": {"type": "local", "command": ["carpool", *ENTRY["args"]], "enabled": True}}},
        ),
        (
            OPENCODE,
            '{"mcp": {"servers": {"a": {"type": "local", "command": ["a"]}}}}',
            {
                "mcp": {
                    "servers": {
                        "carpool": {"type": "local", "command": ["carpool", *ENTRY["args"]], "enabled": True}
                    }
                }
            },
        ),
    ],
)
def test_the_entry_is_written_in_the_program_s_own_shape(client: McpClient, held: str, expected: Any) -> None:
    plan = planned(source(client, held))
    assert after(plan, f"{HOME}/{client.id}.json") == expected
    assert servers(plan) == {"a": {"command": "a"}}


def test_codex_names_variables_and_its_texts_are_literal() -> None:
    text = """
[mcp_servers.a]
command = "a"
args = ["${x}"]
env_vars = ["A"]
tool_timeout_sec = 9
enabled = false
enabled_tools = ["t"]
[mcp_servers.b]
url = "https://h/mcp"
bearer_token_env_var = "TOKEN"
env_http_headers = { "X-A" = "A" }
"""
    plan = planned(source(CODEX, text))
    assert servers(plan) == {
        "a": {
            "command": "a",
            "args": ["$${x}"],
            "env": {"A": "${A:-}"},
            "timeout_s": 9,
            "disabled": True,
            "tools": {"allow": ["t"]},
        },
        "b": {"url": "https://h/mcp", "headers": {"X-A": "${A}", "Authorization": "Bearer ${TOKEN}"}},
    }


@behaviour("setup:rules")
def test_a_mode_of_approval_that_codex_keeps_with_a_server_is_told_to_be_lost() -> None:
    text = '[mcp_servers.{0}]\ncommand = "{0}"\ndefault_tools_approval_mode = "{1}"\n'
    plan = planned(source(CODEX, text.format("a", "prompt") + text.format("b", "auto")))
    assert [each.notes for each in plan.moved] == [
        (
            "its `default_tools_approval_mode` does not come along: say it for the entry of carpool if you "
            "need it",
        ),
        (),
    ]


@behaviour("setup:left_behind")
@pytest.mark.parametrize(
    ("client", "held", "note"),
    [
        (
            GEMINI,
            {"mcpServers": {"a": {"command": "a", "trust": True, "description": "d"}}},
            "its `trust` and `description` do not come along: say them for the entry of carpool if you need "
            "them",
        ),
        (GEMINI, {"mcpServers": {"a": {"command": "a", "trust": False}}}, ""),
        (
            CODEX,
            '[mcp_servers.a]\ncommand = "a"\nrequired = true\n',
            "its `required` does not come along: say it for the entry of carpool if you need it",
        ),
        (CODEX, '[mcp_servers.a]\ncommand = "a"\nrequired = false\n', ""),
        (
            CLAUDE_CODE,
            {"mcpServers": {"a": {"command": "a", "alwaysLoad": True}}},
            "its `alwaysLoad` does not come along: say it for the entry of carpool if you need it",
        ),
    ],
)
def test_a_key_of_the_program_s_own_is_named_where_it_is_left_behind(
    client: McpClient, held: Any, note: str
) -> None:
    (moved,) = planned(source(client, held)).moved
    assert moved.notes == ((note,) if note else ())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (".", "${workspace}"),
        ("./", "${workspace}"),
        ("..", "${workspace}/.."),
        ("sub/dir", "${workspace}/sub/dir"),
        ("$HOME", "${workspace}/$HOME"),
    ],
)
def test_a_relative_directory_of_a_server_is_the_project_s_and_not_the_home_directory(
    written: str, expected: str
) -> None:
    plan = planned(source(CODEX, f'[mcp_servers.a]\ncommand = "a"\ncwd = "{written}"\n'))
    assert servers(plan)["a"]["cwd"] == expected
    assert plan.moved[0].notes == ("runs in each project's directory, because of a relative `cwd`",)


@pytest.mark.parametrize("client", [GEMINI, CURSOR])
def test_a_relative_directory_of_any_program_that_runs_servers_in_projects_is_the_project_s(
    client: McpClient,
) -> None:
    plan = planned(source(client, {"mcpServers": {"a": {"command": "a", "cwd": "./sub"}}}))
    assert servers(plan)["a"]["cwd"] == "${workspace}/sub"


def test_a_relative_directory_stays_with_a_program_that_runs_servers_in_no_project() -> None:
    plan = planned(source(CLAUDE_DESKTOP, {"mcpServers": {"a": {"command": "a", "cwd": "x"}}}))
    assert [each.why for each in plan.left] == [
        "its `cwd` is relative, and only Claude Desktop knows from where"
    ]


@pytest.mark.parametrize("cwd", ["/w", "~/w", "${HOME}/w"])
def test_a_directory_that_is_not_relative_stays_as_it_is(cwd: str) -> None:
    plan = planned(source(CLAUDE_CODE, {"mcpServers": {"a": {"command": "a", "cwd": cwd}}}))
    assert servers(plan)["a"]["cwd"] == cwd


@behaviour("setup:secrets")
@pytest.mark.parametrize("name", ["A_NAME", "A_TOKEN"])
def test_the_name_of_a_server_is_shown_also_where_a_value_is_equal(name: str) -> None:
    entry = {"command": "oddly", "args": ["-y", "oddly"], "env": {name: "oddly"}}
    shown = page(planned(source(CURSOR, {"mcpServers": {"oddly": entry}})))
    assert '-    "oddly": {' in shown
    assert '-      "command": "oddly",' in shown
    assert f'"{name}": "…"' in shown
    assert f'"{name}": "oddly"' not in shown
    text = f'[mcp_servers."oddly"]\ncommand = "x"\nargs = ["oddly"]\nenv = {{ {name} = "oddly" }}\n'
    shown = page(planned(source(CODEX, text)))
    assert '-[mcp_servers."oddly"]' in shown
    assert f'-env = {{ {name} = "…" }}' in shown


@behaviour("setup:secrets")
@pytest.mark.parametrize(
    ("client", "text"),
    [
        (CURSOR, '{"mcpServers":{"a":{"command":"c","env":{"LEVEL":"hunter word"}},"b":{"command":"d"}}}'),
        (CURSOR, '{"mcpServers": {"a": {"command": "c", "env": {"LEVEL": "\\u0068unter word"}}}}'),
        (CURSOR, '{"mcpServers": {"a": {"command": "c", "args": ["--token", "hunter\\u0020word"]}}}'),
        (
            CURSOR,
            '{"mcpServers": {"a": {"envFile": "x", "env": {"LEVEL": "hunter word"}},\n"b":{"command":"b"}}}',
        ),
        (CURSOR, '{"mcpServers": {\n// "a": {"env": {"A_TOKEN": "hunter word"}},\n"b":{"command":"b"}}}'),
        (CURSOR, '{"apiKey": "hunter word",\n"mcpServers": {"b":{"command":"b"}}}'),
        (OPENCODE, '{"mcp": {"a": {"type": "local", "command": ["c", "--password=hunter word"]}}}'),
        (CODEX, "[mcp_servers.a]\ncommand = 'c'\nenv = { LEVEL = 'hunter word' }\n"),
        (CODEX, '[mcp_servers.a]\ncommand = "c"\n[mcp_servers.a.env]\nA_KEY = """hunter word"""\n'),
        (CODEX, '[mcp_servers.a]\ncommand = "c"\n[mcp_servers.a.env]\nLEVEL = "hunter\\u0020word"\n'),
        (CODEX, 'secret = "hunter word"\n[mcp_servers.a]\ncommand = "c"\n'),
    ],
)
def test_no_value_of_an_environment_is_shown_however_it_is_written(client: McpClient, text: str) -> None:
    plan = planned(source(client, text))
    assert plan.changes
    assert "hunter" not in page(plan)


# --- profiles ----


def _profile(plan: SetupPlan, client: McpClient) -> str:
    entry = after(plan, f"{HOME}/{client.id}.json")["mcpServers"]["carpool"]
    return str(entry["args"][entry["args"].index("--profile") + 1]) if "--profile" in entry["args"] else ""


@behaviour("setup:profiles")
@settings(max_examples=60, deadline=None)
@given(
    had=st.dictionaries(
        st.sampled_from([CLAUDE_DESKTOP, CURSOR, GEMINI]),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["x", "y"]), min_size=1),
        min_size=1,
    ),
    later=st.dictionaries(st.sampled_from(["d", "e"]), st.just("z"), max_size=2),
    own=st.booleans(),
)
def test_whatever_programs_had_each_keeps_just_that(had: Any, later: Any, own: bool) -> None:
    """Also in a second run, that moves what was added to a program since."""
    text = (
        '{"mcpServers": {"mine": {"command": "m"}}, "profiles": {"gemini": {"max_tools": 3}}}'
        if own
        else None
    )

    def held(client: McpClient) -> Any:
        return {"mcpServers": {name: {"command": command} for name, command in had[client].items()}}

    plan = planned(*(source(client, held(client)) for client in had), own=text, separate=True)
    written = after(plan)
    for client in had:
        mine = {each.name for each in plan.moved if each.client_id == client.id}
        profile = _profile(plan, client)
        if profile:
            assert written["profiles"][profile] == {
                "allow": [f"mcp:{each.name}" for each in plan.moved if each.client_id == client.id]
            }
        else:
            assert mine == set(written["mcpServers"]), "it would see no other server"
    assert not own or written["profiles"]["gemini"] == {"max_tools": 3}
    first = next(iter(had))
    there = after(plan, f"{HOME}/{first.id}.json")
    there["mcpServers"] |= {name: {"command": command} for name, command in later.items()}
    again = planned(source(first, there), own=written, separate=False)
    if later and (profile := _profile(plan, first)):
        allowed = after(again)["profiles"][profile]["allow"]
        assert set(allowed) == {*written["profiles"][profile]["allow"], *(f"mcp:{name}" for name in later)}
        ours = next(each for each in again.changes if each.role == "own")
        assert json.loads(undone(ours, ours.after) or b"") == written
    elif later:
        assert after(again)["mcpServers"].keys() >= later.keys()


def test_the_profile_that_an_entry_names_already_gets_what_its_program_brings() -> None:
    def entered(*more: str) -> Any:
        held = {"carpool": {"command": "carpool", "args": ["connect", *more]}, "b": {"command": "b"}}
        return source(CURSOR, {"mcpServers": held})

    own = {
        "mcpServers": {"a": {"command": "a"}},
        "profiles": {"p": {"allow": ["mcp:a"], "max_tools": 1}, "q": {}},
    }
    said = planned(entered(), own=own, separate=True)
    assert said.notes == ("Cursor sees all servers: its entry for carpool names no profile",)
    said = planned(entered("--profile=p"), own=own, separate=True)
    assert after(said)["profiles"]["p"] == {"allow": ["mcp:a", "mcp:b"], "max_tools": 1}
    said = planned(entered("--profile", "q"), own=own, separate=True)
    assert (said.notes, after(said)["profiles"]) == ((), own["profiles"]), "it allows everything"
    said = planned(entered("--profile", "gone"), own=own, separate=True)
    assert said.notes == ("Cursor's entry for carpool names the profile gone, which is not there",)


# --- places ------------------------------------------------------------------------------------------------


def test_every_program_is_looked_for_where_it_keeps_its_files_on_both_systems() -> None:
    def places(platform: str, environ: dict[str, str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {each.id: [] for each in CLIENTS}
        for each in candidates(environ, HOME, platform, ""):
            found[each.client.id].append(each.path)
        return found

    linux, mac = places("linux", {}), places("darwin", {})
    assert linux["claude-desktop"] == [f"{HOME}/.config/Claude/claude_desktop_config.json"]
    support = f"{HOME}/Library/Application Support"
    assert mac["claude-desktop"] == [f"{support}/Claude/claude_desktop_config.json"]
    assert f"{support}/Code/User/mcp.json" in mac["vscode"]
    assert f"{HOME}/.config/Code/User/profiles/*/mcp.json" in linux["vscode"]
    assert mac["opencode"][0] == f"{HOME}/.config/opencode/opencode.json"
    told = {
        "XDG_CONFIG_HOME": "/x",
        "CLAUDE_CONFIG_DIR": "/c",
        "CODEX_HOME": "/k",
        "OPENCODE_CONFIG": "/o.json",
    }
    moved = places("linux", told)
    assert moved["claude-code"] == ["/c/.claude.json"]
    assert moved["codex"] == ["/k/config.toml"]
    assert moved["opencode"] == ["/x/opencode/opencode.json", "/x/opencode/opencode.jsonc", "/o.json"]
    assert places("linux", {"XDG_CONFIG_HOME": "relative"}) == linux


def test_the_home_directory_is_no_project() -> None:
    assert {each.scope for each in candidates({}, HOME, "linux", HOME)} == {"user"}
    assert "/w/.mcp.json" in {each.path for each in candidates({}, HOME, "linux", "/w")}


# --- hostile files, and the way back -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "text", "why"),
    [
        (CURSOR, '{"mcpServers": {', "is broken at line 1"),
        (CURSOR, '{"mcpServers": {"a": 1, "a": 2}}', "is broken at line 1"),
        (CURSOR, '{"mcpServers": []}', "has no object at mcpServers"),
        (CURSOR, "[]", "holds no object"),
        (CODEX, "[mcp_servers", "is no TOML"),
        (CODEX, "mcp_servers = 3", "has no object at mcp_servers"),
    ],
)
def test_a_broken_file_is_left_as_it_is_and_the_others_go_on(client: McpClient, text: str, why: str) -> None:
    plan = planned(source(client, text), source(GEMINI, {"mcpServers": {"b": {"command": "b"}}}))
    assert [(each.name, each.why.startswith(why)) for each in plan.left] == [("", True)]
    assert list(servers(plan)) == ["b"]


_KEYS = st.sampled_from(
    ["mcpServers", "a", "b__c", "command", "args", "env", "url", "API_KEY", "carpool", "é", ""]
)
_TEXTS = st.sampled_from(
    ["x", "npx", "https://h/mcp", "ghp_0123456789canary", "${A}", "${", "{env:A}", "a\u2028b", ""]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)
_ENTRIES = st.fixed_dictionaries(
    {"command": _TEXTS | _VALUES},
    optional={
        "args": st.lists(_TEXTS, max_size=3),
        "env": st.dictionaries(_KEYS, _TEXTS, max_size=3),
        "x": _VALUES,
    },
)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A file with servers, laid out anyhow, with comments and commas too many."""
    held: dict[str, Any] = {
        "before": draw(_VALUES),
        "mcpServers": draw(st.dictionaries(_KEYS, _ENTRIES, max_size=4)),
    }
    held["after"] = draw(_VALUES)
    text = json.dumps(
        held, indent=draw(st.sampled_from([None, 0, 2, "\t"])), ensure_ascii=draw(st.booleans())
    )
    for mark, other in (
        ("\n", draw(st.sampled_from(["\n", "\r\n", " // c\n", "\n\n"]))),
        (" {", " /* } */ {"),
    ):
        if draw(st.booleans()):
            text = text.replace(mark, other)
    return (
        draw(st.sampled_from(["", "\ufeff", "// top\n"])) + text + draw(st.sampled_from(["", "\n", "\r\n"]))
    )


@behaviour("setup:undone")
@settings(max_examples=60, deadline=None)
@given(texts() | st.text(st.characters(codec="utf-8"), max_size=40))
@example('{"mcpServers": {"a": {"command": "x"}, // last\n}, }')
def test_whatever_a_file_looks_like_what_is_changed_goes_back(text: str) -> None:
    plan = planned(source(CURSOR, text))
    for change in plan.changes:
        assert undone(change, change.after) == change.before
        if change.role == "client":
            table = parse(text, "").spans.get(("mcpServers",))
            assert table is None or change.after.decode().startswith(text[: table.value])
            assert table is None or change.after.decode().endswith(text[table.end :])
            beside = set_member(change.after.decode(), ("beside",), ["somebody's"])
            left = parse((undone(change, beside.encode()) or b"").decode(), "")
            assert left.value == {**_object(text), "beside": ["somebody's"]}
        if change.role == "client":
            again = planned(source(CURSOR, change.after.decode()), own=_own(plan))
            assert [each.role for each in again.changes] == []
    assert "ghp_0123456789canary" not in page(plan)
    for change in plan.changes:
        if change.role != "secrets":
            assert b"ghp_0123456789canary" not in change.after or change.role == "client"  # of what stays


def _object(text: str) -> dict[str, Any]:
    value = parse(text, "").value
    assert isinstance(value, dict)
    return value


def _own(plan: SetupPlan) -> str | None:
    return next((each.after.decode() for each in plan.changes if each.role == "own"), None)


FILE = """{
  // mine
  "mcpServers": {
    "a": { "command": "a" } // one
  },
  "count": 1
}
"""


@behaviour("setup:undone")
def test_what_somebody_has_changed_beside_the_servers_stays_when_they_are_put_back() -> None:
    change = planned(source(CURSOR, FILE)).changes[-1]
    now = change.after.replace(b'"count": 1', b'"count": 2')
    assert undone(change, now) == FILE.replace('"count": 1', '"count": 2').encode()


def test_a_file_whose_servers_somebody_has_changed_is_kept_unless_it_is_forced() -> None:
    change = planned(source(CURSOR, FILE)).changes[-1]
    now = change.after.replace(b'"connect"', b'"connect", "--profile", "x"')
    said = undo_verdict(change.role, change.before, change.after, now, change.regions)
    assert (said.outcome, said.data) == ("kept", now)
    forced = undo_verdict(change.role, change.before, change.after, now, change.regions, force=True)
    assert (forced.outcome, _object((forced.data or b"").decode())) == ("put back", _object(FILE))
    gone = undo_verdict(change.role, change.before, change.after, None, change.regions)
    assert (gone.outcome, gone.data) == ("kept", None)
    assert (
        undo_verdict(change.role, change.before, change.after, change.before, change.regions).outcome
        == "as it was"
    )


def test_servers_leave_our_file_but_those_that_somebody_has_changed() -> None:
    held = {"mcpServers": {"a": {"command": "a"}, "b": {"command": "b", "env": {"B_KEY": "one"}}}}
    own = '{\n  "mcpServers": { "mine": { "command": "m" } } // mine\n}\n'
    plan = planned(source(CURSOR, held), own=own)
    secrets, ours = plan.changes[:2]
    now = ours.after.replace(b'"command": "b"', b'"command": "other"')
    said = undo_verdict("own", ours.before, ours.after, now, ours.regions)
    left = json.loads((said.data or b"").decode().replace("// mine", ""))
    assert list(left["mcpServers"]) == ["mine", "b"]
    assert left["env_file"] == "secrets.env"
    kept = undo_verdict("secrets", None, secrets.after, secrets.after, (), used=(said.data or b"").decode())
    assert (kept.outcome, kept.data) == ("left", secrets.after)


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.just(("token",)), st.sampled_from(["t1", "t2"])),
        st.tuples(st.just("set"), st.tuples(st.just("servers"), _NAMES), st.just({"command": "since"})),
        st.tuples(st.just("set"), st.just(("servers", "carpool")), st.just({**ENTRY, "env": {"X": "1"}})),
        st.tuples(st.just("set"), st.just(("servers", "carpool")), st.just({"command": "another"})),
        st.tuples(st.just("drop"), st.tuples(st.just("servers"), _NAMES | st.just("carpool")), st.none()),
    ),
    max_size=4,
)
"""Writes of others between setup and its undoing: a token, servers, carpool's own entry."""


def _json_written(text: str, servers: str, edits: Any) -> str:
    for verb, path, value in edits:
        place = tuple(servers if each == "servers" else each for each in path)
        if verb == "set":
            text = set_member(text, place, value)
        elif place in parse(text, "").spans:
            text = edit.remove_member(text, place)
    return text


def _toml_written(text: str, edits: Any) -> str:
    for _, path, value in edits:
        if path == ("token",):
            text = f'token = "{value}"\n' + re.sub(r"^token = .*\n", "", text)
        else:
            held = tomllib.loads(text).get("mcp_servers", {})
            text = toml.swap(text, [path[1]] if path[1] in held else [], {path[1]: value} if value else {})
    return text


@behaviour("setup:undone", "setup:undone.since")
@settings(max_examples=150, deadline=None)
@given(
    client=st.sampled_from([CURSOR, OPENCODE, CODEX]),
    had=st.sets(_NAMES, min_size=1),
    edits=_EDITS,
    force=st.booleans(),
)
def test_no_undoing_takes_away_what_others_wrote_since(
    client: McpClient, had: set[str], edits: Any, force: bool
) -> None:
    """The whole family: whatever was written, it stays; servers that setup moved are back; with `force` no
    entry of carpool's is left.
    """
    key = {"cursor": "mcpServers", "opencode": "mcp", "codex": "mcp_servers"}[client.id]
    if client is CODEX:
        text = 'token = "t0"\n' + "".join(f'\n[mcp_servers.{name}]\ncommand = "x"\n' for name in sorted(had))
    else:
        entry = {"type": "local", "command": ["x"]} if client is OPENCODE else {"command": "x"}
        text = json.dumps({"token": "t0", key: dict.fromkeys(sorted(had), entry)}, indent=2)
    change = planned(source(client, text)).changes[-1]
    after = change.after.decode()
    now = _toml_written(after, edits) if client is CODEX else _json_written(after, key, edits)
    said = undo_verdict("client", change.before, change.after, now.encode(), change.regions, force=force)
    read: Any = tomllib.loads if client is CODEX else _object
    was, left, there = read(text)[key], read(now), read((said.data or b"").decode())
    if said.outcome == "kept":
        assert (said.data, force) == (now.encode(), False)
        return
    assert there["token"] == left["token"]
    ours = read(after)[key]["carpool"]
    servers = left.get(key, {})
    for name, server in servers.items():
        if not (name == "carpool" and is_own_entry(toml.plain(server))):
            assert there[key][name] == server
    assert {name: there[key][name] for name in had - servers.keys()} == {
        name: was[name] for name in had - servers.keys()
    }
    assert there.get(key, {}).get("carpool") in (None, {"command": "another"})
    assert ours is not None


@behaviour("setup:undone.since")
@settings(max_examples=60, deadline=None)
@given(had=st.sets(_NAMES, min_size=1), edits=_EDITS)
def test_servers_that_were_added_or_edited_in_our_file_stay_there(had: set[str], edits: Any) -> None:
    held = {"mcpServers": {name: {"command": "x"} for name in sorted(had)}}
    ours = planned(source(CURSOR, held)).changes[0]
    now = _json_written(ours.after.decode(), "mcpServers", [each for each in edits if each[1] != ("token",)])
    said = undo_verdict("own", ours.before, ours.after, now.encode(), ours.regions, force=True)
    kept = {
        name: server
        for name, server in _object(now).get("mcpServers", {}).items()
        if not (name in had and server == {"command": "x"})
    }
    left = {} if said.data is None else _object(said.data.decode()).get("mcpServers", {})
    assert left == kept


def test_variables_that_somebody_added_stay_in_the_env_file() -> None:
    before, added = b'MINE="1"\n', b'MINE="1"\nCARPOOL_A="2"\n'
    said = undo_verdict("secrets", before, added, added + b"NEW=3\n", ())
    assert (said.outcome, said.data) == ("put back", b'MINE="1"\nNEW=3\n')


def test_tables_of_toml_are_put_back_beside_what_somebody_has_changed() -> None:
    text = 'model = "a"\n\n[mcp_servers.a]\ncommand = "a"\n\n[mcp_servers.a.env]\nX = "1"\n\n[tui]\nx = 1\n'
    change = planned(source(CODEX, text)).changes[-1]
    assert undone(change, change.after) == text.encode()
    now = change.after.replace(b"x = 1", b"x = 2")
    said = undo_verdict("client", change.before, change.after, now, ())
    assert said.outcome == "put back"
    assert b'[mcp_servers.a.env]\nX = "1"\n' in (said.data or b"")
    assert b"x = 2" in (said.data or b"")
    assert b"carpool" not in (said.data or b"")


_PIECES = (
    *(
        'model = "x"  # c\n',
        "[mcp_servers]\n",
        "# comment\n",
        "\n",
        "[[list]]\nx = 1\n",
        "[tui]\n",
        "d = 2020-01-01\n",
    ),
    *(
        '[mcp_servers.a]\ncommand = "x"\n',
        '[mcp_servers.a.env]\nK = "v" # k\n',
        'mcp_servers.d.command = "z"\n',
    ),
    '[mcp_servers."b c"]\ncommand = \'y\'\nargs = [\n  "1", # one\n]\n',
    'mcp_servers = { e = { command = "q" } }\n',
    'mcp_servers.f = { command = "w", env = { A = "1" } }\n',
    '[mcp_servers.g]\r\ncommand = "x"\r\n',
    '   [ mcp_servers . h ]\n  command="i"\n',
    '[profiles.p.mcp_servers.z]\ncommand="n"\n',
    'x = """\n[mcp_servers.fake]\n"""\n',
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), unique=True, max_size=7).map("".join))
def test_whatever_a_file_of_toml_looks_like_the_rest_of_it_stays(text: str) -> None:
    plan = planned(source(CODEX, text))
    if not plan.changes:
        return
    change = plan.changes[-1]
    held, now = tomllib.loads(text), tomllib.loads(change.after.decode())
    before, left = held.pop("mcp_servers"), now.pop("mcp_servers")
    stay = {each.name for each in plan.left}
    assert left == {"carpool": ENTRY, **{name: before[name] for name in stay}}
    assert len(plan.moved) == len(before.keys() - stay)
    assert held == now
    if '"""' not in text:  # there, what looks like a table is none
        assert text.count("# comment\n") == change.after.decode().count("# comment\n")
    assert undone(change, change.after) == text.encode()
    beside = b'somebody = "new"\n' + change.after
    back = tomllib.loads((undone(change, beside) or b"").decode())
    assert back in ({**tomllib.loads(text), "somebody": "new"}, tomllib.loads(beside.decode()))
