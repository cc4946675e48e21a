"""The table of settings, the values made by it, and what is told back: they say the same."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, structs

from carpool_protocol.config.pages.describe import MASK, SettingRow, describe, value_of
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config, ServerConfig, variables
from carpool_protocol.config.schema.server_kinds import ONLY_WITH, SERVER_KINDS
from carpool_protocol.config.schema.settings import FILE_SETTINGS, SERVER_SETTINGS, Setting
from carpool_protocol.ids import ServerName
from carpool_protocol.link.messages import Policy
from tests.behaviours import behaviour

GIT = ServerName("git")


def good(text: str) -> Config:
    loaded = read_config(text, "f")
    assert [problem.render() for problem in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config


# --- the table and the values hold together ----------------------------------------------------------------


def test_every_field_of_the_policy_is_a_setting_with_the_same_default() -> None:
    of_policy = {
        each.field.removeprefix("policy."): each
        for each in SERVER_SETTINGS
        if each.field.startswith("policy.")
    }
    assert of_policy.keys() == {field.name for field in structs.fields(Policy)}
    for name, setting in of_policy.items():
        default: Any = {} if setting.kind.endswith("map") else setting.default
        assert getattr(Policy(), name) == default
    assert good('{"mcpServers": {"git": {"command": "x"}}}').servers[GIT].policy == Policy()


def test_every_setting_has_a_sentence_and_a_duration_or_size_names_its_unit() -> None:
    for setting in (*FILE_SETTINGS, *SERVER_SETTINGS):
        assert setting.text.endswith(".")
        assert setting.key.endswith("_s") == (setting.unit == "s")
        assert setting.key.endswith("_bytes") == (setting.unit == "bytes")
        assert setting.unit or setting.kind not in {"count", "seconds", "seconds map"}


def test_every_default_of_the_table_is_a_value_the_reader_accepts() -> None:
    document: dict[str, Any] = {"mcpServers": {"git": {"command": "x"}}}
    for setting in FILE_SETTINGS:
        put(document, setting, setting.default)
    for setting in SERVER_SETTINGS:
        if ONLY_WITH.get(setting.key.partition(".")[0], "command") == "command":
            put(document["mcpServers"]["git"], setting, setting.default)
    written = good(json.dumps(document))
    default = good(json.dumps({"mcpServers": {"git": {"command": "x"}}}))
    assert structs.replace(written, lines={}, servers={}) == structs.replace(default, lines={}, servers={})
    assert structs.replace(written.servers[GIT], lines={}) == structs.replace(default.servers[GIT], lines={})


def put(section: dict[str, Any], setting: Setting, value: Any) -> None:
    if value is None or value is UNSET:
        return
    *groups, key = setting.key.split(".")
    for group in groups:
        section = section.setdefault(group, {})
    section[key] = list(value) if isinstance(value, tuple) else value


# --- any valid configuration survives --------------------------------------------------------------------

WORD = st.text(alphabet="abcxyz019_-", min_size=1, max_size=8)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0$"), min_size=1).filter(
    str.strip
)
SECONDS = st.integers(1, 10**6) | st.floats(0.001, 10**6)


KEEPING_ORDER: dict[str, st.SearchStrategy[Any]] = {
    "pool.min": st.just(0),
    "restart.first_delay_s": st.just(0),
    "restart.max_delay_s": st.integers(1, 100),
    "cluster.url": st.just("nats://h:4222"),
    "cluster.node": st.just("alpha-2"),
    "cluster.cluster_name": st.just("carpool"),
    "cluster.peers": st.just(["beta ipc:///run/beta.sock"]),
    "cluster.labels": st.just(["gpu"]),
    "cluster.drain_by": st.just(["beta"]),
    "on": st.just(["gpu", "!host:alpha"]),
    "node": st.just("alpha"),
    "trace.endpoint": st.just("https://e.example:4318"),
    "http.path": WORD.map("/{}".format),
    "timeout_s": st.floats(0.5, 1.0),
    "tool_timeouts_s": st.dictionaries(TEXT, st.floats(0.5, 1.0), max_size=3),
}
"""Settings that must not be above or below another one, or have a shape of their own."""


def valid(setting: Setting) -> st.SearchStrategy[Any]:  # noqa: C901 - one arm for each kind
    """A valid value of one setting, also beside any other valid one."""
    if setting.choices:
        return st.sampled_from(setting.choices)
    if setting.key in KEEPING_ORDER:
        return KEEPING_ORDER[setting.key]
    if setting.check is not None:
        return st.lists(WORD, max_size=2) if setting.kind == "texts" else WORD
    match setting.kind:
        case "switch":
            return st.booleans()
        case "count":
            return st.integers(int(setting.low), int(setting.high))
        case "seconds":
            return SECONDS
        case "fraction":
            return st.floats(0, 1)
        case "text" | "template" | "secret":
            return TEXT
        case "url":
            return st.sampled_from(["https://e.example/mcp", "http://[::1]:9/x?y#z", "${URL}"])
        case "header map":
            return st.dictionaries(st.from_regex(r"x-[a-z]{1,8}", fullmatch=True), TEXT, max_size=3)
        case "texts" | "templates":
            return st.lists(TEXT, max_size=3)
        case "template map":
            return st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), TEXT, max_size=3)
        case "seconds map":
            return st.dictionaries(TEXT, SECONDS, max_size=3)
        case "token map":
            hashes = st.binary(min_size=32, max_size=32).map(lambda each: f"sha256:{each.hex()}")
            tokens = st.one_of(hashes, hashes.map(lambda each: {"hash": each}))
            return st.dictionaries(WORD, tokens, max_size=3)


def section(table: tuple[Setting, ...]) -> st.SearchStrategy[dict[str, Any]]:
    required = {each.key: valid(each) for each in table if each.default is UNSET}
    optional = {
        each.key: valid(each) for each in table if each.default is not UNSET and each.key != "max_total_s"
    }
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def a_server(draw: st.DrawFn) -> dict[str, Any]:
    """Of one kind, with keys that go with it."""
    way = draw(st.sampled_from(sorted(SERVER_KINDS)))
    found = draw(section(SERVER_SETTINGS))
    kept = {
        key: value
        for key, value in found.items()
        if key not in SERVER_KINDS and ONLY_WITH.get(key.partition(".")[0], way) == way
    }
    if way in {"url", "node"}:
        kept.pop("cwd", None)
    if way == "node":
        kept = {key: value for key, value in kept.items() if key not in {"env", "on", "roots"}}
    if (kept.get("transport", "stdio") == "stdio") == (way == "url"):
        kept.pop("transport", None)
    return {**kept, way: draw(valid(next(each for each in SERVER_SETTINGS if each.key == way)))}


NAMES = st.from_regex(r"[A-Za-z0-9-]{1,6}(_[A-Za-z0-9-]{1,6}){0,2}", fullmatch=True)


@settings(deadline=None, max_examples=60)
@given(section(FILE_SETTINGS), st.dictionaries(NAMES, a_server(), max_size=3))
def test_any_valid_configuration_keeps_every_value_that_was_written(
    file: dict[str, Any], servers: dict[str, dict[str, Any]]
) -> None:
    document: dict[str, Any] = {"mcpServers": {name: {} for name in servers}, "profiles": {"guest": {}}}
    if file.get("cluster.profile"):
        file = {**file, "cluster.profile": "guest"}  # it must be one that there is
    for setting in FILE_SETTINGS:
        put(document, setting, file.get(setting.key))
    for name, written in servers.items():
        for setting in SERVER_SETTINGS:
            put(document["mcpServers"][name], setting, written.get(setting.key))
    config = good(json.dumps(document, indent=1))
    assert list(config.servers) == list(servers)
    assert_kept(config, FILE_SETTINGS, file)
    for name, written in servers.items():
        assert_kept(config.servers[ServerName(name)], SERVER_SETTINGS, written)
    assert describe(config)


def assert_kept(owner: Config | ServerConfig, table: tuple[Setting, ...], written: dict[str, Any]) -> None:
    for setting in table:
        default: Any = {} if setting.kind.endswith("map") else setting.default
        expected = written.get(setting.key, default)
        kept = value_of(owner, setting)
        if setting.kind == "token map":
            expected = {n: each if isinstance(each, str) else each["hash"] for n, each in expected.items()}
            kept = {name: token.hash for name, token in kept.items()}
        assert kept == (tuple(expected) if isinstance(expected, list) else expected), setting.key


# --- told back -------------------------------------------------------------------------------------------


def test_variables_are_exactly_those_of_enabled_servers() -> None:
    servers = {
        "a": {
            "command": "${BIN}/x",
            "args": ["${A}", "$${NOT}", "$NEITHER"],
            "env": {"T": "b ${B:-c}"},
        },
        "b": {"command": "x", "cwd": "${workspace}/${D}", "tags": ["${NO}"]},
        "c": {"command": "${OFF}", "disabled": True},
    }
    assert variables(good(json.dumps({"mcpServers": servers}))) == {"BIN", "A", "B", "D"}


def test_describe_tells_every_setting_and_where_it_comes_from_and_masks_env() -> None:
    config = good("""{ "max_instances": 9,
      "mcpServers": {"git": {
        "command": "x",
        "type": "stdio",
        "env": {
          "T": "hunter2"},
        "pool": {"max": 2}}}}""")
    rows = describe(config)
    assert len(rows) == len(FILE_SETTINGS) + len(SERVER_SETTINGS)
    by_setting = {row.setting: row for row in rows}
    assert by_setting["max_instances"] == SettingRow("max_instances", "9", "instances", "f:1")
    assert by_setting["list_wait_s"] == SettingRow("list_wait_s", "10.0", "s", "default")
    assert by_setting["mcpServers.git.env.T"] == SettingRow("mcpServers.git.env.T", MASK, "", "f:6")
    assert by_setting["mcpServers.git.pool.max"].origin == "f:7"
    assert by_setting["mcpServers.git.transport"].origin == "f:4"
    assert by_setting["mcpServers.git.tools_prefix"].value == "—"
    assert "hunter2" not in repr(rows)
    assert "hunter2" not in repr(config)


@behaviour("private:no-secret-is-told")
@pytest.mark.parametrize(
    "word",
    ["hunter2", "--key=hunter2", "-phunter2", "postgres://u:hunter2@h/d", "${A:-hunter2}", "--hunter2"],
)
def test_an_argument_that_may_hold_a_secret_is_masked_like_env(word: str) -> None:
    args = ["-y", "--api-key", "${KEY}", word]
    config = good(json.dumps({"mcpServers": {"git": {"command": "x", "args": args}}}))
    [row] = [row for row in describe(config) if row.setting == "mcpServers.git.args"]
    assert json.loads(row.value) == ["-y", "--api-key", "${KEY}", MASK]


def test_the_password_in_the_url_of_a_cluster_is_not_shown() -> None:
    config = good('{"cluster": {"url": "nats://user:hunter2@nats.example:4222"}}')
    [row] = [row for row in describe(config) if row.setting == "cluster.url"]
    assert "hunter2" not in row.value
    assert "nats.example:4222" in row.value
