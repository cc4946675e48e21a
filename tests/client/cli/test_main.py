"""The verbs against a fake broker: what is asked, what is printed, which exit code."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from carpool import launcher_lock
from carpool.cli import call, main
from carpool.cli.main import with_server_name
from carpool.cli.status import NOTHING, ps_page, status_page
from carpool.control.control_client import AnsweredError, ControlClientError, text_for_people
from carpool.launcher.runtime_place import RuntimePlace
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.faults.kinds import KINDS
from tests.behaviours import behaviour
from tests.kit.fake_broker import POOLS, STATUS, TOOLS, FakeBroker, Json
from tests.kit.private_daemon import PrivateDaemon, until
from tests.kit.waits import END_LIMIT_S


@pytest.fixture
def broker(house: PrivateDaemon) -> Iterator[FakeBroker]:
    with FakeBroker(house.directory) as broker:
        yield broker


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("ps",),
        ("start", "a"),
        ("stop", "a"),
        ("restart", "a"),
        ("reload",),
        ("check", "--start"),
        ("why", "a"),
    ],
)
def test_without_a_broker_a_verb_that_needs_one_says_how_to_start_it(
    house: PrivateDaemon, arguments: tuple[str, ...]
) -> None:
    done = house.run(*arguments)
    assert done.returncode == 69
    assert "carpool is not running here; start it with `carpool up --detach`" in done.stderr
    assert not house.launcher


def test_a_verb_waits_for_the_broker_that_a_launcher_starts_again(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(house.directory))
    held = launcher_lock.take_lock(str(house.directory), "")
    assert held is not None
    with ExitStack() as stack:
        stack.callback(os.close, held)
        monkeypatch.setattr(
            "carpool.cli.main.time.sleep", lambda _s: stack.enter_context(FakeBroker(house.directory))
        )
        with main.reach_broker(RuntimePlace(), control=True) as door:
            assert main.broker_request_or_fail(door, "carpool/status", {}) == STATUS


def test_a_verb_says_where_a_launcher_has_no_broker_for_long(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(house.directory))
    monkeypatch.setattr(main, "RETURN_S", 0)
    held = launcher_lock.take_lock(str(house.directory), "")
    assert held is not None
    try:
        with pytest.raises(
            ControlClientError, match="its broker does not come up; see `carpool logs --daemon`"
        ):
            main.reach_broker(RuntimePlace(), control=True)
    finally:
        os.close(held)


def test_status_json_has_the_same_keys_when_nothing_runs(house: PrivateDaemon) -> None:
    done = house.run("status", "--json")
    assert done.returncode == 69
    facts = json.loads(done.stdout)
    assert facts.keys() == {*STATUS, "door", "cluster"} == NOTHING.keys()
    assert facts["totals"].keys() == STATUS["totals"].keys()
    assert (facts["healthy"], facts["reason"]) == (False, "not_running")


@pytest.mark.parametrize("verb", [("tools", "--json"), ("call", "time__now")])
def test_tools_and_call_start_carpool_where_it_does_not_run(
    house: PrivateDaemon, verb: tuple[str, ...]
) -> None:
    done = house.run(*verb)
    assert (done.returncode, done.stderr) == (0, "")
    assert house.launcher


def test_status_json_is_what_the_broker_said(house: PrivateDaemon, broker: FakeBroker) -> None:
    done = house.run("status", "--json")
    assert done.returncode == 0
    config = {**STATUS["config"], "here": "", "elsewhere": []}
    assert json.loads(done.stdout) == {**STATUS, "config": config, "door": None, "cluster": None}
    attach = broker.heard[0]["params"]
    assert (attach["carrier"], attach["control"]) == ("cli", True)


def test_status_for_people_tells_servers_errors_and_sessions_and_obeys_no_control_sequence(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    shown = house.run("status").stdout
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "git has given up" in shown
    assert "no \\x1b]0;repository\\x07" in shown
    assert "80.0 MB saved" in shown
    assert "the broker has died 2 times (`carpool logs --daemon` tells how)" in shown


def test_ps_json_has_a_row_with_the_same_keys_for_every_process(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    rows = json.loads(house.run("ps", "--json").stdout)["processes"]
    assert [(row["role"], row["pid"]) for row in rows] == [
        ("broker", 11),
        ("supervisor", 12),
        ("instance", 21),
        ("instance", 22),
    ]
    assert len({frozenset(row) for row in rows}) == 1


@pytest.mark.parametrize("reason", ["ok", "supervisor_away"])
def test_ps_says_that_the_supervisor_is_away_which_would_tell_of_instances(reason: str) -> None:
    facts = {**STATUS, "reason": reason, "supervisors": [], "servers": {}}
    assert ("the supervisor is away" in ps_page(facts, [])) is (reason != "ok")


@behaviour("lease:holders-shown")
def test_ps_for_people_tells_modes_holders_questions_and_who_waits(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    shown = house.run("ps").stdout
    assert "\x1b" not in shown
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}
    assert "concurrent?" in rows["21"]
    assert rows["21"][-1] == "-"
    assert "serial" in rows["22"]  # its pool's mode, where pools of a server differ
    assert rows["22"][-2:] == ["s1", "clau\\x1bde"]
    assert rows["PID"].index("ASKS") == rows["PID"].index("CALLS") + 1
    assert "waiting: 3 calls for browser, 2 calls for git" in shown
    assert "time #1 is being replaced: it was given 1234 calls (limits.calls: 1000)" in shown
    assert "breaker of git: open, closed to starts for 42 s more" in shown
    assert "nobody has looked yet" in shown


def test_status_marks_a_mode_that_is_only_assumed_and_counts_open_questions(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    lines = house.run("status").stdout.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert rows["time"][2] == "concurrent?"
    assert rows["browser"][2] == "session"
    assert rows["git"][2] == "auto"  # it has never run: nothing is decided
    assert rows["browser"][5] == "2"
    assert "nobody has looked yet" in " ".join(rows["?"])


@behaviour("modes:why")
def test_why_tells_the_lines_once_where_pools_agree_and_each_pool_where_not(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    done = house.run("why", "time")
    assert (done.returncode, done.stdout) == (
        0,
        "time is shared as concurrent.\n  Nothing is\\x1b[2J known.\n",
    )
    assert house.run("why", "browser").stdout == (
        "pool browser:session:\nbrowser is shared as session.\n\n"
        "pool browser:serial:\nbrowser is shared as serial.\n"
    )
    told = json.loads(house.run("why", "browser", "--json").stdout)
    assert told == {"server": "browser", "pools": POOLS["browser"]}


def test_why_guesses_a_misspelt_server_and_says_why_a_server_has_no_pool(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    done = house.run("why", "brwoser")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no server 'brwoser' in the configuration; did you mean 'browser'?" in done.stderr
    away = house.run("why", "git")
    assert away.returncode == 1
    assert "disabled in the configuration" in away.stderr


def test_tools_json_is_the_list(house: PrivateDaemon, broker: FakeBroker) -> None:
    assert json.loads(house.run("tools", "--json").stdout) == TOOLS


def test_one_tool_is_explained_in_any_spelling_and_an_unknown_one_is_a_failure(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    found = house.run("tools", "time.now")
    assert found.returncode == 0
    assert "time__now" in found.stdout
    unknown = house.run("tools", "tyme")
    assert unknown.returncode == 1
    assert "tyme" in unknown.stderr


NOT_LISTED = "not listed: dead\\x1b (backing_off), waits (untrusted); see `carpool status`\n"


@pytest.mark.usefixtures("broker")
def test_servers_whose_tools_are_missing_from_the_list_are_named_after_it(house: PrivateDaemon) -> None:
    assert house.run("tools").stderr == NOT_LISTED
    assert (
        house.run("tools", "--tag", "web").stderr
        == "not listed: dead\\x1b (backing_off); see `carpool status`\n"
    )
    assert house.run("tools", "time.now").stderr == ""
    gone = house.run("tools", "gone")
    assert (gone.returncode, gone.stderr) == (1, f"carpool: There is no such tool.\n{NOT_LISTED}")
    for form in (("--json",), ("--format", "anthropic")):
        assert house.run("tools", *form).stderr == ""


@pytest.mark.usefixtures("broker")
def test_tools_are_listed_in_the_form_of_a_model_api(house: PrivateDaemon) -> None:
    shown = json.loads(house.run("tools", "--format", "anthropic").stdout)
    assert shown[0] == {
        "name": "time__now",
        "description": "Tell the time.",
        "input_schema": {"type": "object", "properties": {}},
    }
    (one,) = json.loads(house.run("tools", "time.now", "--format", "openai").stdout)
    assert (one["type"], one["function"]["name"]) == ("function", "time__now")
    (one,) = json.loads(house.run("tools", "time.now", "--format", "openai-responses").stdout)
    assert (one["type"], one["name"], one["strict"]) == ("function", "time__now", False)
    unknown = house.run("tools", "tyme", "--format", "openai")
    assert (unknown.returncode, unknown.stdout) == (1, "[]\n")


def test_call_greets_and_prints_the_text(house: PrivateDaemon, broker: FakeBroker) -> None:
    done = house.run("call", "time__now", "--args", '{"zone":\r\n "UTC"}')
    assert (done.returncode, done.stdout) == (0, '{"zone": "UTC"}\\x1b[2J\n')
    expected = ["carpool/attach", "initialize", "", "notifications/initialized", "tools/call", ""]
    # The empty ones are its answers to the broker's pings; it may have ended before the last one is read.
    until(lambda: len(broker.heard) >= len(expected), "the broker has read all")
    assert broker.methods() == expected
    assert broker.heard[0]["params"]["control"] is False


def test_call_json_prints_the_result_object_and_exits_1_when_it_is_an_error(
    house: PrivateDaemon, broker: FakeBroker
) -> None:
    done = house.run("call", "git__log", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["isError"] is True
    refused = house.run("call", "unknown", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == -32602
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "its text"}}]},
            "its text",
        ),
        ({"content": [], "structuredContent": {"sum": 3}}, '{"sum": 3}'),
        (
            {"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA" * 33 + "AA=="}]},
            "[image: image/png, 100 bytes]",
        ),
        ({"content": [{"type": "resource_link", "uri": "file:///b", "name": "b"}]}, "[resource: file:///b]"),
    ],
)
def test_a_plain_call_shows_every_kind_of_result(
    capsys: pytest.CaptureFixture[str], result: dict[str, Any], shown: str
) -> None:
    raw = msgspec.Raw(json.dumps(result).encode())
    assert call.show_result(raw, as_json=False, flat=False) is False
    assert capsys.readouterr().out == f"{shown}\n"


@pytest.mark.usefixtures("broker")
def test_a_flat_result_is_one_text_and_for_programs_whether_it_worked(house: PrivateDaemon) -> None:
    done = house.run("call", "time__now", "--args", '{"zone": "UTC"}', "--flat")
    assert (done.returncode, done.stdout) == (0, '{"zone": "UTC"}\\x1b[2J\n')
    failed = house.run("call", "git__log", "--flat")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "{}" in failed.stderr
    told = house.run("call", "time__now", "--flat", "--json")
    assert json.loads(told.stdout) == {"success": True, "output": "{}\x1b[2J"}
    refused = house.run("call", "unknown", "--flat", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["success"] is False


def test_a_call_whose_broker_dies_is_said_to_have_been_executed_perhaps(house: PrivateDaemon) -> None:
    with FakeBroker(house.directory, dies_of="tools/call"):
        done = house.run("call", "time__now")
    assert done.returncode == 1
    assert "the broker closed the connection" in done.stderr
    assert "The call may have been executed. Look at what it has changed before you repeat it." in done.stderr


def test_a_call_whose_broker_dies_before_it_was_sent_is_not_said_to_have_been_executed(
    house: PrivateDaemon,
) -> None:
    with FakeBroker(house.directory, dies_of="initialize"):
        done = house.run("call", "time__now")
    assert done.returncode == 1
    assert "executed" not in done.stderr


def test_call_reads_its_arguments_from_stdin(house: PrivateDaemon, broker: FakeBroker) -> None:
    done = house.run("call", "time__now", "--args", "-", stdin='{"a": 1}')
    assert done.stdout.startswith('{"a": 1}')


@pytest.mark.parametrize("arguments", ["[]", "hunter2", '{"a":'])
def test_arguments_that_are_no_object_are_refused_and_not_repeated(
    house: PrivateDaemon, arguments: str
) -> None:
    done = house.run("call", "time__now", "--args", arguments)
    assert done.returncode == 2
    assert "hunter2" not in done.stderr
    assert not house.launcher


def test_an_asked_environment_is_answered_by_the_command_line(house: PrivateDaemon) -> None:
    house.environ["CP_A"] = "1"
    with FakeBroker(house.directory, env=["CP_A", "CP_NONE"]) as broker:
        assert house.run("call", "time__now").returncode == 0
    assert broker.heard[1] == {"jsonrpc": "2.0", "method": "carpool/environment", "params": {"CP_A": "1"}}


def test_a_refusal_of_the_broker_is_told(house: PrivateDaemon) -> None:
    with FakeBroker(house.directory, refuse="another version: run `carpool restart --all`"):
        done = house.run("status")
    assert done.returncode == 1
    assert "carpool restart --all" in done.stderr


def test_operating_tells_each_result_and_fails_when_one_did(house: PrivateDaemon, broker: FakeBroker) -> None:
    done = house.run("start", "time", "git")
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "time: done\n",
        "carpool: git: git has given up\n",
    )
    assert house.run("stop", "time").returncode == 0
    house.run("start", "--all", "--json")
    asked = [m["params"] for m in broker.heard if m.get("method") == "carpool/operate"]
    assert asked == [
        {"verb": "start", "servers": ["time", "git"]},
        {"verb": "stop", "servers": ["time"]},
        {"verb": "start", "servers": None},
    ]


class SupervisorLater(FakeBroker):
    """A broker whose supervisor is not up yet for the first request to operate."""

    def _answers(self, message: Json) -> list[Json]:
        asked = [each for each in self.heard if each.get("method") == "carpool/operate"]
        if message.get("method") != "carpool/operate" or len(asked) > 1:
            return super()._answers(message)
        error = {"code": 5309, "message": "It is away.", "data": {"code": "supervisor_away"}}
        return [{"jsonrpc": "2.0", "id": message["id"], "error": error}]


def test_operating_waits_for_a_supervisor_that_is_not_up_yet(house: PrivateDaemon) -> None:
    with SupervisorLater(house.directory):
        done = house.run("start", "time")
    assert (done.returncode, done.stdout, done.stderr) == (0, "time: done\n", "")


def test_a_sentence_that_names_its_server_gets_no_second_name() -> None:
    assert with_server_name("gti", "There is no server 'gti' here.") == "there is no server 'gti' here."
    assert with_server_name("git", "It has given up.") == "git: It has given up."


def test_a_refused_reload_tells_the_problems_and_exits_2(house: PrivateDaemon, broker: FakeBroker) -> None:
    done = house.run("reload")
    assert done.returncode == 2
    assert "did you mean 'command'" in done.stderr
    assert "warning: supervisors: 2 in the configuration, and 1 in force" in done.stderr
    assert json.loads(house.run("reload", "--json").stdout)["warnings"] == [
        "supervisors: 2 in the configuration, and 1 in force"
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("restart",),
        ("restart", "--all", "x"),
        ("start",),
        ("stop",),
        ("nonsense",),
        ("logs", "x", "--daemon"),
        ("why",),
        ("check", "--call", "x"),
        ("check", "--probe", "x", "--start"),
        ("check", "--probe", "x", "--args", "{}"),
        ("check", "--probe", "x", "--call", "y", "--args", "{}", "--args", "{}"),
    ],
)
def test_wrong_usage_exits_2(house: PrivateDaemon, arguments: tuple[str, ...]) -> None:
    assert house.run(*arguments).returncode == 2


def test_an_unknown_verb_is_answered_with_a_guess(house: PrivateDaemon) -> None:
    assert "did you mean `carpool reload`?" in house.run("relaod").stderr


def test_every_verb_has_a_line_and_help(house: PrivateDaemon) -> None:
    shown = house.run("--help").stdout
    assert all(f"  {verb}" in shown for verb in main.VERBS)
    for verb in main.VERBS.keys() - {"bench", "demo"}:
        if main.VERBS[verb][0]:
            page = CliRunner().invoke(main.verbs, [verb, "--help"])
            assert (page.exit_code, page.stderr) == (0, ""), verb
        else:  # such a verb is taken before click
            done = house.run(verb, "--help")
            assert (done.returncode, done.stderr) == (0, ""), verb


def test_check_does_not_say_all_right_where_a_server_cannot_run(house: PrivateDaemon, tmp_path: Path) -> None:
    file = tmp_path / "carpool.json"
    file.write_text(
        '{"mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "tools_file": "gone.json"}}}'
    )
    done = house.run("check", "--config", str(file))
    assert done.returncode == 1
    assert json.loads(house.run("check", "--config", str(file), "--json").stdout)["ok"] is False
    assert done.stdout.endswith(f"{file}: not all right: b is misconfigured; a cannot start here\n")
    assert "there is no file" in done.stderr
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    said = house.run("check", "--config", str(empty)).stdout
    assert not said.startswith("\n")
    assert said.endswith(f"\n\n{empty}: all right\n")


def test_check_tells_settings_masks_values_and_refuses_mistakes(house: PrivateDaemon, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"mcpServers": {"a": {"command": "true", "env": {"TOKEN": "hunter2"}}}}')
    done = house.run("check", "--config", str(file))
    assert done.returncode == 0
    assert "mcpServers.a.command" in done.stdout
    assert "hunter2" not in done.stdout
    file.write_text('{"mcpServers": {"a": {"comand": "true"}}}')
    wrong = house.run("check", "--config", str(file), "--json")
    assert wrong.returncode == 2
    report = json.loads(wrong.stdout)
    assert report["ok"] is False
    assert "command" in report["problems"][0]["text"]


def test_a_reader_that_leaves_early_is_no_error(house: PrivateDaemon, broker: FakeBroker) -> None:
    shim = house.start("status", "--json")
    assert shim.stdout
    shim.stdout.close()
    shim.stdout = None
    _, err = shim.communicate(timeout=END_LIMIT_S)
    assert err == b""


def test_status_says_which_projects_wait_for_trust_and_what_was_passed_over() -> None:
    place = {
        "root": "/p",
        "file": "/p/.mcp.json",
        "servers": ["a", "b"],
        "problems": [],
        "warnings": ["w\x1b"],
    }
    said = [
        status_page({**NOTHING, "workspaces": [{**place, "trust": trust}]})
        for trust in ("untrusted", "changed", "trusted")
    ]
    assert "/p/.mcp.json is not trusted: a, b wait for `carpool trust /p`\nw\\x1b" in said[0]
    assert "/p/.mcp.json has changed since it was trusted: a, b wait" in said[1]
    assert "wait" not in said[2]
    broken = {**place, "problems": ["/p/.mcp.json:2: it ends"]}
    lost, kept = (
        status_page({**NOTHING, "workspaces": [{**broken, "trust": trust}]})
        for trust in ("nothing", "trusted")
    )
    prefix = "a project cannot be read, so its servers are not there: "
    assert f"{prefix}/p/.mcp.json:2: it ends\nw" in lost
    assert "/p/.mcp.json:2: it ends" in kept
    assert prefix not in kept


@behaviour("counters:failing")
def test_status_names_servers_whose_calls_fail_and_no_others() -> None:
    facts = {**NOTHING, "healthy": True, "reason": "calls_failing", "counters": STATUS["counters"]}
    head = status_page({**facts, "broker": STATUS["broker"]}).splitlines()[0]
    assert "all is well" not in head
    assert "most calls fail: time (7 of 7) in the last 60 s; see `carpool stats`" in head


def test_call_takes_arguments_as_words(house: PrivateDaemon, broker: FakeBroker) -> None:
    done = house.run("call", "time__now", "zone=UTC", "--arg", "-x=y", "count:=3", "--json")
    assert done.returncode == 0
    called = next(each for each in broker.heard if each.get("method") == "tools/call")
    assert called["params"]["arguments"] == {"zone": "UTC", "count": 3, "-x": "y"}
    done = house.run("call", "time__now", "secret")
    assert (done.returncode, "KEY=TEXT or KEY:=JSON" in done.stderr) == (2, True)
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    ("slug", "detail", "sentence"),
    [
        ("unknown_tool", "", "there is no tool 'gti' here; `carpool tools` lists them"),
        (
            "unknown_tool",
            "Did you mean git, got?",
            "there is no tool 'gti' here; did you mean git, got? `carpool tools` lists them",
        ),
        (
            "unknown_tool",
            "More than one server has it; say which: a__gti, b__gti.",
            "'gti': More than one server has it; say which: a__gti, b__gti.",
        ),
        ("unknown_prompt", "", "there is no prompt 'gti' here; `carpool prompts` lists them"),
        ("timed_out", "It took too long.", ""),
    ],
)
def test_a_person_is_not_told_to_list_the_tools_again(slug: str, detail: str, sentence: str) -> None:
    kind = KINDS[slug]
    text = " ".join(part for part in (kind.what, detail, kind.advice) if part)
    error = AnsweredError(msgspec.Raw(json.dumps({"data": {"code": slug}}).encode()), text)
    assert text_for_people(error, "gti") == sentence


@behaviour("doctor:faults")
@pytest.mark.parametrize(("running", "is_told"), [(RELEASE, False), ("0.0.1", True), ("?", False)])
def test_status_says_that_another_version_is_installed_than_runs(running: str, is_told: bool) -> None:
    page = status_page({**NOTHING, "broker": {"version": running}})
    assert (f"carpool {RELEASE} is installed; `carpool restart --all`" in page) is is_told
