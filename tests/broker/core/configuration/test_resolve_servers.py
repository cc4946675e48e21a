"""What a session's configuration comes to: who shares an instance with whom, and who must not."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from carpool_broker.core.configuration.launches import pool_key, run_name
from carpool_broker.core.configuration.resolve_servers import Resolution, resolve, resolve_run
from carpool_broker.core.model.scope import ScopeEntry
from carpool_protocol.carrier.attach_line import RunCommand
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config
from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Policy, Root
from carpool_protocol.wire.tool_name_resolver import check_server_name
from tests.behaviours import behaviour

BASE = {"PATH": "/bin", "HOME": "/h"}
A, B = ServerName("a"), ServerName("b")


def config_of(servers: dict[str, Any], **more: Any) -> Config:
    loaded = read_config(json.dumps({"mcpServers": servers, **more}), "f.json")
    assert loaded.problems == []
    assert loaded.config is not None
    return loaded.config


def seen(
    config: Config,
    environment: dict[str, str] | None = None,
    *,
    env_file: dict[str, str] | None = None,
    workspace: str = "/w",
    cwd: str = "/w/deep",
    secret: bytes = b"secret",
    roots: tuple[Root, ...] | None = None,
    base: dict[str, str] = BASE,
) -> Resolution:
    return resolve(
        config,
        environment=environment or {},
        base_environment=base,
        env_file=env_file or {},
        workspace=workspace,
        cwd=cwd,
        home="/h",
        secret=secret,
        roots=roots,
        interpreter="/usr/bin/python3",
    )


def key_of(server: dict[str, Any], environment: dict[str, str] | None = None, **more: Any) -> PoolKey:
    (spec,) = seen(config_of({"a": server}), environment, **more).specs
    return spec.key


@behaviour("lists:any-starter")
@pytest.mark.parametrize("server", [{"command": "x", "env": {"T": "t"}}, {"url": "http://far.example/mcp"}])
def test_the_environment_that_carpool_was_started_with_is_no_part_of_the_key(server: dict[str, Any]) -> None:
    config = config_of({"a": server})
    found = [seen(config, base={"HOME": "/h", **more}) for more in ({}, {"LANG": "de_DE.UTF-8"})]
    assert [each.specs[0].env.get("LANG") for each in found] == [None, "de_DE.UTF-8"]
    first, second = ({*each.twins, *each.stateless, each.specs[0].key} for each in found)
    assert first == second


def test_a_variable_of_the_servers_own_entry_is_part_of_the_key() -> None:
    keys = [
        key_of({"command": "x", "env": env}) for env in ({}, {"LANG": "C"}, {"LANG": "${L:-x}"}, {"L": "C"})
    ]
    assert len({*keys, key_of({"command": "x", "env": {"LANG": "${L:-x}"}}, {"L": "D"})}) == 5


def test_sessions_whose_variables_decide_other_limits_do_not_share() -> None:
    """Else the environment of one agent would set the limits of another."""
    late = {"command": "x", "timeout_s": "${T:-60}", "stderr_in_errors": "${SHOW:-false}"}
    plain = key_of({"command": "x"})
    assert plain == key_of({"command": "x", "timeout_s": 5}) == key_of(late)
    keys = [key_of(late, each) for each in ({"T": "5"}, {"T": "6"}, {"SHOW": "true"})]
    assert len({plain, *keys}) == 4
    assert key_of(late, {"T": "5"}) == key_of(late, {"T": "5.0", "SHOW": "0"}) == keys[0]
    assert key_of({**late, "description_prefix": "${D}"}, {"D": "true"}) == plain


# --- what is run -----------------------------------------------------------------------------------------


def test_a_server_becomes_a_spec_with_the_scrubbed_environment_and_its_own() -> None:
    config = config_of(
        {"a": {"command": "~/bin/x", "args": ["--dir=${workspace}", "${N:-3}"], "env": {"T": "t-${T}"}}}
    )
    (spec,) = seen(config, {"T": "1", "UNUSED": "2"}).specs
    assert spec.argv == ["/h/bin/x", "--dir=/w", "3"]
    assert spec.env == {"PATH": "/bin", "HOME": "/h", "T": "t-1"}
    assert (spec.server, spec.cwd, spec.policy) == ("a", "/h", Policy())


@pytest.mark.parametrize(
    ("cwd", "becomes"),
    [
        ("${workspace}", "/w"), ("${cwd}/", "/w/deep"), ("~", "/h"), ("~/p", "/h/p"), ("p//q/", "/h/p/q"),
        ("/x/../y", "/x/../y"), ("${E:-}", "/h"),
    ],
)  # fmt: skip
def test_the_directory_of_a_server(cwd: str, becomes: str) -> None:
    (spec,) = seen(config_of({"a": {"command": "x", "cwd": cwd}})).specs
    assert spec.cwd == becomes


def test_the_environment_of_a_server_wins_over_the_daemons_and_the_sessions_value_over_the_env_file() -> None:
    config = config_of({"a": {"command": "x", "env": {"PATH": "/p", "S": "${S}", "F": "${F}"}}})
    (spec,) = seen(config, {"S": "session"}, env_file={"S": "file", "F": "file"}).specs
    assert spec.env == {"PATH": "/p", "HOME": "/h", "S": "session", "F": "file"}


def test_every_server_is_served_misconfigured_or_disabled_and_one_does_not_touch_another() -> None:
    config = config_of(
        {
            "a": {"command": "x", "env": {"T": "${TOKEN} hunter2"}, "args": ["${OTHER}"]},
            "b": {"command": "x", "tags": ["t"], "tools_prefix": "", "description_prefix": True},
            "c": {"command": "${TOKEN}", "disabled": True},
        },
        description_prefix=False,
    )
    found = seen(config)
    assert found.disabled == ["c"]
    assert [spec.server for spec in found.specs] == [entry.server for entry in found.entries] == ["b"]
    assert found.entries[0] == ScopeEntry(
        server=B, key=found.specs[0].key, prefix="", description_prefix=True,
        tools_allow=("*",), tools_deny=(), tags=("t",),
    )  # fmt: skip
    assert found.misconfigured.keys() == {"a"}
    why = found.misconfigured[A]
    assert "f.json:1: mcpServers.a.env.T: the environment variable TOKEN is not set" in why
    assert "f.json:1: mcpServers.a.args[0]: the environment variable OTHER is not set" in why
    assert "hunter2" not in why


def test_a_server_that_lacks_session_values_is_told_apart_from_a_wrong_one() -> None:
    config = config_of(
        {
            "a": {"command": "x", "env": {"T": "${TOKEN}"}, "cwd": "${workspace}"},
            "b": {"command": "x", "env": {"T": "${TOKEN}", "B": "${BAD}"}},
            "c": {"command": "${X:- }"},
            "d": {"command": "x", "timeout_s": "${TOKEN}"},
            "e": {"command": "x", "timeout_s": "${WORD}"},
        }
    )
    found = seen(config, workspace="", environment={"BAD": "\0", "WORD": "soon"})
    assert found.misconfigured.keys() == {"a", "b", "c", "d", "e"}
    assert found.unset == {"a", "d"}


@pytest.mark.parametrize(
    ("server", "session", "words"),
    [
        ({"command": "x", "cwd": "${workspace}"}, {"workspace": ""}, "${workspace} is not known"),
        ({"command": "${X:- }"}, {}, "is empty once its variables are filled in"),
        ({"command": "${X}"}, {"environment": {"X": "hunter2\0"}}, "the value of X cannot be used"),
    ],
)
def test_an_unusable_server_is_misconfigured_with_its_reason(
    server: dict[str, Any], session: dict[str, Any], words: str
) -> None:
    found = seen(config_of({"a": server}), **session)
    assert found.specs == []
    assert words in found.misconfigured[A]
    assert "hunter2" not in found.misconfigured[A]


def test_allow_and_deny_are_patterns_on_the_servers_own_names_and_deny_wins() -> None:
    (entry,) = seen(
        config_of({"a": {"command": "x", "tools": {"allow": ["read_*", "X"], "deny": ["*_all"]}}})
    ).entries
    assert [name for name in ("read_one", "read_all", "write", "X", "x") if entry.allows(name)] == [
        "read_one",
        "X",
    ]


# --- who shares ------------------------------------------------------------------------------------------


def test_equal_launches_share_and_different_ones_do_not() -> None:
    plain = key_of({"command": "x", "args": ["a"]})
    assert plain == key_of({"args": ["${V}"], "command": "x"}, {"V": "a"})
    assert plain == key_of({"command": "x", "args": ["a"]}, workspace="/elsewhere", cwd="/x")
    different = [
        key_of({"command": "y", "args": ["a"]}),
        key_of({"command": "x", "args": ["a", ""]}),
        key_of({"command": "x", "args": ["a"], "env": {"E": ""}}),
        key_of({"command": "x", "args": ["a"], "env": {"E": "1"}}),
        key_of({"command": "x", "args": ["a"], "cwd": "/tmp"}),
        key_of({"command": "x", "args": ["a"]}, secret=b"another"),
    ]
    assert len({plain, *different}) == 7


def test_two_agents_with_different_tokens_never_share_and_the_key_does_not_hold_them() -> None:
    server = {"command": "x", "env": {"T": "${T}"}}
    one, two = key_of(server, {"T": "hunter2"}), key_of(server, {"T": "hunter3"})
    assert one != two
    assert one.startswith("a:")
    assert len(one) == len("a:") + 16


def test_two_workspaces_share_unless_the_workspace_is_part_of_the_launch() -> None:
    here = {"command": "x", "args": ["${workspace}"]}
    assert key_of(here, workspace="/w1") != key_of(here, workspace="/w2")
    assert key_of({"command": "x"}, workspace="/w1") == key_of({"command": "x"}, workspace="/w2")


def test_the_policy_is_no_part_of_the_key() -> None:
    assert key_of({"command": "x"}) == key_of(
        {"command": "x", "pool": {"max": 3}, "timeout_s": 1, "tags": ["t"]}
    )


# --- classes of agents (rule 12) -------------------------------------------------------------------------


@behaviour("classes:apart")
def test_a_launch_has_a_pool_for_agents_that_can_be_asked_beside_the_plain_one() -> None:
    found = seen(config_of({"a": {"command": "x", "roots": "workspace"}}))
    (plain,) = found.specs
    asking = found.twins[plain.key]
    assert (plain.asking, asking.asking) == (False, True)
    assert asking.key not in (plain.key, "")
    assert structs.replace(asking, key=plain.key, asking=False) == plain
    assert [entry.key for entry in found.entries] == [plain.key]


def test_a_server_that_must_not_run_twice_has_one_pool_for_agents_that_can_be_asked() -> None:
    found = seen(config_of({"a": {"command": "x", "replace": "stop_first"}}))
    (spec,) = found.specs
    assert (spec.asking, spec.stop_first, found.twins) == (True, True, {})


def test_the_server_of_a_run_has_both_pools_too() -> None:
    found = resolve_run(RunCommand(argv=["x"], env={"A": "1"}, cwd="/w"), secret=b"s")
    (plain,) = found.specs
    assert found.twins[plain.key].asking
    assert found.twins[plain.key].env == plain.env
    assert {plain.layer, found.twins[plain.key].layer, found.stateless[plain.key].layer} == {"run"}


# --- roots (rule 6) --------------------------------------------------------------------------------------


@behaviour("roots:declared-where-configured")
def test_roots_are_declared_only_where_the_server_says_so() -> None:
    config = config_of(
        {
            "a": {"command": "x"},
            "b": {"command": "x", "roots": "workspace"},
            "c": {"command": "x", "roots": "agent"},
            "d": {"command": "x", "roots": "agent", "disabled": True},
        }
    )
    found = seen(config, workspace="/my work/ü/", roots=(Root("file:///r"),))
    assert [spec.roots for spec in found.specs] == [
        None,
        [Root("file:///my%20work/%C3%BC")],
        [Root("file:///r")],
    ]
    assert found.own_roots == {"c"}
    assert seen(config).specs[2].roots == [Root("file:///w")], (
        "an agent that names none is told of by its workspace"
    )
    assert seen(config, roots=()).specs[2].roots == [], "an agent may say that it has none"


@behaviour("roots:part-of-the-key")
def test_two_sets_of_roots_never_share_a_pool_and_equal_ones_do() -> None:
    own, workspace = {"command": "x", "roots": "agent"}, {"command": "x", "roots": "workspace"}
    keys = [
        key_of({"command": "x"}),
        key_of(own, roots=()),
        key_of(own, roots=(Root("file:///a"),)),
        key_of(own, roots=(Root("file:///b"),)),
        key_of(own, roots=(Root("file:///b", "its name"),)),
        key_of(
            own,
            roots=(
                Root("file:///a"),
                Root("file:///b"),
            ),
        ),
        key_of(workspace, workspace="/x"),
        key_of(workspace, workspace="/y"),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of(own, roots=(Root("file:///x"),)) == key_of(workspace, workspace="/x") == keys[6]


@pytest.mark.parametrize("kind", ["workspace", "agent"])
def test_without_roots_and_workspace_the_server_is_misconfigured_and_stays_one_with_own_roots(
    kind: str,
) -> None:
    found = seen(config_of({"a": {"command": "x", "roots": kind}}), workspace="")
    assert found.specs == []
    assert "mcpServers.a.roots: ${workspace} is not known" in found.misconfigured[A]
    assert found.own_roots == ({"a"} if kind == "agent" else set())


LAUNCH = st.tuples(
    st.lists(st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=3),
    st.text(max_size=3),
)


@settings(deadline=None, max_examples=200)
@given(LAUNCH, LAUNCH, st.binary(max_size=100))
def test_keys_are_equal_exactly_when_launches_are(one: Any, two: Any, secret: bytes) -> None:
    first = pool_key(A, *one, secret=secret)
    second = pool_key(A, one[0], dict(reversed(one[1].items())), one[2], secret=secret)
    assert first == second
    assert (first == pool_key(A, *two, secret=secret)) == (one == two)


def test_the_era_is_part_of_the_launch_and_of_its_key() -> None:
    found = [
        seen(config_of({"a": {"command": "x", **era}}))
        for era in ({}, {"era": "auto"}, {"era": "legacy"}, {"era": "modern"})
    ]
    assert [each.specs[0].era for each in found] == ["auto", "auto", "handshake", "stateless"]
    keys = [each.specs[0].key for each in found]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert {each.era for each in found[3].twins.values()} == {"stateless"}
    assert [len(each.stateless) for each in found] == [1, 1, 0, 0]


@behaviour("eras:match")
@pytest.mark.parametrize("era", [{}, {"era": "auto"}, {"era": "match"}])
def test_a_launch_has_a_pool_more_for_agents_of_the_stateless_era(era: dict[str, Any]) -> None:
    found = seen(config_of({"a": {"command": "x", **era}}))
    [plain], [twin], [own] = found.specs, found.twins.values(), found.stateless.values()
    assert [each.era for each in (plain, twin, own)] == ["auto", "auto", "newest"]
    assert len({each.key for each in (plain, twin, own)}) == 3
    assert list(found.stateless) == [plain.key]
    assert own.asking, "until another process serves them, they can be asked here whatever its era is"
    assert (own.argv, own.env, own.cwd) == (plain.argv, plain.env, plain.cwd)
    alone = seen(config_of({"a": {"command": "x", "replace": "stop_first", **era}}))
    assert (alone.stateless, alone.specs[0].era) == ({}, "auto")


@behaviour("eras:match")
def test_a_server_that_is_to_run_once_or_is_a_child_of_ours_has_no_pool_more_unless_it_is_configured() -> (
    None
):
    for entry in ({"command": "x", "pool": {"max": 1}}, {"python": "m"}):
        assert not seen(config_of({"a": entry})).stateless
        assert seen(config_of({"a": {**entry, "era": "match"}})).stateless


@behaviour("eras:match")
def test_the_pool_more_starts_when_it_is_used_and_never_before() -> None:
    found = seen(config_of({"a": {"command": "x", "auto_connect": True, "pool": {"min": 2, "max": 3}}}))
    [plain], [own] = found.specs, found.stateless.values()
    assert (plain.policy.auto_connect, plain.policy.min_instances) == (True, 2)
    assert (own.policy.auto_connect, own.policy.min_instances, own.policy.max_instances) == (False, 0, 3)
    assert len(run({}).stateless) == 1, "the same for the server of `carpool run`"


# --- carpool run -----------------------------------------------------------------------------------------


def run(
    env: dict[str, str], argv: tuple[str, ...] = ("uvx", "mcp-server-time"), cwd: str = "/p"
) -> Resolution:
    return resolve_run(RunCommand(list(argv), env, cwd), secret=b"secret")


def test_the_server_of_carpool_run_has_its_callers_environment_and_untouched_names() -> None:
    env = {"PATH": "/bin", "TERM": "xterm", "TOKEN": "t"}
    found = run({**env, "CARPOOL_INSTANCE": "x:1"})
    (spec,), (entry,) = found.specs, found.entries
    assert (spec.server, spec.argv, spec.env, spec.cwd) == (
        "mcp-server-time",
        ["uvx", "mcp-server-time"],
        env,
        "/p",
    )
    assert (entry.key, entry.prefix, entry.description_prefix) == (spec.key, "", False)
    assert entry.allows("anything")


def test_callers_share_across_terminals_but_not_across_tokens_directories_or_commands() -> None:
    here = run({"PATH": "/bin", "TERM": "xterm", "SHLVL": "1", "TMUX_PANE": "%1"}).specs[0].key
    assert here == run({"PATH": "/bin", "TERM": "dumb", "SSH_TTY": "/dev/pts/1"}).specs[0].key
    others = [
        run({"PATH": "/bin", "TOKEN": "t"}),
        run({"PATH": "/bin", "SSH_AUTH_SOCK": "/s"}),
        run({"PATH": "/bin"}, cwd="/q"),
        run({"PATH": "/bin"}, argv=("uvx", "mcp-server-time", "-v")),
    ]
    assert len({here, *(other.specs[0].key for other in others)}) == 5


def test_a_configured_server_and_a_run_one_never_share_a_pool() -> None:
    (configured,) = seen(config_of({"x": {"command": "x"}}), secret=b"secret").specs
    (of_run,) = run(BASE, ("x",), "/h").specs
    assert (configured.server, configured.argv, configured.env, configured.cwd) == (
        of_run.server,
        of_run.argv,
        of_run.env,
        of_run.cwd,
    )
    assert configured.key != of_run.key


@pytest.mark.parametrize(("argv", "cwd"), [((), "/p"), (("x", "a\0"), "/p"), (("x",), "/\udc80")])
def test_a_command_that_no_process_can_take_is_misconfigured(argv: tuple[str, ...], cwd: str) -> None:
    found = run({}, argv, cwd)
    assert found.specs == []
    assert len(found.misconfigured) == 1


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("npx -y @modelcontextprotocol/server-github@2025.1 --token abc", "server-github"),
        ("/usr/bin/python3 -m mcp_server_git --repository /r", "mcp-server-git"),
        ("uv --directory /src/thing run server.py", "server"),
        ("uvx --python 3.12 --from some-pkg some-cmd", "some-cmd"),
        ("/opt/my.server/bin/serve_it.sh", "serve-it"),
        ("docker run -e KEY=hunter2 mcp/github", "docker"),
        ("npx https://user:hunter2@x/y", "npx"),
        ("___", "run"),
        ("node " + "x" * 300, "node"),
    ],
)  # fmt: skip
def test_a_run_server_is_named_after_what_it_runs(argv: str, name: str) -> None:
    assert run_name(RunCommand(argv.split(" "), {}, "/")) == name


@settings(deadline=None)
@given(st.lists(st.text(), max_size=4), st.text(max_size=60))
def test_any_command_gets_a_legal_name(argv: list[str], wish: str) -> None:
    assert check_server_name(run_name(RunCommand(argv, {}, "/", wish))) is None


def test_a_wished_name_is_kept_where_it_is_legal() -> None:
    assert run_name(RunCommand(["x"], {}, "/", "my_time")) == "my_time"
    assert run_name(RunCommand(["x"], {}, "/", "my time!")) == "my-time"
