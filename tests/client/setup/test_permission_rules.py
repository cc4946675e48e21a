"""Rules that name tools of servers which move, found and spelled anew."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.setup.model import MovedServer
from carpool.setup.other_programs import TITLES, check_other_program, others
from carpool.setup.permission_rules import PermissionFile, rule_files, rules
from carpool_protocol.wire.tool_name_resolver import qualify
from tests.behaviours import behaviour

HOME = "/home/u"
ROOT = Path(__file__).resolve().parents[3]


def moved(client: str, **names: str) -> list[MovedServer]:
    return [
        MovedServer(name=now, client=client, path="p", to="t", client_id=client, was=was)
        for was, now in names.items()
    ]


def found(client: str, held: Any, **names: str) -> list[tuple[str, str, str]]:
    text = held if isinstance(held, str) else json.dumps(held)
    said = rules(PermissionFile(client, "f"), text, moved(client, **names))
    return [(each.kind, each.text, each.needs) for each in said]


@behaviour("setup:rules")
def test_rules_of_claude_code_are_found_those_that_keep_tools_back_first() -> None:
    """Setup renamed every tool under deny rules and said no word of them."""
    held = {
        "permissions": {
            "allow": ["mcp__github__search", "Bash(ls:*)", "mcp__gone__x"],
            "deny": ["mcp__github__delete_repo", "mcp__my_db", "mcp__github__*", "mcp__github__x(y)"],
            "ask": ["mcp__github"],
        },
        "hooks": {
            "PreToolUse": [{"matcher": "Edit|mcp__github__.*", "hooks": []}, {"matcher": "mcp__githubby__x"}],
            "Stop": [{"hooks": []}],
        },
        "deniedMcpServers": [{"serverName": "github"}, {"serverCommand": ["x"]}],
        "disabledMcpjsonServers": ["my.db"],
        "projects": {"/w": {"allowedTools": ["mcp__github__get"], "disabledMcpServers": ["github"]}},
    }
    assert found("claude-code", held, **{"github": "github-claude-code", "my.db": "my-db"}) == [
        ("deny", "mcp__github__delete_repo", "mcp__carpool__github-claude-code__delete_repo"),
        ("deny", "mcp__my_db", "mcp__carpool__my-db__*"),
        ("deny", "mcp__github__*", "mcp__carpool__github-claude-code__*"),
        ("deny", "mcp__github__x(y)", "mcp__carpool__github-claude-code__x(y)"),
        ("deny", "github", "carpool disable github-claude-code"),
        ("deny", "my.db", "carpool disable my-db"),
        ("ask", "mcp__github", "mcp__carpool__github-claude-code__*"),
        ("hook", "Edit|mcp__github__.*", "Edit|mcp__carpool__github-claude-code__.*"),
        ("allow", "mcp__github__search", "mcp__carpool__github-claude-code__search"),
        ("allow", "mcp__github__get", "mcp__carpool__github-claude-code__get"),
    ]


@behaviour("setup:rules")
@pytest.mark.parametrize(
    ("client", "held", "expected"),
    [
        (
            "cursor",
            {"permissions": {"deny": ["Mcp(github:delete_repo)", "Shell(rm)"], "allow": ["Mcp(github:*)"]}},
            [
                ("deny", "Mcp(github:delete_repo)", "Mcp(carpool:github__delete_repo)"),
                ("allow", "Mcp(github:*)", "Mcp(carpool:github__*)"),
            ],
        ),
        ("cursor", {"mcpAllowlist": ["github:get"]}, [("allow", "github:get", "carpool:github__get")]),
        (
            "gemini",
            {"mcp": {"excluded": ["github"], "allowed": ["github"]}, "excludeTools": ["mcp_github_delete"]},
            [
                ("deny", "github", "carpool disable github"),
                ("deny", "mcp_github_delete", "mcp_carpool_github__delete"),
                ("allow", "github", "carpool"),
            ],
        ),
        ("gemini", {"tools": {"core": ["github__x"]}}, [("allow", "github__x", "carpool__github__x")]),
        (
            "opencode",
            {
                "permission": {"github_*": "ask", "bash": "deny", "edit": {"*": "deny"}},
                "agent": {"plan": {"tools": {"github_delete": False, "github_get": True}}},
            },
            [
                ("deny", "github_delete", "carpool_github__delete"),
                ("ask", "github_*", "carpool_github__*"),
                ("allow", "github_get", "carpool_github__get"),
            ],
        ),
    ],
)
def test_rules_of_other_programs_are_found(client: str, held: Any, expected: Any) -> None:
    assert found(client, held, github="github") == expected
    assert found(client, held, elsewhere="github") == []


def test_a_rule_of_a_tool_whose_name_is_shortened_has_the_shortened_one() -> None:
    tool = "t" * 60
    ((_, _, needs),) = found("claude-code", {"permissions": {"deny": [f"mcp__a__{tool}"]}}, a="a")
    assert needs == f"mcp__carpool__{qualify('a', tool, most=50)}"


_KEYS = (
    *("permissions", "deny", "hooks", "matcher", "PreToolUse", "mcp", "excluded", "agent", "tools"),
    *("deniedMcpServers", "serverName", "projects", "permission", "a_*", "allowedTools"),
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["claude-code", "cursor", "gemini", "opencode"]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from(["mcp__a__x", "a", "Mcp(a:x)", "a_x", "deny"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(_KEYS),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    ),
)
def test_whatever_a_file_of_rules_holds_it_is_read(client: str, held: Any) -> None:
    for kind, text, needs in found(client, held, a="b"):
        assert kind in {"deny", "ask", "hook", "allow"}
        assert "a" in text
        assert "b" in needs or needs == "carpool"
    assert found(client, "{", a="b") == []


def test_every_place_of_rules_is_looked_at() -> None:
    paths = {each.path for each in rule_files({}, HOME, "linux", "/w")}
    assert paths >= {
        f"{HOME}/.claude/settings.json",
        f"{HOME}/.claude.json",
        "/etc/claude-code/managed-settings.json",
        "/w/.claude/settings.json",
        "/w/.claude/settings.local.json",
        f"{HOME}/.cursor/cli-config.json",
        f"{HOME}/.gemini/settings.json",
        "/w/opencode.json",
    }
    told = {each.path for each in rule_files({"CLAUDE_CONFIG_DIR": "/c"}, HOME, "darwin", "")}
    assert {"/c/settings.json", "/c/.claude.json"} <= told
    assert not any(each.startswith("/w") for each in told)


# --- programs that are not looked into ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "readable"),
    [
        (".kiro/settings/mcp.json", '{"mcpServers": {"a": {"command": "x"}}}', True),
        (".kiro/settings/mcp.json", '{"mcpServers": {"a": {"command": "x", "autoApprove": []}}}', True),
        (".lmstudio/mcp.json", '{"mcpServers": {"a": {"command": "x"}}}', True),
        (
            ".copilot/mcp-config.json",
            '{"mcpServers": {"a": {"type": "local", "command": "x", "tools": ["*"]}}}',
            False,
        ),
        (".config/zed/settings.json", '{"context_servers": {"a": {"command": {"path": "x"}}}}', False),
        (".config/zed/settings.json", '{"theme": "dark"}', None),
        (".config/goose/config.yaml", "extensions:\n  a:\n    cmd: x\n", False),
        (".continue/config.yaml", "models: []\n", None),
    ],
)
def test_a_file_of_another_program_is_named_with_whether_carpool_reads_it(
    path: str, text: str, readable: bool | None
) -> None:
    """Zed, Kiro, Cline and others were passed over without a word."""
    (place,) = [each for each in others({}, HOME, "linux", "") if each.path == f"{HOME}/{path}"]
    said = check_other_program(place, place.path, text)
    assert (said.readable if said is not None else None) is readable


def test_the_page_names_every_program_that_is_not_looked_into() -> None:
    page = (ROOT / "docs" / "setup.md").read_text(encoding="utf-8")
    assert [each for each in TITLES if each not in page] == []
    assert {each.title for each in others({}, HOME, "darwin", "/w")} == set(TITLES)
