"""Other programs' files: each shape as its users write it, and that nothing in one makes reading it raise."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.config.foreign.formats import PROGRAMS, SHAPES, is_own_entry, program_of, shape_of
from carpool_protocol.config.reading.parse import LoadedConfig, read_config
from carpool_protocol.config.schema.model import Config, ServerConfig, variables
from carpool_protocol.config.schema.settings import SERVER_SETTINGS
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour


def load(text: str | object, file: str) -> LoadedConfig:
    return read_config(text if isinstance(text, str) else json.dumps(text, indent=1), file)


def good(text: str | object, file: str) -> Config:
    loaded = load(text, file)
    assert [each.render() for each in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config


def only(config: Config) -> ServerConfig:
    (server,) = config.servers.values()
    return server


def told(server: ServerConfig) -> tuple[str | None, tuple[str, ...], dict[str, str]]:
    return server.command, server.args, server.env


def reached(server: ServerConfig) -> tuple[str | None, str | None, dict[str, str]]:
    return server.transport, server.url, server.headers


CLAUDE_CODE = """{
  "mcpServers": {
    "github": {
      "type": "stdio",
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-github"],
      "env": { "GITHUB_TOKEN": "${GITHUB_TOKEN}" },
      "timeout": 120000
    },
    "docs": { "type": "http", "url": "https://docs.example/mcp", "headers": { "X-Key": "${DOCS_KEY}" } }
  }
}"""

CURSOR = """{
  "mcpServers": {
    "fs": {
      "command": "${workspaceFolder}/bin/fs",
      "args": ["${userHome}/notes", "${env:FS_ROOT}"],
      "envFile": ".env"
    }
  }
}"""

WINDSURF = """{
  "mcpServers": {
    "jira": { "command": "uvx", "args": ["jira"], "disabled": true, "disabledTools": ["delete_issue"] },
    "remote": { "serverUrl": "https://mcp.example/sse" }
  }
}"""

CLINE = """{
  "mcpServers": {
    "weather": {
      "command": "node", "args": ["/opt/weather.js"], "timeout": 30,
      "alwaysAllow": ["forecast"], "autoApprove": [], "disabled": false
    }
  }
}"""

VS_CODE = """{
  // as VS Code writes it
  "inputs": [ { "type": "promptString", "id": "key", "description": "API key", "password": true } ],
  "servers": {
    "memory": { "type": "stdio", "command": "npx", "args": ["-y", "server-memory"],
                "cwd": "${workspaceFolder}", "env": { "PORT": 8080, "GONE": null }, "dev": {} },
    "asks": { "type": "stdio", "command": "npx", "env": { "API_KEY": "${input:key}" } }
  }
}"""

NAMED_LIST = """[
  { "name": "search", "transport": "stdio", "command": "python", "args": ["-m", "search"], "enabled": true,
    "timeout": 45, "tools_prefix": "s", "auto_connect": true, "reconnect": true, "max_reconnect_attempts": 3,
    "tags": ["web"] },
  { "name": "old", "command": "old", "enabled": false, "reconnect": false }
]"""

SERVERS_LIST = """{
  "servers": [
    { "name": "a", "transport": "stdio", "command": "a-server", "auto_connect": false },
    { "name": "b", "transport": "sse", "url": "http://127.0.0.1:9/sse", "auto_connect": true }
  ]
}"""

OPENCODE = """{
  "$schema": "https://opencode.example/config.json",
  "theme": "dark",
  "mcp": {
    "list": { "type": "local", "command": ["bun", "x", "my-server"], "environment": { "KEY": "{env:MY_KEY}" },
              "enabled": true, "timeout": 5000 },
    "line": { "type": "local", "command": "npx -y 'my server'", "enabled": false },
    "far": { "type": "remote", "url": "https://mcp.example", "enabled": true,
             "headers": { "X-Key": "{env:FAR_KEY}" }, "oauth": { "clientId": "me", "scope": "a b" } },
    "text": { "type": "local", "command": ["sh", "-c", "echo ${HOME}"] }
  }
}"""


@behaviour("config:shapes")
def test_a_file_of_claude_code_is_read() -> None:
    config = good(CLAUDE_CODE, "/p/.mcp.json")
    github, docs = config.servers.values()
    assert told(github) == (
        "npx",
        ("-y", "@modelcontextprotocol/server-github"),
        {"GITHUB_TOKEN": "${GITHUB_TOKEN}"},
    )
    assert github.policy.timeout_s == 120.0
    assert reached(docs) == ("http", "https://docs.example/mcp", {"X-Key": "${DOCS_KEY}"})


@behaviour("config:shapes")
@pytest.mark.parametrize(
    ("entry", "policy"),
    [
        ({"reconnect": False}, (1, 0.0)),
        ({"reconnect": True}, (5, 60.0)),
        ({"reconnect": False, "restart": {"first_delay_s": 2}}, (1, 0.0)),
        ({"restart": {"first_delay_s": 2}, "reconnect": False}, (1, 0.0)),
        ({"restart": {"give_up_after": 3}, "reconnect": False}, (3, 0.0)),
        ({"reconnect": False, "restart": {"open_s": 9}}, (1, 9.0)),
        ({"max_reconnect_attempts": 2, "restart": {"open_s": 9}}, (3, 9.0)),
        ({"reconnect": False, "max_reconnect_attempts": 2}, (1, 0.0)),
    ],
)
def test_a_server_that_is_not_to_reconnect_is_never_started_again(
    entry: dict[str, Any], policy: tuple[int, float]
) -> None:
    written = json.dumps([{"name": "a", "command": "x", **entry}])
    found = good(written, "/p/mcp_servers.json").servers[ServerName("a")].policy
    assert (found.give_up_after, found.open_s) == policy


@behaviour("config:shapes")
def test_a_file_of_cursor_is_read_with_its_spelling_of_variables() -> None:
    loaded = load(CURSOR, "/p/.cursor/mcp.json")
    assert loaded.config is not None
    fs = only(loaded.config)
    assert told(fs) == ("${workspace}/bin/fs", ("${HOME}/notes", "${FS_ROOT}"), {})
    assert variables(loaded.config) == {"HOME", "FS_ROOT"}
    assert [each.render() for each in loaded.warnings] == [
        '/p/.cursor/mcp.json:6: mcpServers.fs.envFile: carpool does not know the key "envFile"; it is ignored'
    ]


@behaviour("config:shapes")
def test_a_file_of_windsurf_is_read() -> None:
    config = good(WINDSURF, "/h/.codeium/windsurf/mcp_config.json")
    jira, remote = config.servers.values()
    assert (jira.disabled, jira.tools_deny) == (True, ("delete_issue",))
    assert reached(remote) == (None, "https://mcp.example/sse", {})


@behaviour("config:shapes")
def test_the_timeout_of_cline_is_seconds_and_its_approvals_are_its_own_business() -> None:
    loaded = load(CLINE, "/h/settings/cline_mcp_settings.json")
    assert loaded.config is not None
    assert only(loaded.config).policy.timeout_s == 30.0
    assert loaded.warnings == []


@behaviour("config:shapes")
def test_a_file_of_vs_code_is_read_and_a_question_to_the_user_is_not_asked() -> None:
    config = good(VS_CODE, "/p/.vscode/mcp.json")
    memory = only(config)
    assert told(memory) == ("npx", ("-y", "server-memory"), {"PORT": "8080"})
    assert memory.cwd == "${workspace}"
    (why,) = config.unusable.values()
    assert why == (
        "/p/.vscode/mcp.json:7: servers.asks.env.API_KEY: "
        "${input:…} is another program's spelling; write ${VAR}"
    )


@behaviour("config:shapes")
def test_a_list_with_names_is_read() -> None:
    config = good(NAMED_LIST, "/p/mcp_servers.json")
    search, old = config.servers.values()
    policy = search.policy
    assert told(search) == ("python", ("-m", "search"), {})
    assert (search.tools_prefix, search.tags, search.disabled) == ("s", ("web",), False)
    assert (policy.timeout_s, policy.auto_connect, policy.give_up_after) == (45.0, True, 4)
    assert (old.disabled, old.policy.give_up_after) == (True, 1)


@behaviour("config:shapes")
def test_servers_as_a_list_are_read() -> None:
    config = good(SERVERS_LIST, "/p/mcp/servers.json")
    first, second = config.servers.values()
    assert first.name == "a"
    assert reached(second) == ("sse", "http://127.0.0.1:9/sse", {})


@behaviour("config:shapes")
def test_a_file_of_opencode_is_read_with_commands_as_lists_and_as_lines() -> None:
    loaded = load(OPENCODE, "/p/opencode.json")
    config = loaded.config
    assert config is not None
    listed, line, far, text = config.servers.values()
    assert told(listed) == ("bun", ("x", "my-server"), {"KEY": "${MY_KEY}"})
    assert listed.policy.timeout_s == 5.0
    assert (told(line), line.disabled) == (("npx", ("-y", "my server"), {}), True)
    assert text.args == ("-c", "echo $${HOME}"), "there `${` is text"
    assert reached(far) == ("url", "https://mcp.example", {"X-Key": "${FAR_KEY}"})
    assert far.oauth_client_id == "me"
    assert far.oauth_scopes == ("a", "b")
    assert loaded.warnings == [], "the rest of the file is opencode's own"


@behaviour("config:name-used-once")
@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (
            "mcp_servers.json",
            '[{"name": "a", "command": "x"},\n {"name": "a", "command": "y"}]',
            "mcp_servers.json:2: [1]: the name is used twice, also on line 1; give one another name",
        ),
        (
            "carpool.json",
            '{"mcpServers": {"a": {"command": "x"},\n "a": {"command": "y"}}}',
            "carpool.json:2: mcpServers.a: written twice, also on line 1; keep one",
        ),
    ],
)
def test_a_name_used_twice_is_an_error(file: str, text: str, problem: str) -> None:
    loaded = load(text, file)
    assert loaded.config is None
    assert [each.render() for each in loaded.problems] == [problem]


def test_variables_of_gemini_cli_need_no_braces() -> None:
    entry = {"command": "$HOME/bin/x", "env": {"A": "$DB_URL", "B": "${KEY}", "C": "$5 $"}}
    server = only(good({"mcpServers": {"a": entry}}, ".gemini/settings.json"))
    assert told(server) == ("${HOME}/bin/x", (), {"A": "${DB_URL}", "B": "${KEY}", "C": "$5 $"})
    elsewhere = only(good({"mcpServers": {"a": {"command": "$HOME/bin/x"}}}, ".mcp.json"))
    assert elsewhere.command == "$HOME/bin/x"


@pytest.mark.parametrize(
    ("file", "document"),
    [
        (
            "opencode.json",
            {"mcp": {"a": {"type": "remote", "url": "https://x", "headers": {"K": "{file:~/.key}"}}}},
        ),
        ("opencode.json", {"mcp": {"a": {"type": "local", "command": ["x", "--key={file:key}"]}}}),
        (
            "mcp_config.json",
            {"mcpServers": {"a": {"serverUrl": "https://x", "headers": {"K": "${file:~/.key}"}}}},
        ),
    ],
)
def test_a_value_from_a_file_is_not_passed_on_as_it_is_written(file: str, document: Any) -> None:
    config = good(document, file)
    assert not config.servers
    assert "{file:…}" in config.unusable[ServerName("a")]


def test_a_key_nobody_knows_gets_one_warning_for_all_servers() -> None:
    servers = {name: {"command": "x", "sparkle": 1} for name in ("a", "b")}
    loaded = load({"mcpServers": servers, "glitter": True}, ".mcp.json")
    assert loaded.config is not None
    assert len(loaded.config.servers) == 2
    assert [each.where for each in loaded.warnings] == ["glitter", "mcpServers.a.sparkle"]


def test_our_own_keys_work_in_another_programs_file() -> None:
    server = only(
        good({"mcpServers": {"a": {"command": "x", "sharing": "serial", "pool": {"max": 2}}}}, ".mcp.json")
    )
    assert (server.policy.sharing, server.policy.max_instances) == ("serial", 2)


@pytest.mark.parametrize(
    ("entry", "where", "what"),
    [
        ({"command": 5}, "mcpServers.bad.command", "must be text"),
        ({}, "mcpServers.bad", "has no command"),
        ({"command": "x", "timeout": "${T}"}, "mcpServers.bad.timeout", "milliseconds"),
        ({"command": "x", "enabled": "yes"}, "mcpServers.bad.enabled", "`enabled` must be true or false"),
        ({"command": "x", "args": "--x"}, "mcpServers.bad.args", "must be a list"),
        ({"command": "x", "max_reconnect_attempts": "3"}, "max_reconnect_attempts", "a whole number"),
        ({"type": "quantum", "command": "x"}, "mcpServers.bad.type", 'must be "stdio"'),
        ("npx", "mcpServers.bad", "must be an object"),
    ],
)
def test_a_server_that_cannot_be_read_harms_no_other(entry: Any, where: str, what: str) -> None:
    config = good({"mcpServers": {"good": {"command": "x"}, "bad": entry}}, ".mcp.json")
    assert list(config.servers) == ["good"]
    why = config.unusable[ServerName("bad")]
    assert where in why
    assert what in why


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("my server", "my-server"),
        ("io.github.upstash/context7", "io-github-upstash-context7"),
        ("@21st-dev/magic", "21st-dev-magic"),
        ("ui_", "ui"),
        ("a__b", "a_b"),
        ("搜索", "server"),
        ("x" * 50, "x" * 40),
    ],
)
def test_a_server_whose_name_cannot_be_one_here_goes_by_the_nearest_one(theirs: str, ours: str) -> None:
    loaded = load({"mcpServers": {theirs: {"command": "x"}, "ok": {"command": "x"}}}, ".mcp.json")
    assert loaded.config is not None
    server = loaded.config.servers[ServerName(ours)]
    assert (list(loaded.config.servers), server.under) == ([ours, "ok"], ("mcpServers", theirs))
    (warning,) = loaded.warnings
    assert warning.line == 3
    assert warning.text.endswith(f"Carpool calls it {ours}.")


def test_servers_that_fall_on_one_name_all_run_and_none_takes_the_name_of_another() -> None:
    names = ("my server", "my-server", "my.server")
    seen = []
    for each in (names, names[::-1]):
        loaded = load({"mcpServers": {name: {"command": name} for name in each}}, ".mcp.json")
        assert loaded.config is not None
        seen.append({server.command: name for name, server in loaded.config.servers.items()})
        assert len(loaded.warnings) == 2
        assert all("my-server would be another server of this" in said.text for said in loaded.warnings)
    assert seen[0] == seen[1], "in whatever order they stand"
    assert seen[0]["my-server"] == "my-server"
    assert len(set(seen[0].values())) == 3
    assert all(name.startswith("my-server") for name in seen[0].values())


def test_what_is_wrong_with_a_renamed_server_is_said_under_its_new_name() -> None:
    config = good({"mcpServers": {"my server": {"command": 5}, "ok": {"command": "x"}}}, ".mcp.json")
    assert 'mcpServers."my server".command: must be text' in config.unusable[ServerName("my-server")]


def test_a_file_of_ours_is_told_that_a_name_cannot_be_one() -> None:
    loaded = load({"servers": {"my server": {"command": "x"}}}, "carpool.json")
    assert "may hold only" in loaded.problems[0].text


@pytest.mark.parametrize(
    ("file", "entry", "transport"),
    [
        (".cursor/mcp.json", {"url": "https://x/mcp"}, None),
        (".gemini/settings.json", {"httpUrl": "https://x/mcp"}, "http"),
        (".gemini/settings.json", {"url": "https://y", "httpUrl": "https://x/mcp"}, "http"),
        (".gemini/settings.json", {"httpUrl": "https://x/mcp", "url": "https://y"}, "http"),
        ("cline_mcp_settings.json", {"type": "streamableHttp", "url": "https://x/mcp"}, "http"),
        (".roo/mcp.json", {"type": "streamable-http", "url": "https://x/mcp"}, "http"),
        (".mcp.json", {"type": "sse", "url": "https://x/mcp"}, "sse"),
    ],
)
def test_a_url_is_read_in_every_spelling(file: str, entry: dict[str, str], transport: str | None) -> None:
    loaded = load({"mcpServers": {"far": entry}}, file)
    assert loaded.config is not None
    assert loaded.warnings == []
    assert reached(only(loaded.config)) == (transport, "https://x/mcp", {})


def test_http_of_vs_code_may_be_either_transport() -> None:
    config = good({"servers": {"far": {"type": "http", "url": "https://x/mcp"}}}, ".vscode/mcp.json")
    assert reached(only(config)) == ("url", "https://x/mcp", {})


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"type": "ws", "url": "wss://x"}, "is a WebSocket, which carpool does not support"),
        (
            {"type": "http", "url": "https://x", "headersHelper": "x.sh"},
            "carpool does not support `headersHelper`",
        ),
        (
            {"httpUrl": "https://x", "authProviderType": "google_credentials"},
            "carpool does not support `authProviderType`",
        ),
        ({"command": "x", "url": "https://x"}, "a server has only one of `command` and `url`"),
        ({"url": "ftp://x"}, "must be a URL that begins with http:// or https://"),
        ({"type": "sse"}, "has no url"),
    ],
)
def test_a_url_that_cannot_be_reached_as_it_is_written_is_misconfigured(
    entry: dict[str, str], says: str
) -> None:
    config = good({"mcpServers": {"far": entry}}, ".mcp.json")
    assert says in config.unusable[ServerName("far")]


def test_oauth_of_other_programs_is_ours() -> None:
    said = {"CLIENT_ID": "me", "CLIENT_SECRET": "${SECRET}", "scopes": ["read"], "odd": 1}
    loaded = load({"mcpServers": {"far": {"url": "https://x", "auth": said}}}, ".cursor/mcp.json")
    assert loaded.config is not None
    server = only(loaded.config)
    assert (server.oauth_client_id, server.oauth_client_secret) == ("me", "${SECRET}")
    assert server.oauth_scopes == ("read",)
    assert [each.where for each in loaded.warnings] == ["mcpServers.far.auth.odd"]


def test_a_disabled_server_need_not_be_one_that_we_can_run() -> None:
    config = good({"mcpServers": {"far": {"url": "https://x", "disabled": True}}}, ".mcp.json")
    assert only(config).disabled
    assert config.unusable == {}


def test_a_file_of_ours_is_strict_whatever_its_shape() -> None:
    loaded = load(
        '{"servers": {\n"a": {"command": "x",\n"sparkle": 1}},\n"max_instances": 9}', "carpool.json"
    )
    assert [each.render() for each in loaded.problems] == [
        "carpool.json:3: servers.a.sparkle: unknown key; `carpool schema` has every key"
    ]
    config = good({"mcp": {"a": {"command": ["x", "y"]}}}, "carpool.json")
    assert told(only(config)) == ("x", ("y",), {})
    assert good({"servers": {}, "max_instances": 9}, "carpool.json").max_instances == 9


def test_servers_in_two_places_of_a_file_of_ours_are_refused() -> None:
    loaded = load({"mcpServers": {}, "servers": {}}, "carpool.json")
    assert [each.where for each in loaded.problems] == ["servers"]


@pytest.mark.parametrize(
    ("timeout", "timeout_s", "max_total_s"), [(500, 0.5, 1800.0), (7_200_000, 7200.0, 7200.0)]
)
def test_a_timeout_longer_than_any_call_may_take_raises_that_too(
    timeout: int, timeout_s: float, max_total_s: float
) -> None:
    policy = only(good({"mcpServers": {"a": {"command": "x", "timeout": timeout}}}, ".mcp.json")).policy
    assert (policy.timeout_s, policy.max_total_s) == (timeout_s, max_total_s)


def test_a_timeout_whose_unit_nobody_documents_is_not_guessed() -> None:
    loaded = load({"mcpServers": {"a": {"command": "x", "timeout": 60}}}, ".cursor/mcp.json")
    assert loaded.config is not None
    assert only(loaded.config).policy.timeout_s == 60.0
    assert "its unit is not known" in loaded.warnings[0].text


def test_settings_of_a_program_without_servers_are_no_problem() -> None:
    assert good({"theme": "dark"}, "opencode.json").servers == {}
    assert good({}, ".mcp.json").servers == {}


def test_every_program_has_its_own_path_and_every_way_leads_to_a_setting() -> None:
    assert len({each.path for each in PROGRAMS}) == len(PROGRAMS)
    assert program_of("/h/.carpool/mcp.json") is None
    keys = {key for each in SERVER_SETTINGS for key in (each.key, each.key.partition(".")[0])}
    assert {way.key for shape in SHAPES for way in shape.mappings.values()} - {""} <= keys


WORDS = st.sampled_from(
    [
        *("mcpServers", "servers", "mcp", "name", "a", "b", "local", "stdio", "remote", "${X}", "{env:X}"),
        *{key for shape in SHAPES for key in shape.mappings},
        *{step for each in SERVER_SETTINGS for step in each.key.split(".")},
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=30,
)
ENTRY = st.dictionaries(WORDS, ANYTHING, max_size=6)


@settings(deadline=None, max_examples=300)
@given(
    ANYTHING
    | st.lists(ENTRY, max_size=3)
    | st.dictionaries(
        st.sampled_from(["mcpServers", "servers", "mcp"]),
        st.dictionaries(WORDS, ENTRY, max_size=3) | st.lists(ENTRY, max_size=3),
        max_size=2,
    ),
    st.sampled_from(["carpool.json", *(each.path for each in PROGRAMS)]),
    st.booleans(),
)
def test_no_json_value_in_any_file_makes_the_reader_raise(value: Any, file: str, project: bool) -> None:
    loaded = read_config(json.dumps(value), file, project=project)
    assert (loaded.config is None) == bool(loaded.problems)
    assert shape_of(value) is None or shape_of(value) in SHAPES
    if loaded.config is not None:
        assert not loaded.config.servers.keys() & loaded.config.unusable.keys()
        assert all(server.lines[()] >= 1 for server in loaded.config.servers.values())


def test_the_repr_of_a_reading_shows_nothing_of_what_is_written() -> None:
    loaded = load({"mcpServers": {"a": {"command": "x", "env": {"A": "hunter2"}}}}, "carpool.json")
    assert loaded.written
    assert "hunter2" not in repr(loaded)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "carpool", "args": ["connect"]},
        {"command": "/opt/venv/bin/carpool", "args": ["connect", "--profile", "x"]},
        {"command": "carpool", "args": ["run", "--", "npx", "a"]},
        {"type": "local", "command": ["carpool", "connect"]},
        {"command": "/usr/bin/python3", "args": ["-m", "carpool", "connect"]},
        {"command": "/usr/bin/python3", "args": ["-P", "-m", "carpool", "connect"]},
    ],
)
def test_carpool_itself_is_no_server_of_another_program_s_file(entry: dict[str, Any]) -> None:
    assert is_own_entry(entry)
    config = good({"mcpServers": {"carpool": entry, "a": {"command": "x"}}}, ".mcp.json")
    assert list(config.servers) == ["a"]
    assert config.unusable == {}


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "carpool", "args": ["status"]},
        {"command": "carpool"},
        {"command": "npx", "args": ["connect"]},
        {"url": "https://h"},
        {"command": "npx", "args": ["-m", "carpool", "x"]},
        None,
    ],
)
def test_what_only_looks_like_carpool_is_a_server(entry: Any) -> None:
    assert not is_own_entry(entry)


@behaviour("config:shapes")
@pytest.mark.parametrize("file", [each.path for each in PROGRAMS if not each.path.startswith("opencode")])
def test_null_means_that_a_key_is_not_set(file: str) -> None:
    unset = dict.fromkeys(
        ("url", "headers", "cwd", "env", "type", "timeout", "disabled", "args", "oauth", "tags")
    )
    if "mcp.json" in file and ".vscode" in file:
        text: object = {"servers": {"s": {**unset, "command": "x"}}}
    else:
        text = {"mcpServers": {"s": {**unset, "command": "x"}}}
    loaded = load(text, file)
    assert loaded.config is not None, loaded.problems
    assert told(only(loaded.config)) == ("x", (), {})
    assert loaded.warnings == []
    assert loaded.config.unusable == {}


@behaviour("config:shapes")
@pytest.mark.parametrize("file", [".mcp.json", "mcp.json", "settings.json", "servers.d/x.json"])
@pytest.mark.parametrize("key", ["mcpServers", "servers"])
def test_null_is_a_key_that_is_not_set_in_every_file_but_our_own(file: str, key: str) -> None:
    server = {"command": "x", "url": None, "env": {"A": None}, "pool": {"max": None}}
    text = {key: {"s": server, "gone": None}, "inputs": None, "$schema": None}
    loaded = load(text, file)
    assert loaded.config is not None, loaded.problems
    assert told(only(loaded.config)) == ("x", (), {})
    assert (loaded.warnings, loaded.config.unusable) == ([], {})
    nothing = load({key: None}, file).config
    assert (nothing is not None, nothing and nothing.servers) == (True, {})
    strict = load({"mcpServers": {"s": server}}, "carpool.json")
    assert [each.where for each in strict.problems][:1] == ["mcpServers.s.url"]
    assert load({"mcpServers": None}, "carpool.json").config is None
    unknown = {"mcpServers": {"s": {"command": "x", "comand": "y"}}}
    assert load(unknown, "settings.json").config is None, "a key that nobody knows is a mistake"


@behaviour("config:shapes")
@pytest.mark.parametrize("file", [".mcp.json", "servers.json"])
def test_of_a_key_written_twice_the_last_one_counts_as_in_every_json_reader(file: str) -> None:
    text = """{"mcpServers": {
  "a": {"command": "first", "args": ["1"]},
  "b": {"command": "b",
        "command": "c"},
  "a": {"command": "last"}
}}"""
    loaded = load(text, file)
    assert loaded.config is not None, loaded.problems
    assert {name: told(each) for name, each in loaded.config.servers.items()} == {
        "a": ("last", (), {}),
        "b": ("c", (), {}),
    }
    assert [each.render() for each in loaded.warnings] == [
        f"{file}:4: mcpServers.b.command: written twice, also on line 3; keep one; this one counts",
        f"{file}:5: mcpServers.a: written twice, also on line 2; keep one; this one counts",
    ]
    assert load(text, "carpool.json").config is None
