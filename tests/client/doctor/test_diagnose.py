"""`diagnose`: each fact leads to one problem with a repair; a machine in order has none."""

from typing import Any

import pytest
from msgspec.structs import replace

from carpool.check.open_files import OpenFile
from carpool.check.programs import MissingProgram
from carpool.cli.doctor import is_wrong
from carpool.cli.doctor_repairs import question
from carpool.cli.status import DOCTOR, status_page
from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.node_facts import NodeFacts, OtherNode, SilentNode
from carpool.control.verdict import is_well
from carpool.doctor.cluster_problems import MissingFile
from carpool.doctor.diagnose import (
    FREE_BYTES,
    START_S,
    Facts,
    NotPrivate,
    Problem,
    WrittenDirectory,
    diagnose,
)
from carpool.doctor.kinds import KINDS
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.config.reading.node_servers import PLACED_NOWHERE
from carpool_protocol.machine.stop_commands import DRAIN_S
from carpool_protocol.wire.capabilities import OFFERS_NOTHING
from carpool_protocol.wire.jsonrpc import NOT_A_MESSAGE
from tests.behaviours import behaviour
from tests.kit.fake_broker import STATUS

WELL = {"broker": {"version": "1.0"}, "reason": "ok", "servers": {"git": {"well": True, "state": "serving"}}}
ROOM = WrittenDirectory("/run/x", "CARPOOL_RUNTIME_DIR", writable=True, free_bytes=FREE_BYTES)
MOSTLY_FAILED = {"recent": {"servers": {"git": {"ended": 3, "failed": 2, "mostly_failed": True}}}}
NO_UVX = MissingProgram("uvx is not in the PATH of servers", "Install uv")


NODE = NodeFacts(pid=7, is_up=True, own=NodeOffer(node="beta", epoch="2", release="1.0"))


def other(release: str = "1.0", ahead_s: float = 0.0) -> OtherNode:
    offer = NodeOffer(node="alpha", epoch="1", release=release)
    return OtherNode(offer=offer, is_reached=True, sessions=0, clock_ahead_s=ahead_s)


def facts(**more: Any) -> Facts:
    well: dict[str, Any] = {"installed": "1.0", "status": WELL, "places": (ROOM,), "held": True}
    return Facts(**{**well, "socket": "socket", **more})


def failing(
    error: str, *stderr: str, state: str = "given_up", well: bool = False, node: str = ""
) -> dict[str, Any]:
    """The facts about one server with this error."""
    server = {"well": well, "state": state, "last_error": error, "stderr": stderr, "node": node}
    return {"status": {**WELL, "servers": {"git": server}}}


def with_hook(**more: Any) -> dict[str, Any]:
    """The facts about one hook that gets every call."""
    hook = {"name": "guard", "on_failure": "deny", "match": ["*"], "denied_in_a_row": 0, "problem": ""}
    return {"status": {**WELL, "hooks": [{**hook, **more}]}}


def only(found: Facts) -> Problem:
    (problem,) = diagnose(found)
    return problem


@behaviour("doctor:repair")
def test_a_machine_in_order_has_no_problem() -> None:
    assert diagnose(facts()) == []
    assert diagnose(facts(status=None, held=False, socket="")) == [], "carpool need not run"


@behaviour("doctor:repair")
@pytest.mark.parametrize(
    ("more", "kind", "repair"),
    [
        ({"config_problems": ("carpool.json:4: expected ,",)}, "config-broken", "carpool check"),
        ({"misconfigured": {"git": "git: wrong"}}, "server-misconfigured", "carpool check"),
        ({"absent": {"git": NO_UVX}}, "program-missing", "Install uv. Then run `carpool start git`."),
        (
            {"status": {**WELL, "config": {"file": "/a.json", "here": "/b.json"}}, "config_way": "`x`"},
            "other-configuration",
            "Run `x`, if this one is meant.",
        ),
        (
            {"status": {**WELL, "sessions": [{"id": "s1", "agent": "codex", "other_config": "/b.json"}]}},
            "other-configuration",
            "each program's entry",
        ),
        (
            {"status": {**WELL, "config": {"elsewhere": [{"directory": "/run/other", "pid": 7}]}}},
            "second-carpool",
            "`CARPOOL_RUNTIME_DIR=/run/other carpool down`",
        ),
        ({"unset": ("TOKEN",)}, "variable-unset", "env_file"),
        ({"shadowed": ("a takes the place of your server",)}, "shadowed", "rename one"),
        ({"open_files": (OpenFile("/f", ("A_TOKEN",), True),)}, "secrets-readable", "chmod 600 /f"),
        (
            {"status": {**WELL, "servers": {"git": {"state": "serving", "left_out": "1 entry is left out"}}}},
            "lists-shortened",
            "author of the server",
        ),
        (
            failing(f"{NOT_A_MESSAGE}: the line is not JSON", state="starting"),
            "stdout-noise",
            "carpool logs git",
        ),
        (
            failing("x", "npm warn EBADENGINE   required: { node: '>=22' },"),
            "version-wrong",
            "Install that version",
        ),
        (failing("npm error 404 Not Found - GET https://r/nope"), "package-not-found", "name of the package"),
        ({"waiting": "the servers of /p wait for trust"}, "project-untrusted", "carpool trust"),
        ({"door": "the door cannot listen; choose an address"}, "door-closed", "Choose an address."),
        ({"names_cut": ("a__b is cut",)}, "names-cut", "tools_prefix"),
        ({"warnings": ("x has no effect",)}, "configuration-warning", "carpool check"),
        ({"installed": "1.1"}, "old-daemon", "carpool restart --all"),
        (
            {"status": {**WELL, "descriptors": {"limit": 1024, "used_up": True, "refused": 7}}},
            "descriptors-used-up",
            "carpool disconnect SESSION",
        ),
        (
            {"status": {**WELL, "servers": {"git": {"well": True, "shortage": "Carpool can run 3."}}}},
            "no-room-to-start",
            "carpool stop SERVER",
        ),
        ({"status": None}, "broker-silent", "carpool logs --daemon"),
        ({"status": None, "held": False}, "socket-stale", "next start"),
        ({"status": {**WELL, "reason": "supervisor_away"}}, "supervisor-silent", "carpool restart --all"),
        (
            {"status": {**WELL, "reason": "supervisor_silent", "silent": {"for_s": 3.1}}},
            "supervisor-silent",
            "carpool logs --daemon",
        ),
        ({"status": {**WELL, "counters": MOSTLY_FAILED}}, "calls-failing", "carpool stats"),
        (with_hook(problem="it raised ValueError"), "hook-failing", "carpool logs --daemon"),
        (with_hook(problem="it raised ValueError", on_failure="allow"), "hook-failing", "`hooks`"),
        (with_hook(denied_in_a_row=3), "hook-denies-all", "`match`"),
        (failing("x"), "server-failing", "carpool logs git"),
        (failing("x", state="cold", well=True), "server-failing", "carpool logs git"),
        (
            {"not_private": (NotPrivate("/s", "/s is open; run `chmod 700 /s`", True),)},
            "not-private",
            "Run `chmod",
        ),
        ({"places": (WrittenDirectory("/s", "V", writable=False, free_bytes=0),)}, "not-writable", "set V"),
        (
            {"places": (WrittenDirectory("/s", "V", writable=True, free_bytes=FREE_BYTES - 1),)},
            "disk-full",
            "Make room there, or set V",
        ),
        ({"cluster_files": (MissingFile("cluster.ca", "/ca"),)}, "cluster-file-missing", "`cluster.ca`"),
        (
            {"node": replace(NODE, is_up=False, down_s=60.0, url="nats://h")},
            "cluster-unreachable",
            "cluster.url",
        ),
        (
            {"node": replace(NODE, problem="it refuses the key", url="tcp://h:1")},
            "cluster-unreachable",
            "carpool cluster key",
        ),
        ({"node": replace(NODE, has_namesake=True)}, "node-name-twice", "cluster.node"),
        ({"node": replace(NODE, silent=[SilentNode("gamma", 60.0)])}, "node-silent", "cluster.peers"),
        ({"node": replace(NODE, nodes=[other(release="0.9")])}, "node-version", "one version"),
        ({"node": replace(NODE, nodes=[other(ahead_s=60.0)])}, "clocks-differ", "NTP"),
        (failing(f"x {PLACED_NOWHERE}", state="misconfigured"), "server-nowhere", "cluster.labels"),
        (failing(OFFERS_NOTHING, state="serving", well=True), "offers-nothing", "carpool restart git"),
        (
            failing("got no session", state="backing_off", well=True, node="*"),
            "server-at-node",
            "up --cluster",
        ),
    ],
)
def test_each_problem_is_found_and_leads_to_its_repair(more: dict[str, Any], kind: str, repair: str) -> None:
    problem = only(facts(**more))
    assert (problem.id, problem.fault) == (kind, KINDS[kind].fault)
    assert repair in problem.repair
    assert problem.text


def test_every_kind_of_problem_can_be_found() -> None:
    parameters = test_each_problem_is_found_and_leads_to_its_repair.pytestmark[0].args[1]
    assert {kind for _, kind, _ in parameters} == KINDS.keys()


@behaviour("doctor:repair")
def test_a_server_whose_program_is_missing_is_reported_once_and_serious_problems_come_first() -> None:
    servers = {"git": {"well": False, "state": "given_up", "last_error": "not found"}}
    found = facts(
        absent={"git": NO_UVX}, status={**WELL, "servers": servers}, warnings=("w",),
        config_problems=("p",),
    )  # fmt: skip
    assert [each.id for each in diagnose(found)] == [
        "config-broken",
        "program-missing",
        "configuration-warning",
    ]


def test_the_repair_that_restarts_carpool_says_which_calls_it_ends() -> None:
    problem = only(facts(installed="1.1"))
    cost = f"Calls that still run after {DRAIN_S:g} s are ended"
    assert cost in problem.repair
    assert cost in KINDS["old-daemon"].explanation
    assert cost in question(problem)


def test_only_what_is_safe_to_repair_has_a_fix_and_a_path_only_where_the_fix_needs_one() -> None:
    shut = NotPrivate("/theirs", "/theirs belongs to user 7; set V", may_restrict=False)
    wide = NotPrivate("/s", "/s is open; run `chmod 700 /s`", may_restrict=True)
    found = diagnose(facts(installed="2", unset=("A",), not_private=(shut, wide)))
    assert [(each.id, each.fix, each.path) for each in found] == [
        ("variable-unset", "", ""),
        ("old-daemon", "restart", ""),
        ("not-private", "", ""),
        ("not-private", "restrict", "/s"),
    ]
    assert only(facts(status=None, held=False)).fix == "remove_socket"
    starting = {**WELL, "reason": "supervisor_away", "broker": {"uptime_s": START_S - 1}}
    assert diagnose(facts(status=starting)) == [], "its supervisor is just starting"
    assert only(facts(status=None, held=False, socket="other")).fix == ""


def test_a_server_of_which_agents_see_nothing_is_told() -> None:
    problem = only(facts(**failing(OFFERS_NOTHING, state="serving", well=True)))
    assert problem.id == "offers-nothing"
    assert "git runs" in problem.text


@behaviour("doctor:lists")
@pytest.mark.parametrize("state", ["serving", "cold"])
def test_a_server_whose_lists_are_shortened_works_and_is_told(state: str) -> None:
    why = "the output schema of a is left out: agents cannot compile it"
    server = {"state": state, "well": True, "last_error": why, "left_out": why}
    assert only(facts(status={**WELL, "servers": {"git": server}})).id == "lists-shortened"
    both = {**server, "last_error": f"{NOT_A_MESSAGE}: the line is not JSON; {why}"}
    found = diagnose(facts(status={**WELL, "servers": {"git": both}}))
    assert [each.id for each in found] == ["lists-shortened", "stdout-noise"]
    assert [why in each.text for each in found] == [True, False]


def test_a_server_that_works_and_prints_to_stdout_is_told() -> None:
    problem = only(facts(**failing(f"{NOT_A_MESSAGE}: the line is not JSON", state="serving", well=True)))
    assert problem.id == "stdout-noise"
    assert "works" in problem.text
    assert diagnose(facts(**failing("said something else", state="serving", well=True))) == []


@behaviour("silence:greeting-told")
def test_a_server_that_answers_nothing_to_its_greeting_is_told_before_it_counts_as_failing() -> None:
    silence = "has answered nothing to initialize for 12 s"
    said: dict[str, Any] = failing(silence, state="starting", well=True)["status"]
    said["servers"]["git"]["instances"] = [{"why": silence}]
    problem = only(facts(status=said))
    assert (problem.id, problem.server) == ("server-failing", "git")
    assert problem.text.startswith(f"git is starting: {silence}. A first start may install packages")
    assert "Content-Length" in problem.text
    again = facts(status={**said, "counters": MOSTLY_FAILED})
    assert only(again) == problem, "its failed calls are not told besides"


@behaviour("silence:greeting-told")
@pytest.mark.parametrize(("words", "hinted"), [("waiting for Content-Length", True), ("waiting", False)])
def test_only_a_server_whose_own_words_speak_of_headers_is_said_to_read_them(
    words: str, hinted: bool
) -> None:
    said = failing("did not greet within 5 s", words, state="breaker_open")
    assert ("MCP over stdio has one message per line" in only(facts(**said)).text) is hinted


def test_failing_calls_of_a_server_that_is_down_are_not_told_besides() -> None:
    warned = facts(status={**WELL, "counters": MOSTLY_FAILED}, last_warnings={"git": "git #1 ended"})
    assert only(warned).text.endswith("The last warning in its log: git #1 ended")
    down = failing("x")["status"]
    absent = facts(absent={"git": NO_UVX}, status={**WELL, "counters": MOSTLY_FAILED})
    assert [each.id for each in diagnose(absent)] == ["program-missing"]
    assert [each.id for each in diagnose(facts(status={**down, "counters": MOSTLY_FAILED}))] == [
        "server-failing"
    ]


@behaviour("hooks:named")
def test_a_hook_with_failures_is_named_and_its_servers_are_not() -> None:
    said = only(facts(**with_hook(problem="it raised ValueError")))
    assert said.text == (
        "The hook guard fails, and carpool refuses the calls that it should check: it raised ValueError"
    )
    assert (said.server, said.fault) == ("", "configuration")


@behaviour("hooks:named")
@pytest.mark.parametrize(
    ("reason", "more", "may_be_meant"),
    [("ok", {"denied_in_a_row": 9}, True), ("hooks_failing", {"problem": "it exits with 1"}, False)],
    ids=["it denies", "it fails"],
)
def test_a_hook_that_denies_everything_may_be_meant_and_one_that_fails_may_not(
    reason: str, more: dict[str, Any], *, may_be_meant: bool
) -> None:
    status = {**with_hook(**more)["status"], "reason": reason}
    said = only(facts(status=status))
    assert said.may_be_meant is may_be_meant
    assert is_wrong([said]) is not is_well(status), "the exit code and the first line of status agree"


@behaviour("hooks:named")
@pytest.mark.parametrize(
    "more",
    [
        {"denied_in_a_row": 2},
        {"denied_in_a_row": 9, "match": ["mcp:files:*"]},
        {"denied_in_a_row": 9, "allowed": 1},
    ],
)
def test_a_hook_that_denies_some_calls_is_no_problem(more: dict[str, Any]) -> None:
    assert diagnose(facts(**with_hook(**more))) == []


@behaviour("doctor:repair")
@pytest.mark.parametrize("state", ["serving", "starting", "cold", "backing_off"])
@pytest.mark.parametrize("node", ["", "alpha"])
@pytest.mark.parametrize("error", ["", "ended with exit code 1", f"{NOT_A_MESSAGE}: the line is not JSON"])
def test_status_leads_to_doctor_exactly_if_doctor_names_a_problem(state: str, node: str, error: str) -> None:
    git = failing(error, state=state, well=True, node=node)["status"]["servers"]["git"]
    servers = {"git": {**STATUS["servers"]["time"], **git}}
    status = {**STATUS, "healthy": True, "reason": "ok", "servers": servers, "counters": {}}
    status["broker"] = {**STATUS["broker"], "version": RELEASE}
    assert is_well(status)
    page, has_problems = status_page(status), bool(diagnose(facts(status=status, installed=RELEASE)))
    assert (DOCTOR in page) is has_problems
    first = " ".join(page.partition("\n\n")[0].split())
    assert first.endswith(": all is well") is not has_problems, "the first line says the same"
