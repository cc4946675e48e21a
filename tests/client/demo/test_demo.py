"""The demo believes nothing: answers are checked, figures follow from what agents saw, only its own dies."""

import contextlib
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.demo import command as verb
from carpool.demo import figures, report, repository
from carpool.demo.crowd import DemoAgents
from carpool.demo.figures import DemoCall, PrivateFigures, SharedFigures
from carpool.demo.questions import ZONES, question, text_of
from carpool.demo.sandbox import DemoCarpool, DemoError
from carpool.demo.show import ProgressDisplay
from carpool.launcher import sandbox_processes as processes
from tests.kit.private_daemon import until
from tests.kit.waits import END_LIMIT_S

COMMITS = [f"{n:040x}" for n in range(0xABC8, 0xABC0, -1)]
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


# --- questions ------------------------------------------------------------------------------------------


def time_answer(tool: str, arguments: dict[str, Any], now: datetime = NOW) -> str:
    """What the time server says, by the system's own zone tables."""

    def said(moment: datetime, zone: str) -> dict[str, str]:
        return {"timezone": zone, "datetime": moment.isoformat(timespec="seconds")}

    if tool == "get_current_time":
        zone = arguments["timezone"]
        return json.dumps(said(now.astimezone(ZoneInfo(zone)), zone))
    source, target = arguments["source_timezone"], arguments["target_timezone"]
    hour, minute = (int(part) for part in arguments["time"].split(":"))
    moment = now.astimezone(ZoneInfo(source)).replace(hour=hour, minute=minute)
    return json.dumps(
        {"source": said(moment, source), "target": said(moment.astimezone(ZoneInfo(target)), target)}
    )


def test_zones_are_as_far_from_greenwich_as_the_table_says_all_year() -> None:
    for zone, minutes in ZONES:
        for month in range(1, 13):
            moment = datetime(2026, month, 1, tzinfo=ZoneInfo(zone))
            assert moment.utcoffset() == timedelta(minutes=minutes), zone


@settings(deadline=None)
@given(agent=st.integers(0, 60), number=st.integers(0, 5000))
def test_right_answer_about_time_is_right(agent: int, number: int) -> None:
    asked = question("time", agent, number, "", COMMITS)
    assert asked.is_right(time_answer(asked.tool, asked.arguments), NOW, NOW)


@settings(deadline=None)
@given(agents=st.lists(st.integers(0, 19), min_size=2, max_size=2, unique=True), number=st.integers(0, 5000))
def test_answer_to_another_agents_question_is_wrong(agents: list[int], number: int) -> None:
    mine, other = (question("time", agent, number, "", COMMITS) for agent in agents)
    assert not mine.is_right(time_answer(other.tool, other.arguments), NOW, NOW)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"datetime": 7}', "[" * 100_000, '{"source": 1}'])
@pytest.mark.parametrize("number", range(2))
def test_nonsense_is_a_wrong_answer_and_no_crash(text: str, number: int) -> None:
    assert not question("time", 3, number, "", COMMITS).is_right(text, NOW, NOW)


def test_stale_time_is_wrong() -> None:
    asked = question("time", 0, 0, "", COMMITS)
    said = time_answer(asked.tool, asked.arguments)
    assert not asked.is_right(said, NOW + timedelta(seconds=5), NOW + timedelta(seconds=6))


@pytest.mark.parametrize("result", [{}, {"content": None}, {"content": [None, "x"]}, {"content": "x"}])
def test_result_without_text_has_no_text(result: dict[str, Any]) -> None:
    assert text_of(result) == ""


def git_answer(repo: Path, tool: str, arguments: dict[str, Any]) -> str:
    """What git itself says."""
    words = {
        "git_log": ["log", f"--max-count={arguments.get('max_count')}"],
        "git_show": ["show", str(arguments.get("revision"))],
        "git_status": ["status"],
        "git_diff": ["diff", str(arguments.get("target"))],
    }[tool]
    environ = {**os.environ, **repository.QUIET}
    done = subprocess.run(["git", *words], cwd=repo, env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def test_repository_is_made_without_identity_and_deaf_to_the_users_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[commit]\n\tgpgsign = true\n[user]\n\tuseConfigOnly = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    commits = repository.make(tmp_path / "repo")
    assert len(set(commits)) == repository.COMMITS
    assert commits == repository.make(tmp_path / "again")


def test_right_answer_about_git_is_right_and_others_are_wrong(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    commits = repository.make(repo)
    by_arguments = {}
    for agent in range(4):
        for number in range(32):
            asked = question("git", agent, number, str(repo), commits)
            by_arguments[asked.tool, json.dumps(asked.arguments)] = asked
    assert {tool for tool, _ in by_arguments} == {"git_log", "git_show", "git_status", "git_diff"}
    said = {key: git_answer(repo, asked.tool, asked.arguments) for key, asked in by_arguments.items()}
    for key, asked in by_arguments.items():
        right = [other for other, text in said.items() if asked.is_right(text, NOW, NOW)]
        assert right == [key]
        assert not asked.is_right("", NOW, NOW)


# --- figures --------------------------------------------------------------------------------------------


def call(server: str, *tries: tuple[float, float, str]) -> DemoCall:
    return DemoCall(server, "tool", list(tries))


def test_private_copies_are_scaled_by_what_each_further_one_added() -> None:
    scaled = figures.private([100, 190, 280], agents=10)
    assert (scaled.each_further_bytes, scaled.scaled_bytes) == (90, 280 + 7 * 90)
    assert figures.private([100], agents=1).scaled_bytes == 100
    assert figures.private([100, 190], agents=2).scaled_bytes == 190


def test_kill_is_told_as_the_agents_saw_it() -> None:
    calls = [
        call("git", (9.0, 9.5, "ok")),  # before
        call("git", (9.9, 10.1, "lost"), (10.1, 12.5, "ok")),
        call("git", (9.8, 10.2, "lost"), (10.2, 10.3, "unavailable"), (10.8, 12.0, "ok")),
        call("git", (9.7, 10.05, "ok")),  # its answer was on the way
        call("time", (10.0, 10.4, "ok")),
        call("time", (9.9, 13.0, "ok")),  # after the new process is back
    ]
    told = figures.kill(calls, "git", 10.0)
    assert (told.open_calls, told.lost, told.refused, told.repeated_well) == (3, 2, 1, 2)
    assert told.lost_within_s == pytest.approx(0.2)
    assert told.back_after_s == pytest.approx(2.0)
    assert told.others_meanwhile == 1
    assert told.others_slowest_s == pytest.approx(0.4)


def test_server_that_never_came_back_has_no_time_of_return() -> None:
    told = figures.kill([call("git", (9.9, 10.1, "lost"))], "git", 10.0)
    assert told.back_after_s is None
    assert told.others_slowest_s is None


def test_speed_counts_good_answers_of_the_window_only() -> None:
    calls = [
        call("time", (0.0, 0.5, "ok")),
        call("time", (0.9, 1.1, "ok")),
        call("time", (1.1, 1.2, "wrong")),
    ]
    found = figures.speed(calls, "time", 1.0, 3.0)
    assert (found.calls, found.per_s) == (1, 0.5)
    assert found.p50_s == pytest.approx(0.2)
    assert figures.speed(calls, "git", 1.0, 3.0).p99_s is None


def test_no_answers_at_all_is_not_all_right() -> None:
    assert not figures.answers([]).all_right
    assert figures.answers([call("git", (0, 1, "lost"), (1, 2, "ok"))]).all_right
    assert not figures.answers([call("git", (0, 1, "ok")), call("git", (0, 1, "error"))]).all_right


# --- report ---------------------------------------------------------------------------------------------


def findings(agents: int = 20, **changed: Any) -> report.Facts:
    good = [call(name, (1.0, 1.01, "ok")) for name in ("time", "git")]
    shared: dict[str, Any] = {
        "shim_bytes": 64 << 20,
        "own": {"broker 1": 20 << 20, "launcher 2": 7 << 20},
        "instances": {"time": 55 << 20, "git": 60 << 20},
        "instance_count": 2,
        "first_s": 1.5,
        "later_s": [0.2] * (agents - 1),
        "lap": good,
        "steady": good,
        "from_s": 0.0,
        "to_s": 5.0,
        "struck": [call("git", (9.9, 10.1, "lost"), (10.1, 12.5, "ok")), *good],
        "killed_s": 10.0,
        "pid": 4194304,
        "new_pid": 4194303,
        "sessions": agents,
    }
    measured = [(100 + 98 * n) << 20 for n in range(min(5, agents))]
    private = PrivateFigures(figures.private(measured, agents), [1.0, 1.1], good)
    return report.facts(agents, changed.pop("kind", "PSS"), 2, private, SharedFigures(**(shared | changed)))


@pytest.mark.parametrize("agents", [1, 2, 20, 60])
@pytest.mark.parametrize("kind", ["PSS", "RSS"])
def test_report_fits_a_terminal_and_shows_its_arithmetic(agents: int, kind: str) -> None:
    found = findings(agents, kind=kind)
    text = f"{report.opening(agents)}\n{report.table(found)}"
    assert max(len(line) for line in text.splitlines()) <= 80
    assert kind in text
    assert ("Scaled to" in text) == (agents > 5)
    if agents == 20:
        assert "492 MB + 15 more x 98.0 MB = 1962 MB" in text
        assert "1 ended as lost within 100 ms" in text
        assert "2.5 s after" in text


def test_findings_are_json_with_numbers() -> None:
    found = json.loads(json.dumps(findings()))
    assert found["carpool"]["processes"] == {"servers": 2, "own": 2, "shims": 20, "together": 24}
    assert found["kill"]["lost"] == 1
    assert found["answers"] == {"right": 9, "wrong": 0, "failed": 0}


def test_kill_that_met_no_call_is_told_so() -> None:
    found = findings(struck=[call("git", (11.0, 12.5, "ok"))])
    assert "No call was lost" in report.table(found)
    assert report.problems(found) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_that_nobody_reads_any_more_stops_nothing() -> None:
    hear, tell = os.pipe()
    os.close(hear)
    stream = os.fdopen(tell, "w")
    ProgressDisplay(stream).print_step("said to nobody")
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_progress_is_whole_lines_where_nobody_watches() -> None:
    stream = io.StringIO()
    show = ProgressDisplay(stream)
    show.show_live("working")
    show.print_step("done")
    assert stream.getvalue().endswith("  done\n")
    assert "working" not in stream.getvalue()


def test_progress_on_a_terminal_replaces_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    show = ProgressDisplay(stream)
    show.show_live("x" * 200)
    show.show_live("too soon for anybody to read")
    show.print_step("done")
    live, rest = stream.getvalue().split("\r\x1b[K")
    assert len(live) == 39
    assert rest.endswith("  done\n")


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"sessions": 19}, "attached"),
        ({"lap": [call("git", (1, 2, "wrong"))]}, "wrong"),
        ({"struck": [call("git", (9.9, 10.1, "lost"))]}, "never answered"),
    ],
)
def test_run_that_is_no_success_says_why(changed: dict[str, Any], word: str) -> None:
    assert not report.problems(findings())
    assert word in " ".join(report.problems(findings(**changed)))


# --- processes ------------------------------------------------------------------------------------------


@pytest.fixture
def house() -> Iterator[DemoCarpool]:
    house = DemoCarpool()
    yield house
    assert house.close() == []


def test_the_demo_opens_no_http_door(house: DemoCarpool) -> None:
    assert json.loads(house.configure()).keys() == {"mcpServers"}, "a door would be a key of its own"


def sleeper(environ: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env=environ)


def test_only_processes_of_the_house_are_seen_and_killed(house: DemoCarpool) -> None:
    ours, stranger = sleeper(house.environ), sleeper(dict(os.environ))
    try:
        assert [pid for pid, _ in processes.marked(house.directory)] == [ours.pid]
        assert processes.kill_marked(stranger.pid, house.directory) is None
        assert processes.kill_marked(ours.pid, house.directory) is not None
        assert ours.wait(10) == -9
        assert stranger.poll() is None
    finally:
        for process in (ours, stranger):
            process.kill()
            process.wait()


def test_house_says_what_it_had_to_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carpool.launcher.sandbox._CLEAR_S", 0.1)
    house = DemoCarpool()
    left = sleeper(house.environ)
    try:
        until(lambda: left.pid in dict(processes.marked(house.directory)), "it bears the mark")
        assert [text for text in house.close() if str(left.pid) in text and "had to kill" in text]
        assert left.wait(10) == -9
        assert not house.base.exists()
    finally:
        left.kill()
        left.wait()


def test_house_has_a_directory_short_enough_for_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    house = DemoCarpool()
    assert house.close() == []
    assert len(house.directory) < 60


def test_memory_counts_descendants_once() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE)
    children: list[int] = []
    try:
        assert shell.stdout is not None
        shell.stdout.readline()
        children = [pid for pid, (parent, _) in processes._table().items() if parent == shell.pid]
        for kind in (processes.memory_kind(), "RSS"):
            alone = processes.memory_bytes([shell.pid], kind, families=False)
            both = processes.memory_bytes([shell.pid, shell.pid], kind)
            assert 0 < alone < both < 100 << 20
        assert len(children) == 1
    finally:
        for child in children:
            os.kill(child, 9)
        shell.communicate(timeout=END_LIMIT_S)


# --- agents ---------------------------------------------------------------------------------------------

SERVER = r"""
import json, sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo
mode, calls = sys.argv[1], 0
def say(id, **body): print(json.dumps({"jsonrpc": "2.0", "id": id, **body}), flush=True)
def ours(id, **error):
    say(id, result={"content": [], "isError": True, "_meta": {"carpool/error": error}})
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") in ("initialize", "tools/list"):
        print('{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
        say(m["id"], result={})
    if m.get("method") != "tools/call":
        continue
    calls += 1
    if mode == "lost" and calls == 1: ours(m["id"], delivered="maybe"); continue
    if mode == "unavailable" and calls == 1: ours(m["id"], delivered="no", retry_after_s=0.05); continue
    if mode == "error": say(m["id"], result={"content": [], "isError": True}); continue
    if mode == "dies": break
    zone = "UTC" if mode == "wrong" else m["params"]["arguments"]["timezone"]
    now = datetime.now(ZoneInfo(zone)).isoformat(timespec="seconds")
    text = json.dumps({"timezone": zone, "datetime": now})
    say(m["id"], result={"content": [{"type": "text", "text": text}]})
"""


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[DemoAgents]:
    agents = DemoAgents(dict(os.environ), tmp_path, time.monotonic() + 30)
    yield agents
    agents.close()


def plan(tmp_path: Path, mode: str) -> dict[str, Any]:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    wire = {"argv": [sys.executable, str(script), mode], "env": {}, "prefixes": {"time": ""}, "hurry": False}
    return {"number": 0, "repo": "", "commits": COMMITS, "wires": [wire]}


@pytest.mark.parametrize(
    ("mode", "outcomes"),
    [
        ("well", ["ok"]),
        ("wrong", ["wrong"]),
        ("error", ["error"]),
        ("lost", ["lost", "ok"]),
        ("unavailable", ["unavailable", "ok"]),
    ],
)
def test_agent_tells_every_try_of_its_first_call(
    agents: DemoAgents, tmp_path: Path, mode: str, outcomes: list[str]
) -> None:
    agents.start(plan(tmp_path, mode))
    said = agents.attached(20)[0]
    (first,) = figures.calls_of(said["calls"])
    assert [outcome for _, _, outcome in first.tries] == outcomes
    assert said["first_s"]["time"] > 0


def test_agent_whose_server_dies_ends_the_demo_with_a_reason(agents: DemoAgents, tmp_path: Path) -> None:
    agents.start(plan(tmp_path, "dies"))
    with pytest.raises(DemoError, match="agent 0 failed"):
        agents.attached(20)


def test_a_demo_whose_whole_time_is_over_does_not_blame_the_step_that_it_was_at(tmp_path: Path) -> None:
    agents = DemoAgents(dict(os.environ), tmp_path, time.monotonic())
    try:
        agents.start(plan(tmp_path, "well"))
        with pytest.raises(DemoError, match="the time of the demo was over before all of 1 agents"):
            agents.attached(20)
    finally:
        agents.close()


# --- the verb -------------------------------------------------------------------------------------------


def test_missing_servers_are_named_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    said = verb.lacking()
    assert said.startswith("mcp-server-time and mcp-server-git must be installed first")
    assert said.endswith(" mcp-server-time mcp-server-git")


def test_demo_without_its_servers_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "lacking", lambda: "something is missing")
    with pytest.raises(SystemExit) as end:
        verb.demo.main(["--agents", "2"], standalone_mode=False)
    assert end.value.code == 2
