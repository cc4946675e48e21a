"""The `mcpServers` shape: what is accepted, what is refused and in which words; nothing is lost."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_protocol.config.reading.parse import (
    MAX_PROBLEMS,
    MAX_PROJECT_SERVERS,
    empty_config,
    read_config,
)
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS
from carpool_protocol.config.text.problems import did_you_mean
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import Policy
from carpool_protocol.wire.tool_name_resolver import check_server_name

GIT = ServerName("git")


def good(text: str) -> Config:
    loaded = read_config(text, "f")
    assert [problem.render() for problem in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config


def bad(text: str) -> list[str]:
    loaded = read_config(text, "carpool.json")
    assert loaded.config is None
    assert loaded.problems
    return [problem.render() for problem in loaded.problems]


def server(**keys: Any) -> str:
    """A file with one server, on line 1."""
    return json.dumps({"mcpServers": {"git": {"command": "git-server", **keys}}})


NO_TEMPLATE = (
    "a ${ is not closed or holds no name; write ${VAR} or ${VAR:-default} (to write ${ itself, write $${)"
)


def bad_server(**keys: Any) -> list[str]:
    return [line.removeprefix("carpool.json:1: mcpServers.git.") for line in bad(server(**keys))]


# --- what is accepted ------------------------------------------------------------------------------------


def test_the_shape_other_programs_write_is_read_as_it_is() -> None:
    text = """{ "$schema": "https://x/y.json", "mcpServers": {
        "time": { "type": "stdio", "command": "uvx", "args": ["mcp-server-time"],
                  "env": { "TZ": "${TZ:-UTC}" } },
        "git-2": { "transport": "stdio", "command": "git-server", "disabled": true },
    } }"""
    config = good(text)
    assert list(config.servers) == ["time", "git-2"]
    time = config.servers[ServerName("time")]
    assert (time.command, time.args, time.env) == ("uvx", ("mcp-server-time",), {"TZ": "${TZ:-UTC}"})
    assert time.policy == Policy()
    assert config.servers[ServerName("git-2")].disabled


def test_an_empty_object_is_a_configuration_with_every_default() -> None:
    config = good("{}")
    assert config == empty_config("f")
    assert config.servers == {}
    assert (config.max_instances, config.separator, config.session.max_open_calls) == (64, "__", 64)


def test_settings_of_a_server_arrive_in_its_policy() -> None:
    config = good(
        server(
            pool={"min": 1, "max": 4, "idle_s": 5},
            timeout_s=2,
            tool_timeouts_s={"index": 600},
            restart={"give_up_after": 2, "max_delay_s": 9},
            stderr_in_errors=True,
            auto_connect=True,
        )
    )
    assert config.servers[GIT].policy == Policy(
        min_instances=1,
        max_instances=4,
        idle_s=5.0,
        timeout_s=2.0,
        tool_timeouts_s={"index": 600.0},
        give_up_after=2,
        max_delay_s=9.0,
        stderr_in_errors=True,
        auto_connect=True,
    )


@settings(deadline=None, max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.text(max_size=5)
                | st.sampled_from(
                    ["mcpServers", "git", *(key for each in SERVER_SETTINGS for key in each.key.split("."))]
                )
                | st.sampled_from([each.key for each in FILE_SETTINGS]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=30,
    )
)
def test_no_json_value_makes_the_reader_raise(value: Any) -> None:
    for document in (value, {"mcpServers": value}, {"mcpServers": {"git": value}}):
        loaded = read_config(json.dumps(document), "f")
        assert (loaded.config is None) == bool(loaded.problems)


# --- what is refused -------------------------------------------------------------------------------------


def test_an_unknown_key_is_an_error_with_path_line_and_a_guess() -> None:
    text = """{
      "mcpServers": {
        "git": {
          "command": "x",
          "pool": {
            "maxx": 3 },
          "stop_s": 3,
          "idle_s": 4,
          "disabledd": true } },
      "seperator": "_" }"""
    assert bad(text) == [
        "carpool.json:6: mcpServers.git.pool.maxx: unknown key; did you mean `max`?",
        "carpool.json:7: mcpServers.git.stop_s: unknown key; `carpool schema` has every key",
        "carpool.json:8: mcpServers.git.idle_s: unknown key; did you mean `pool.idle_s`?",
        "carpool.json:9: mcpServers.git.disabledd: unknown key; did you mean `disabled`?",
        "carpool.json:10: seperator: unknown key; did you mean `separator`?",
    ]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("autoConnect", "auto_connect"),
        ("idle_s", "pool.idle_s"),
        ("max_delay_s", "restart.max_delay_s"),
        ("tool_timeout_s", "tool_timeouts_s"),
        ("MAXINFLIGHT", "max_in_flight"),
        ("arguments", "args"),
        ("zzz", ""),
        ("x" * 100_000, ""),
    ],
)
def test_the_guess_knows_how_people_misremember(wrong: str, meant: str) -> None:
    assert did_you_mean(wrong, [each.key for each in SERVER_SETTINGS]) == meant


def test_all_mistakes_of_a_file_are_told_at_once_in_the_order_of_lines() -> None:
    text = """{
      "mcpServers": {
        "a__b": { "command": "x" },
        "git": { "command": 5, "args": "one", "timeout_s": "60" },
        "time": { "command": "x", "pool": {"min": true} },
        "time": { "command": "x" },
        "none": {} },
      "max_instances": 0
    }"""
    assert [line.rstrip(".") for line in bad(text)] == [
        "carpool.json:3: mcpServers.a__b: " + str(check_server_name("a__b")).rstrip("."),
        "carpool.json:4: mcpServers.git.command: must be text, found a number (write it in double quotes)",
        "carpool.json:4: mcpServers.git.args: must be a list of texts, found text (write it in [ ])",
        "carpool.json:4: mcpServers.git.timeout_s: must be a number of seconds, found text (write it "
        "without quotes)",
        "carpool.json:6: mcpServers.time: written twice, also on line 5; keep one",
        'carpool.json:7: mcpServers.none: has no command: write "command": "…", the program to run',
        "carpool.json:8: max_instances: must be from 1 to 4096 instances",
    ]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            {"command": ["npx", "-y"]},
            "command: must be text, found a list (the program is `command`, the rest goes into `args`)",
        ),
        ({"command": " "}, "command: is empty"),
        ({"command": "a\0b"}, "command: holds a NUL character, which no process can receive"),
        ({"args": ["--port", 8080]}, "args[1]: must be text, found a number (write it in double quotes)"),
        ({"args": "--x"}, "args: must be a list of texts, found text (write it in [ ])"),
        ({"env": {"A": None}}, "env.A: must be text, found null (leave the key out instead)"),
        (
            {"env": {"A=B": "c"}},
            'env."A=B": is not the name of an environment variable (letters, digits and _, no digit first)',
        ),
        ({"env": {"A": "${B"}}, f"env.A: {NO_TEMPLATE}"),
        ({"disabled": "true"}, "disabled: must be true or false (without quotes), found text"),
        ({"disabled": 1}, "disabled: must be true or false, found a number"),
        ({"timeout_s": "60"}, "timeout_s: must be a number of seconds, found text (write it without quotes)"),
        ({"timeout_s": True}, "timeout_s: must be a number of seconds, found true or false"),
        ({"timeout_s": 0}, "timeout_s: must be above 0 s and at most 1000000000 s"),
        ({"tool_timeouts_s": {"a": -1}}, "tool_timeouts_s.a: must be above 0 s and at most 1000000000 s"),
        ({"pool": 3}, "pool: must be an object, found a number"),
        ({"pool": {"max": 2.5}}, "pool.max: must be a whole number, found a number"),
        ({"pool": {"max": True}}, "pool.max: must be a whole number, found true or false"),
        (
            {"pool": {"min": 3, "max": 2}},
            "pool.min: pool.min (3) is above pool.max (2); lower one or raise the other",
        ),
        ({"pool.min": 1}, '"pool.min": write it as "pool": { "min": … }'),
        (
            {"timeout_s": 3600},
            "timeout_s: timeout_s (3600) is above max_total_s (1800); lower one or raise the other",
        ),
        (
            {"tool_timeouts_s": {"a": 1900}},
            "tool_timeouts_s.a: is above max_total_s (1800), which would end the call first; raise that too",
        ),
        (
            {"sharing": "concurent"},
            'sharing: must be "auto" or "concurrent" or "serial" or "session"; did you mean "concurrent"?',
        ),
        ({"roots": "workspaces"}, 'roots: must be "workspace" or "agent"; did you mean "workspace"?'),
        ({"roots": ["/a"]}, "roots: must be text, found a list"),
        (
            {"type": "ws"},
            'type: "ws" is not supported yet; use "stdio" or "http" or "sse" or "url"',
        ),
        (
            {"era": "mdoern"},
            'era: must be "auto" or "legacy" or "modern" or "match"; did you mean "modern"?',
        ),
        ({"transport": "sse"}, 'transport: must be "stdio": this server is a command'),
        ({"serverUrl": "https://x/mcp"}, "serverUrl: the key is called `url` here"),
        ({"timeout": 60000}, "timeout: the key is called `timeout_s` here, in seconds"),
        ({"limits": {"rss_mb": -1}}, "limits.rss_mb: must be from 0 to 1000000 MiB"),
        ({"limits": {"rss": 1}}, "limits.rss: unknown key; did you mean `rss_mb`?"),
    ],
)
def test_a_wrong_value_is_told_where_and_what_to_write(keys: dict[str, Any], problem: str) -> None:
    assert bad_server(**keys) == [problem]


def test_a_pool_that_grows_as_its_mode_needs_may_have_any_least_size() -> None:
    config = good('{"mcpServers": {"s": {"command": "x", "pool": {"min": 3}}}}')
    (server,) = config.servers.values()
    assert (server.policy.min_instances, server.policy.max_instances) == (3, 0)


def test_a_transport_without_a_url_is_refused_with_one_sentence_and_not_asked_for_a_command() -> None:
    problems = bad('{"mcpServers": {"s": {"type": "http"}}}')
    assert problems == [
        'carpool.json:1: mcpServers.s: has no url: write "url": "https://…", where the server is'
    ]


def test_values_never_appear_in_problems() -> None:
    secret = "hunter2-hunter2"
    for keys in (
        {"env": {"A": f"${{{secret}"}},
        {"env": secret},
        {"env": {"A": [secret]}},
        {"args": {"a": secret}},
    ):
        assert not any(secret in line for line in bad_server(**keys))


def test_the_process_cap_must_hold_what_always_runs() -> None:
    text = """{ "mcpServers": {
      "a": {"command": "x", "pool": {"min": 2, "max": 2}},
      "b": {"command": "x", "pool": {"min": 2, "max": 2} %s}},
      "max_instances": 3 }"""
    (problem,) = bad(text % "")
    assert problem.startswith(
        "carpool.json:4: max_instances: the servers' pool.min add up to 4 instances, but max_instances is 3;"
    )
    assert good(text % ', "disabled": true').max_instances == 3


def test_a_file_full_of_nonsense_gives_a_bounded_answer() -> None:
    loaded = read_config(json.dumps({f"k{at}": 0 for at in range(5000)}), "f")
    assert len(loaded.problems) == MAX_PROBLEMS + 1
    assert loaded.problems[-1].text == f"and {5000 - MAX_PROBLEMS} more problems"
    theirs = read_config(
        json.dumps({"mcpServers": {}, **{f"k{at}": 0 for at in range(5000)}}), "/p/.mcp.json"
    )
    assert (theirs.problems, len(theirs.warnings)) == ([], MAX_PROBLEMS + 1)
    assert theirs.warnings[-1].text == f"and {5000 - MAX_PROBLEMS} more warnings"
    many = json.dumps({"mcpServers": {f"a{at}": {} for at in range(MAX_PROJECT_SERVERS + 1)}})
    (found,) = read_config(many, "/p/.mcp.json", project=True).problems
    assert found.text == f"a project may have {MAX_PROJECT_SERVERS} servers, found {MAX_PROJECT_SERVERS + 1}"


@pytest.mark.parametrize(
    "text", ["[3]", "3", '"x"', "null", '{"mcpServers": []}', '{"mcpServers": {"a": 3}}']
)
def test_a_file_of_another_shape_is_refused(text: str) -> None:
    assert "must be an object" in bad(text)[0]


@pytest.mark.parametrize("key", ["autoApprove", "alwaysAllow", "trust", "gallery"])
def test_a_key_of_another_program_in_an_own_file_is_ignored_with_one_warning(key: str) -> None:
    servers = {name: {"command": "git", key: []} for name in ("git", "hg")}
    shop = {"root": "/shop", "mcpServers": {"till": {"command": "till", key: []}}}
    loaded = read_config(json.dumps({"mcpServers": servers, "workspaces": {"shop": shop}}), "carpool.json")
    assert loaded.problems == []
    assert loaded.config is not None
    assert loaded.config.servers.keys() == {"git", "hg"}
    (warning,) = loaded.warnings
    assert f"{key} concerns another program, and carpool ignores it" in warning.render()


def test_a_key_of_another_program_is_unknown_in_an_object_of_a_server() -> None:
    loaded = read_config('{"mcpServers": {"git": {"command": "git", "pool": {"trust": 1}}}}', "carpool.json")
    (problem,) = loaded.problems
    assert "unknown key" in problem.text
