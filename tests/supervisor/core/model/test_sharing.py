"""The sharing mode of a server and its reasons; the well-known list; programs recognized in command lines."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from carpool_protocol.ids import PoolKey, ServerName
from carpool_protocol.link.messages import Mode, Policy, PoolSpec
from carpool_protocol.link.messages import Sharing as Configured
from carpool_supervisor.core.model.pool import Pool
from carpool_supervisor.core.model.sharing import (
    MODES,
    MOST_INSTANCES,
    STRICTNESS,
    Evidence,
    EvidenceKind,
    decide_sharing,
    evidence_text,
    explain_sharing,
    launch_identity,
    may_take_call,
    most_instances,
    state_in_names,
)
from carpool_supervisor.core.model.well_known import (
    WellKnownServer,
    WellKnownServers,
    program_of,
    read_well_known,
)
from carpool_supervisor.knowledge.knowledge import well_known
from tests.behaviours import behaviour

BROWSER = WellKnownServer(
    title="Browser", npm=("@x/browser",), mode="session", why="One page.", note="Add -i.", source="x/y"
)
WEATHER = WellKnownServer(
    title="Weather", pypi=("weather-mcp",), mode="concurrent", why="Nothing kept.", source="x/z"
)


def seen(kind: EvidenceKind, first: str = "2026-11-21T10:00:00.000Z", times: int = 1) -> Evidence:
    return Evidence(kind=kind, first=first, last=first, times=times, detail="elicitation/create")


# --- the decision ------------------------------------------------------------------------------------------


@behaviour("modes:auto:order")
def test_the_config_stands_against_everything() -> None:
    verdict = decide_sharing("concurrent", BROWSER, ["browser_click"], [seen("probe_diverged")])
    assert (verdict.mode, verdict.source, verdict.verified) == ("concurrent", "config", True)


@behaviour("modes:auto:order")
@pytest.mark.parametrize("order", [1, -1])
def test_evidence_of_asking_neither_loosens_nor_hides_other_evidence(order: int) -> None:
    kinds: list[tuple[EvidenceKind, Mode, bool]] = [
        ("probe_agreed", "concurrent", True),
        ("asked_ambiguously", "serial", True),
        ("probe_diverged", "session", True),
    ]
    for kind, mode, verified in kinds:
        verdict = decide_sharing("auto", None, [], [seen("asks"), seen(kind)][::order])
        assert (verdict.mode, verdict.verified) == (mode, verified)


def test_evidence_of_asking_alone_changes_no_verdict_and_is_told() -> None:
    assert decide_sharing("auto", BROWSER, [], [seen("asks")]) == decide_sharing("auto", BROWSER, [], [])
    assert decide_sharing("auto", None, [], [seen("asks")]) == decide_sharing("auto", None, [], [])
    assert "It asks agents" in why("auto", None, [seen("asks")])


def test_the_list_stands_against_tool_names() -> None:
    verdict = decide_sharing("auto", WEATHER, ["browser_click"], [])
    assert (verdict.mode, verdict.source, verdict.verified) == ("concurrent", "list", True)
    assert "Source: x/z" in verdict.reasons


@behaviour("modes:auto:order")
def test_tool_names_that_speak_of_state_start_a_server_as_session() -> None:
    verdict = decide_sharing("auto", None, ["help", "browser_click"], [])
    assert (verdict.mode, verdict.source, verdict.verified) == ("session", "tool names", False)
    assert "browser_click" in verdict.reasons[0]


@behaviour("modes:auto:unverified")
def test_an_unknown_server_is_concurrent_and_unverified() -> None:
    verdict = decide_sharing("auto", None, ["search"], [])
    assert (verdict.mode, verdict.source, verdict.verified) == ("concurrent", "assumed", False)


@behaviour("asks:evidence")
def test_an_ambiguous_ask_makes_a_server_serial_since_then() -> None:
    for entry in (None, WEATHER):
        verdict = decide_sharing("auto", entry, [], [seen("asked_ambiguously")])
        assert (verdict.mode, verdict.source) == ("serial", "evidence")
        assert verdict.since == "2026-11-21T10:00:00.000Z"


def test_a_probe_that_diverged_makes_a_server_session_whatever_else_was_seen() -> None:
    verdict = decide_sharing(
        "auto", WEATHER, [], [seen("asked_ambiguously"), seen("probe_diverged"), seen("probe_agreed")]
    )
    assert (verdict.mode, verdict.source) == ("session", "evidence")


def test_evidence_never_loosens_what_the_list_or_the_names_say() -> None:
    assert decide_sharing("auto", BROWSER, [], [seen("asked_ambiguously")]).mode == "session"
    assert decide_sharing("auto", None, ["browser_click"], [seen("probe_agreed")]).mode == "session"


@behaviour("modes:auto:unverified")
def test_a_probe_that_agreed_verifies_an_assumption() -> None:
    verdict = decide_sharing("auto", None, [], [seen("probe_agreed")])
    assert (verdict.mode, verdict.verified, verdict.source) == ("concurrent", True, "evidence")


kinds = st.sampled_from(["asked_ambiguously", "probe_diverged", "probe_agreed"])
pieces = st.lists(st.builds(seen, kinds), max_size=3)


@behaviour("modes:auto:order")
@given(st.sampled_from([None, BROWSER, WEATHER]), st.sampled_from([[], ["browser_x"]]), pieces, pieces)
@settings(deadline=None)
def test_more_evidence_never_gives_a_looser_mode(
    entry: WellKnownServer | None, tools: list[str], some: list[Evidence], more: list[Evidence]
) -> None:
    loose = decide_sharing("auto", entry, tools, some).mode
    assert STRICTNESS[decide_sharing("auto", entry, tools, [*more, *some]).mode] >= STRICTNESS[loose]


def test_a_serial_instance_takes_one_call_that_can_ask_and_any_other() -> None:
    assert may_take_call("serial", can_ask=True, asking_in_flight=0)
    assert not may_take_call("serial", can_ask=True, asking_in_flight=1)
    assert may_take_call("serial", can_ask=False, asking_in_flight=1)
    assert may_take_call("concurrent", can_ask=True, asking_in_flight=99)
    assert may_take_call("session", can_ask=True, asking_in_flight=99)


# --- how many instances ------------------------------------------------------------------------------------

ONE_FILE = WellKnownServer(
    title="Notes", npm=("notes",), mode="serial", why="One file.", note="Only one.", most=1, source="x/n"
)


@pytest.mark.parametrize("mode", ["concurrent", "serial"])
def test_the_listed_number_of_instances_holds_in_every_shared_mode(mode: Mode) -> None:
    assert most_instances(Policy(), mode, ONE_FILE) == 1


def test_a_number_in_the_config_stands_against_the_list() -> None:
    assert most_instances(Policy(max_instances=3), "serial", ONE_FILE) == 3
    assert most_instances(Policy(min_instances=2), "serial", ONE_FILE) == 2


def test_the_list_does_not_lower_the_number_in_mode_session() -> None:
    assert most_instances(Policy(), "session", ONE_FILE) == MOST_INSTANCES["session"]


def test_the_list_only_ever_lowers_the_number() -> None:
    many = structs.replace(ONE_FILE, most=9)
    assert [most_instances(Policy(), mode, many) for mode in MODES] == list(MOST_INSTANCES.values())
    assert [most_instances(Policy(), mode, WEATHER) for mode in MODES] == list(MOST_INSTANCES.values())


def test_a_pool_heeds_the_number_once_its_program_is_known() -> None:
    pool = Pool(PoolKey("p"), ServerName("notes"), Policy(sharing="serial"))
    assert pool.max_instances == MOST_INSTANCES["serial"]
    pool.well_known_server = ONE_FILE
    pool.update_sharing()
    assert pool.max_instances == 1


# --- tool names --------------------------------------------------------------------------------------------

STATEFUL = [
    "browser_navigate",
    "playwright_click",
    "puppeteer_fill",
    "page_goto",
    "new_page",
    "select_page",
    "navigate",
    "take_snapshot",
    "session_start",
    "close_session",
    "git_set_working_dir",
    "setWorkingDirectory",
    "activate_project",
    "open_presentation",
    "switch_database_connection",
    "set_breakpoint",
    "interact_with_process",
    "execute_cell",
    "sequentialthinking",
    "browser-click",
    "browserClick",
]
STATELESS = [
    # of the filesystem, git, GitHub, Notion, Slack, memory, Atlassian, PostgreSQL and search servers
    *("read_file", "write_file", "edit_file", "list_directory", "directory_tree", "list_allowed_directories"),
    *("git_status", "git_checkout", "git_create_branch", "create_pull_request", "get_file_contents"),
    *("search_code", "list_sessions", "API-post-page", "API-retrieve-a-page", "slack_post_message"),
    *("create_entities", "open_nodes", "confluence_get_page", "page_create", "page_search", "get_page"),
    *("jira_get_issue", "execute_sql", "query", "list_schemas", "brave_web_search", "tavily-search"),
    *("get_current_time", "convert_time", "fetch", "session_stats", "create_checkout_session", "browse"),
    *("close_issue", "open_issue", "use_case_search", "select_rows", "terminal_count", "get_context"),
]


@pytest.mark.parametrize("tool", STATEFUL)
def test_a_name_that_speaks_of_state_is_heard(tool: str) -> None:
    assert state_in_names([tool]) is not None


@pytest.mark.parametrize("tool", STATELESS)
def test_a_common_tool_name_does_not_make_a_server_session(tool: str) -> None:
    assert state_in_names([tool]) is None


# --- why ---------------------------------------------------------------------------------------------------


def why(configured: Configured, entry: WellKnownServer | None, evidence: list[Evidence]) -> str:
    verdict = decide_sharing(configured, entry, [], evidence)
    return "\n".join(explain_sharing("web", verdict, configured=configured, entry=entry, evidence=evidence))


@behaviour("modes:why")
def test_why_says_mode_since_evidence_and_how_to_change_it() -> None:
    text = why("auto", WEATHER, [seen("asked_ambiguously", times=3)])
    assert "web is shared as serial (verified)" in text
    assert "Since 2026-11-21T10:00:00.000Z." in text
    assert "3 times" in text
    assert '"sharing" to "concurrent" or "session"' in text


@behaviour("modes:why")
def test_why_does_not_call_a_server_unknown_that_was_seen_to_keep_state() -> None:
    for kind in ("asked_ambiguously", "probe_diverged", "probe_agreed"):
        assert "Nothing is known" not in why("auto", None, [seen(kind)])
    assert "Nothing kept." in why("auto", WEATHER, [seen("probe_diverged")])


@pytest.mark.parametrize("configured", ["auto", "serial"])
@pytest.mark.parametrize("entry", [None, WEATHER, BROWSER])
def test_why_tells_every_piece_of_evidence_once(
    configured: Configured, entry: WellKnownServer | None
) -> None:
    evidence = [seen("asked_ambiguously", times=3), seen("probe_diverged"), seen("asks")]
    text = why(configured, entry, evidence)
    assert [text.count(evidence_text(each)) for each in evidence] == [1, 1, 1]
    alone = why("auto", None, evidence[:1])
    assert "Also seen" not in alone
    assert "Evidence so far" not in alone


def test_why_says_what_becomes_of_state_when_a_server_becomes_session() -> None:
    session, shared = "If it becomes session, each agent's next call begins", "If it becomes shared, each"
    cases: list[tuple[Configured, list[Evidence], bool]] = [
        ("auto", [], False),
        ("auto", [seen("probe_diverged")], True),
        ("serial", [], False),
        ("session", [], True),
    ]
    for configured, evidence, is_session in cases:
        text = why(configured, None, evidence)
        assert (shared in text, session in text) == (is_session, not is_session), configured
        assert "what runs stays" not in text


def test_why_of_a_configured_shared_mode_says_where_the_number_of_instances_comes_from() -> None:
    assert "Only one." in why("serial", ONE_FILE, [])
    assert "Only one." not in why("session", ONE_FILE, [])


def test_why_of_an_unverified_server_names_the_probe() -> None:
    assert "carpool check --probe web" in why("auto", None, [])
    assert "unverified" in why("auto", None, [])


def test_why_of_a_configured_server_says_what_the_list_would_do() -> None:
    text = why("concurrent", BROWSER, [])
    assert "The shipped list would make it session" in text
    assert '"sharing" to "auto"' in text


def test_why_of_a_listed_server_gives_its_note_and_source() -> None:
    text = why("auto", BROWSER, [])
    assert "Add -i." in text
    assert "Source: x/y" in text


# --- command lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("npx -y @playwright/mcp@latest --isolated", "npm:@playwright/mcp"),
        ("/usr/bin/npx --package=chrome-devtools-mcp chrome-devtools-mcp", "npm:chrome-devtools-mcp"),
        ("npx -p chrome-devtools-mcp@1 chrome-devtools-mcp", "npm:chrome-devtools-mcp"),
        ("npm exec -- exa-mcp-server", "npm:exa-mcp-server"),
        ("pnpm dlx tavily-mcp", "npm:tavily-mcp"),
        ("bunx tavily-mcp", "npm:tavily-mcp"),
        ("env TOKEN=secret npx tavily-mcp", "npm:tavily-mcp"),
        ("uvx mcp-server-time --local-timezone UTC", "pypi:mcp-server-time"),
        ("uvx -p 3.12 Mcp_Server.Time", "pypi:mcp-server-time"),
        ("uvx --with x --from mcp-server-git[a]==1 mcp-server-git", "pypi:mcp-server-git"),
        ("uvx --from git+https://example.org/x serena start-mcp-server", "command:serena"),
        ("uv tool run blender-mcp", "pypi:blender-mcp"),
        ("uv --directory /x run mcp-server-sqlite --db-path /y", "command:mcp-server-sqlite"),
        ("uv run --with x server.py", "command:server.py"),
        ("pipx run --spec postgres-mcp==1 postgres-mcp postgres://u:secret@h/d", "pypi:postgres-mcp"),
        ("python3.12 -m mcp_server_git --repository /x", "module:mcp_server_git"),
        ("python -u -m mcp_server_git", "module:mcp_server_git"),
        ("python /srv/mine.py --token secret", "script:/srv/mine.py"),
        ("node /a/node_modules/@upstash/context7-mcp/dist/index.js", "npm:@upstash/context7-mcp"),
        ("node /a/node_modules/.bin/x", "script:/a/node_modules/.bin/x"),
        ("deno run -A server.ts", "script:server.ts"),
        ("/opt/venv/bin/mcp-server-fetch", "command:mcp-server-fetch"),
        ("/srv/mine/run", "command:/srv/mine/run"),
        ("docker run -i -e TOKEN=secret -v data:/data host.example/github/mcp:1 stdio", "image:github/mcp"),
        ("docker run -v /a:/b localhost:5000/me/x@sha256:00", "image:me/x"),
    ],
)  # fmt: skip
def test_a_program_is_recognised_behind_its_runner(line: str, program: str) -> None:
    assert str(program_of(line.split())) == program


@pytest.mark.parametrize(
    "line",
    [
        *(
            "",
            "npx",
            "npx -y",
            "npx https://example.org/x.tgz",
            "npx ../x",
            "npm start",
            "uvx",
            "uvx ./local",
        ),
        *(
            "python -c print(1)",
            "node -e x",
            "docker compose up",
            "docker run redis",
            "uv sync",
            "env A=b",
            "-x",
        ),
    ],
)
def test_an_uncertain_command_line_is_not_recognised(line: str) -> None:
    assert program_of(line.split()) is None


RUNNERS = ["npx", "uvx", "uv", "run", "docker", "python", "env", "bash", "make"]
OTHERS = ["-p", "--from", "-m", "--with", "-y", "a/b", "-", "--", "@x", "=", "x@1", "A=1", "git+https://h/x"]


def identity(line: str, cwd: str = "/home/u", **more: Any) -> str:
    launch = {"key": PoolKey("web:1"), "server": ServerName("web"), "env": {}, "policy": Policy(), **more}
    return launch_identity(PoolSpec(argv=line.split(), cwd=cwd, **launch))


@given(st.lists(st.sampled_from(RUNNERS + OTHERS)))
@settings(deadline=None)
def test_no_command_line_raises(argv: list[str]) -> None:
    identity(" ".join(argv))
    well_known().find(argv)


def test_an_identity_holds_no_argument() -> None:
    for line in (
        "npx -y mcp-remote https://h/?key=secret",
        "uvx postgres-mcp postgres://u:secret@h",
        "x --t=secret",
    ):
        assert "secret" not in identity(line)
    assert identity("npx mcp-remote a") == "web npm:mcp-remote"
    assert identity("sh -c secret") == "web command:sh in /home/u"
    url = {"CARPOOL_REMOTE_URL": "https://u:secret@h.example:8443/secret?key=secret"}
    assert identity("python -P -m carpool.bridge", env=url, bridge=True) == "web url:h.example:8443"


@behaviour("modes:evidence-of-its-own")
@pytest.mark.parametrize(
    "line",
    [
        *("python server.py", "python -u ./server.py", "node dist/index.js", "deno run -A server.ts"),
        *("node node_modules/@x/y/index.js", "python -m server", "/opt/venv/bin/python -m server"),
        *(".venv/bin/server", "./run", "uv run server", "uv run server.py", "uvx --from . server"),
        *("bash run.sh", "sh -c run", "make serve", "npm start", "npx .", "python -c x", "docker compose up"),
    ],
)
def test_a_program_that_the_directory_decides_is_another_one_in_another_directory(line: str) -> None:
    assert identity(line, "/p/honest") != identity(line, "/p/hostile")
    assert identity(line, "/p/honest") == identity(line, "/p/honest")


@pytest.mark.parametrize(
    "line",
    [
        *("npx -y @x/y", "uvx mcp-server-time", "uv tool run x-mcp", "pipx run x-mcp", "docker run me/x"),
        *("uvx --from git+https://example.org/x serena", "web-server --port 1", "web-server"),
        *("python /srv/server.py", "/opt/venv/bin/server", "node /srv/node_modules/@x/y/index.js"),
    ],
)
def test_a_program_that_is_the_same_in_each_directory_is_known_in_all(line: str) -> None:
    assert identity(line, "/p/one") == identity(line, "/p/two")


@behaviour("modes:evidence-of-its-own")
def test_an_installed_program_is_another_one_at_another_path() -> None:
    assert identity("/p/honest/.venv/bin/server") != identity("/p/hostile/.venv/bin/server")
    assert identity(".venv/bin/server", "/p/honest") == identity("/p/honest/.venv/bin/server")
    assert (
        identity("python ./server.py", "/p") == identity("python /p/server.py") == "web script:/p/server.py"
    )


@behaviour("modes:evidence-of-its-own")
def test_a_server_over_a_url_is_another_one_at_another_host() -> None:
    line = "python -P -m carpool.bridge"
    hosts = ("https://a.example/mcp", "https://b.example/mcp", "http://localhost:1/", "http://localhost:2/")
    known = {identity(line, env={"CARPOOL_REMOTE_URL": host}, bridge=True) for host in hosts}
    assert len(known) == len(hosts)


# --- the shipped list --------------------------------------------------------------------------------------


@behaviour("modes:list-sourced")
def test_the_shipped_list_is_large_and_every_entry_is_sourced() -> None:
    entries = well_known().entries
    assert len(entries) >= 30
    for entry in entries:
        assert re.search(r"\S+/\S+ at [0-9a-f]{7,}", entry.source), entry.title
        assert entry.why.endswith("."), entry.title
        assert entry.npm or entry.pypi or entry.commands or entry.images, entry.title
    assert {entry.mode for entry in entries} == set(MODES)


@pytest.mark.parametrize(
    ("line", "mode"),
    [
        ("npx -y @playwright/mcp@latest", "session"),
        ("npx @modelcontextprotocol/server-sequential-thinking", "session"),
        ("npx @modelcontextprotocol/server-memory", "serial"),
        ("mcp-server-time", "concurrent"),
        ("python -m mcp_server_git", "concurrent"),
        ("npx @modelcontextprotocol/server-filesystem /x", "concurrent"),
        ("npx -y @modelcontextprotocol/server-everything", "serial"),
    ],
)
def test_well_known_servers_have_the_mode_their_code_asks_for(line: str, mode: Mode) -> None:
    entry = well_known().find(line.split())
    assert entry is not None
    assert entry.mode == mode


def test_listed_servers_that_write_one_file_whole_or_forbid_a_second_instance_get_one() -> None:
    for line in (
        "npx @modelcontextprotocol/server-memory",
        "uvx blender-mcp",
        "uvx office-word-mcp-server",
        "uvx excel-mcp-server stdio",
    ):
        entry = well_known().find(line.split())
        assert entry is not None
        assert most_instances(Policy(), entry.mode, entry) == 1


def test_a_listed_number_is_explained_and_stands_only_where_agents_share() -> None:
    for entry in well_known().entries:
        assert "pool.max 1" not in entry.note, f"{entry.title}: leaves to its user what `max_instances` does"
        if entry.most:
            assert entry.note, entry.title
            assert entry.mode != "session", entry.title


def test_the_list_names_no_host() -> None:
    for entry in well_known().entries:
        for text in (entry.source, entry.why, entry.note, *entry.images):
            assert "://" not in text
            assert not re.search(r"\b[\w-]+\.(io|org|com|dev)/", text)


def test_two_entries_for_one_program_are_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        WellKnownServers(
            [
                WEATHER,
                WellKnownServer(title="Again", commands=("weather-mcp",), mode="serial", why="", source=""),
            ]
        )


def test_a_list_of_another_form_is_refused() -> None:
    for data in (
        b"",
        b"[]",
        b'{"version":2,"about":"","servers":[]}',
        b'{"version":1,"about":"","servers":[{}]}',
    ):
        with pytest.raises(ValueError, match=r".+"):
            read_well_known(data)
