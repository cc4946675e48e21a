"""The bench measures what it says: right answers counted as right, wrong ones shown, nothing left running."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import soak
from bench.arms import SocketRelay, make_arms
from carpool.bench import agents
from carpool.bench import processes as bench_procs
from carpool.bench import scenarios as bench_scenarios
from carpool.bench.agents import BenchAgents, Load
from carpool.bench.arms import ECHO_ARGV, DirectArm, daemon_roles
from carpool.bench.attach import BenchError
from carpool.bench.command import bench
from carpool.bench.report import as_json, markdown, plain, ratios, slower, speed_table, summarise
from carpool.bench.scenarios import SCENARIOS, Scenario, WindowSample, measure, quantile, run_rounds
from carpool.bench.spawn import end_all, spawn_piped
from carpool.bench.work import EchoWorkload, PayloadWorkload, ToolWorkload, answer_id, error_kind
from carpool.demo.echo_server import answer

SHORT = Load(in_flight=4, seconds=60.0, warmup_s=0.05, calls=40, patience_s=20.0)
"""A window of so many answers, not of so much time: the machine may stand still for a moment."""

GREETING = r"""
import json, sys
def say(id, **body): print(json.dumps({"jsonrpc": "2.0", "id": id, **body}), flush=True)
def result(id, text, **more):
    say(id, result={"content": [{"type": "text", "text": text}], **more})
calls = 0
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize": say(m["id"], result={})
    elif m.get("method") == "tools/list": say(m["id"], result={"tools": []})
    elif m.get("method") == "tools/call":
        calls += 1; id = m["id"]; text = m["params"]["arguments"].get("text", "")
"""


def call(number: object, tool: str, arguments: object) -> bytes:
    message = {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def test_echo_server_gives_the_text_back_under_the_callers_id() -> None:
    reply = json.loads(answer(call("q", "echo", {"text": 'é"'})))
    assert reply["id"] == "q"
    assert reply["result"] == {"content": [{"type": "text", "text": 'é"'}], "isError": False}


def test_echo_server_gives_exactly_the_bytes_asked_for() -> None:
    assert (
        len(json.loads(answer(call(1, "payload", {"bytes": 70_000})))["result"]["content"][0]["text"])
        == 70000
    )


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[1]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"id":1,"method":"tools/call","params":[]}',
        b'{"id":1,"method":"tools/call","params":{"name":"echo","arguments":[1]}}',
        b'{"id":1,"method":"tools/call","params":{"name":"other"}}',
        b'{"id":1,"method":"resources/list"}',
    ],
)
def test_echo_server_answers_what_it_cannot_serve_with_an_error(line: bytes) -> None:
    assert "error" in json.loads(answer(line))


@pytest.mark.parametrize("arguments", [{}, {"text": 1}])
def test_echo_server_refuses_wrong_arguments_as_a_tool_error(arguments: object) -> None:
    assert json.loads(answer(call(1, "echo", arguments)))["result"]["isError"] is True


def test_echo_server_leaves_notifications_unanswered() -> None:
    assert answer(b'{"jsonrpc":"2.0","method":"notifications/initialized"}') == ""


@settings(deadline=None, max_examples=60)
@given(number=st.integers(1, 2**53), last=st.booleans(), blanks=st.booleans(), size=st.integers(0, 300))
def test_the_id_of_an_answer_is_found_first_or_last(number: int, last: bool, blanks: bool, size: int) -> None:
    result = {"content": [{"type": "text", "text": "x" * size}]}
    message = {"result": result, "jsonrpc": "2.0", "id": number} if last else {"id": number, "result": result}
    separators = None if blanks else (",", ":")
    assert answer_id(json.dumps(message, separators=separators).encode()) == number


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=80))
def test_any_bytes_have_an_id_or_none(line: bytes) -> None:
    assert answer_id(line) >= -1


@pytest.mark.parametrize("tool", ["echo", "100%s__echo", 'a"b'])
def test_requests_are_calls_of_the_tool(tool: str) -> None:
    for work in (EchoWorkload(tool), PayloadWorkload(tool, 9), ToolWorkload(tool, b'{"text":"100%d"}')):
        message = json.loads(work.request(3, 17))
        assert (message["id"], message["method"], message["params"]["name"]) == (17, "tools/call", tool)


def test_an_echo_of_another_call_is_a_fault() -> None:
    work = EchoWorkload("echo")
    right, swapped = (
        json.dumps(
            {"jsonrpc": "2.0", "id": 7, "result": {"content": [{"type": "text", "text": text}]}}
        ).encode()
        for text in ("a3-7", "a4-7")
    )
    assert work.is_right(3, 7, right)
    assert not work.is_right(3, 7, swapped)
    assert work.fault(3, 7, swapped) == "the text of another call"


def test_errors_are_told_by_kind_and_never_by_text() -> None:
    failed = {"result": {"isError": True, "content": [{"type": "text", "text": "secret"}]}}
    assert error_kind(failed) == "isError from the tool"
    failed["result"]["_meta"] = {"carpool/error": {"code": "instance_died", "delivered": "maybe"}}
    assert error_kind(failed) == "carpool: instance_died (delivered: maybe)"
    assert error_kind({"error": {"code": -32602, "message": "secret"}}) == "JSON-RPC error -32602"
    assert error_kind({"result": {"content": []}}) == ""


def test_a_result_that_only_speaks_of_errors_is_good() -> None:
    text = json.dumps({"isError": True})
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": text}]}})
    assert ToolWorkload("t", b"{}").fault(0, 1, line.encode()) == ""


@pytest.fixture
def crowds() -> Iterator[list[object]]:
    """Started by a test through `crowd_of`; ended here, whatever happened."""
    started: list[object] = []
    yield started
    for each in started:
        if isinstance(each, BenchAgents):
            each.close()
    processes = [each for each in started if isinstance(each, subprocess.Popen)]
    end_all(processes)
    assert all(process.returncode is not None for process in processes)


def crowd_of(started: list[object], *argvs: list[str]) -> BenchAgents:
    pairs = [spawn_piped(argv) for argv in argvs]
    started += [process for process, _ in pairs]
    crowd = BenchAgents([attachment for _, attachment in pairs], patience_s=10.0)
    started.insert(0, crowd)
    crowd.greet()
    return crowd


def server(body: str) -> list[str]:
    return [sys.executable, "-S", "-c", GREETING + "        " + body]


def test_every_answer_in_the_window_is_counted_once(crowds: list[object]) -> None:
    crowd = crowd_of(crowds, ECHO_ARGV, ECHO_ARGV)
    measured = crowd.run_load(EchoWorkload("echo"), SHORT)
    assert measured.calls > 0
    assert (measured.errors, measured.unanswered) == ({}, 0)
    assert 0 < len(measured.latencies_s) <= measured.calls
    assert list(measured.latencies_s) == sorted(measured.latencies_s)


def test_a_count_ends_the_window_early(crowds: list[object]) -> None:
    crowd = crowd_of(crowds, ECHO_ARGV)
    measured = crowd.run_load(EchoWorkload("echo"), Load(in_flight=4, seconds=60.0, warmup_s=0.0, calls=20))
    assert 20 <= measured.calls < 60


def test_answers_larger_than_a_pipe_are_put_together(crowds: list[object]) -> None:
    crowd = crowd_of(crowds, ECHO_ARGV)
    measured = crowd.run_load(PayloadWorkload("payload", 300_000), SHORT)
    assert measured.calls > 0
    assert (measured.errors, measured.unanswered) == ({}, 0)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("result(id, text, isError=True)", "isError from the tool"),
        ("result(id, 'stale')", "the text of another call"),
        ("say(id, error={'code': -32000, 'message': text})", "JSON-RPC error -32000"),
        ("result(id, text); result(id, text)", "an answer to no open call"),
        ("print('junk', flush=True); result(id, text)", "not a JSON object"),
        ("say(id)", "no result"),
    ],
)
def test_wrong_answers_are_counted_by_kind(crowds: list[object], body: str, kind: str) -> None:
    measured = crowd_of(crowds, server(body)).run_load(EchoWorkload("echo"), SHORT)
    assert measured.errors[kind] > 0
    assert measured.unanswered == 0


def test_a_ping_with_the_id_of_an_open_call_is_answered_and_not_taken_for_its_answer(
    crowds: list[object],
) -> None:
    body = "print(json.dumps({'jsonrpc': '2.0', 'id': id, 'method': 'ping'}), flush=True); result(id, text)"
    measured = crowd_of(crowds, server(body)).run_load(EchoWorkload("echo"), SHORT)
    assert measured.calls > 0
    assert measured.errors == {}


class Warming(EchoWorkload):
    """Time stands still until so many answers are judged, and then goes on."""

    def __init__(self, failures: int) -> None:
        super().__init__("echo")
        self.left = failures

    def fault(self, agent: int, number: int, line: bytes) -> str:
        self.left -= 1
        return super().fault(agent, number, line)

    def now_s(self) -> float:
        return 0.0 if self.left > 0 else time.perf_counter()


def test_failures_in_the_warm_up_are_told_apart_from_those_in_the_window(
    crowds: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "result(id, text) if calls > 4 else say(id, error={'code': 7})"
    crowd, work = crowd_of(crowds, server(body)), Warming(4)
    monkeypatch.setattr(agents, "now_s", work.now_s)
    measured = crowd.run_load(work, SHORT)
    assert measured.errors == {"JSON-RPC error 7 (outside the window)": 4}


def test_a_silent_server_ends_the_bench_with_its_calls_unanswered(crowds: list[object]) -> None:
    load = Load(in_flight=3, seconds=0.1, warmup_s=0.0, patience_s=0.2)
    measured = crowd_of(crowds, server("pass")).run_load(EchoWorkload("echo"), load)
    assert (measured.calls, measured.unanswered) == (0, 3)


def test_a_server_that_dies_leaves_the_others_going(crowds: list[object]) -> None:
    crowd = crowd_of(crowds, server("sys.exit()"), ECHO_ARGV)
    measured = crowd.run_load(EchoWorkload("echo"), SHORT)
    assert measured.calls > 0
    assert measured.unanswered == SHORT.in_flight


def test_a_server_that_does_not_greet_is_said_so() -> None:
    process, attachment = spawn_piped([sys.executable, "-S", "-c", ""])
    crowd = BenchAgents([attachment], patience_s=10.0)
    try:
        with pytest.raises(BenchError, match="closed"):
            crowd.greet()
    finally:
        crowd.close()
        end_all([process])


def test_cpu_and_memory_of_a_process_are_seen_and_of_a_gone_one_are_not() -> None:
    cpu_s, pss_bytes = bench_procs.cpu_s(os.getpid()), bench_procs.pss_bytes(os.getpid())
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("no /proc here")
    assert cpu_s is not None
    assert cpu_s > 0
    assert pss_bytes is not None
    own_bytes = bench_procs.own_bytes(os.getpid())
    assert own_bytes is not None
    assert pss_bytes > own_bytes > 1_000_000
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert bench_procs.cpu_s(process.pid) is None
    assert bench_procs.pss_bytes(process.pid) is bench_procs.own_bytes(process.pid) is None


def test_quantiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert quantile([], 0.5) != quantile([], 0.5)


def sample(arm: str, number: int, calls_per_s: float, **more: object) -> WindowSample:
    fields: dict[str, object] = {
        "scenario": "1x1",
        "calls": 10,
        "seconds": 1.0,
        "p50_s": 0.001,
        "p90_s": 0.001,
        "p99_s": 0.002,
        "max_s": 0.003,
        "errors": {},
        "unanswered": 0,
        "driver_cpu_us_per_call": 1.0,
        "cpu_us_per_call": {"broker": 5.0},
        "pss_bytes": {"broker": [1_000_000]},
        **more,
    }
    return WindowSample(arm=arm, round=number, calls_per_s=calls_per_s, **fields)  # type: ignore[arg-type]  # a test's shorthand


def test_ratios_are_taken_within_a_round() -> None:
    # The machine is ten times slower in round 1: both sides are, so the ratio stays.
    mine = [sample("carpool", 0, 500.0), sample("carpool", 1, 50.0), sample("carpool", 2, 500.0)]
    direct = [sample("direct", 0, 1000.0), sample("direct", 1, 100.0), sample("direct", 2, 1000.0)]
    assert ratios(mine, {"direct": direct}) == {"direct": 0.5}


def test_the_summary_adds_up_errors_and_takes_medians() -> None:
    samples = [
        sample("a", 0, 10.0, errors={"x": 1}),
        sample("a", 1, 30.0, errors={"x": 2}, unanswered=1),
        sample("a", 2, 20.0),
    ]
    cell = summarise(samples)["1x1"]["a"]
    assert (cell.calls_per_s, cell.errors, cell.unanswered, cell.rounds) == (20.0, {"x": 3}, 1, 3)


def test_a_ratio_far_below_an_earlier_run_is_told_and_a_slower_machine_is_not() -> None:
    def run(carpool: float, direct: float) -> list[WindowSample]:
        return [sample("carpool-sockets", 0, carpool), sample("direct", 0, direct)]

    earlier = as_json(run(500.0, 1000.0), [], {})
    assert slower(summarise(run(50.0, 100.0)), earlier, 0.6) == []
    (told,) = slower(summarise(run(200.0, 1000.0)), earlier, 0.6)
    assert "1x1 carpool-sockets" in told


def test_tables_have_a_row_for_each_scenario_and_arm_and_json_has_no_nan() -> None:
    samples = [sample("direct", 0, 10.0), sample("carpool", 0, 5.0, p50_s=float("nan"))]
    table = speed_table(summarise(samples), ["direct"])
    assert len(markdown(table).splitlines()) == 4
    assert "0.50" in plain(table)
    assert "NaN" not in json.dumps(as_json(samples, [], {}))


def is_installed() -> bool:
    """The daemon reads its own version: a bare source tree cannot run it."""
    try:
        version("carpool")
    except PackageNotFoundError:
        return False
    return True


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows of scenarios end with so many answers, if not with their time."""
    monkeypatch.setattr(bench_scenarios, "Load", partial(Load, calls=100))


needs_carpool = pytest.mark.skipif(not is_installed(), reason="carpool is not installed in this environment")


@pytest.mark.parametrize(
    "name",
    [
        "direct",
        "relay-sockets",
        pytest.param("carpool-sockets", marks=needs_carpool),
        pytest.param("carpool-shims", marks=needs_carpool),
    ],
)
@pytest.mark.usefixtures("counted")
def test_an_arm_serves_every_scenario_and_leaves_nothing_running(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (arm,) = make_arms([name])
    pids: set[int] = set()
    asked = arm.roles

    def roles() -> dict[str, list[int]]:
        found = asked()
        pids.update(*found.values())
        return found

    monkeypatch.setattr(arm, "roles", roles)
    try:
        arm.start()
        for scenario in SCENARIOS[:3] + SCENARIOS[-1:]:
            taken = measure(arm, scenario, seconds=60.0, warmup_s=0.05)
            assert taken.calls > 0
            assert (taken.errors, taken.unanswered) == ({}, 0)
    finally:
        arm.stop()
    assert pids
    # A detached launcher that has ended may wait for init to reap it: it has no command line any more.
    assert not [bench_procs.words(pid) for pid in pids if bench_procs.words(pid)]


def test_more_agents_than_private_servers_are_one_pipe_in_the_direct_arm() -> None:
    assert DirectArm().shape(8, 1) == (8, 1)
    assert DirectArm().shape(200, 2) == (1, 400)


def test_rounds_take_every_scenario_through_every_arm_and_begin_with_another() -> None:
    names = ["direct", "relay-sockets"]
    scenarios = [Scenario(name="1x2", agents=1, in_flight=2)]
    samples, firsts = run_rounds(
        lambda: make_arms(names), scenarios, rounds=2, seconds=0.05, warmup_s=0.02, say=lambda _: None
    )
    assert [(each.round, each.arm) for each in samples] == [
        (0, "direct"), (0, "relay-sockets"), (1, "relay-sockets"), (1, "direct"),
    ]  # fmt: skip
    assert all(each.cold_s > 0 and each.warm_s > 0 for each in firsts)


# --- the verb ----------------------------------------------------------------------------------------------


@pytest.fixture
def relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketRelay]:
    """The minimal relay where the verb expects the running broker."""
    arm = SocketRelay(shims=False)
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", arm.runtime_dir)
    try:
        arm.start()
        yield arm
    finally:
        arm.stop()


@pytest.mark.usefixtures("counted", "relay")
def test_the_verb_loads_a_named_tool_and_tells_its_figures() -> None:
    arguments = ["echo", "--args", '{"text": "hi"}', "--agents", "4", "--in-flight", "2", "--seconds", "2"]
    done = CliRunner().invoke(bench, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["calls"] > 0
    assert told["errors"] == {}
    assert {"calls_per_s", "p50_s", "p90_s", "p99_s", "max_s", "unanswered", "cpu_us_per_call"} <= set(told)
    assert "calls/s" in CliRunner().invoke(bench, arguments).stdout


def test_a_tool_that_only_fails_is_shown_and_is_exit_code_1(relay: SocketRelay) -> None:
    done = CliRunner().invoke(bench, ["echo", "--seconds", "0.1"])
    assert done.exit_code == 1
    assert "isError from the tool" in done.stdout


def test_an_unknown_tool_is_not_loaded(relay: SocketRelay) -> None:
    done = CliRunner().invoke(bench, ["no_such", "--seconds", "0.1"])
    assert done.exit_code == 1
    assert "-32602" in done.stderr


def test_without_a_broker_the_verb_ends_with_69(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(tmp_path / "none"))
    done = CliRunner().invoke(bench, ["any_tool"])
    assert done.exit_code == 69
    assert "carpool up" in done.stderr


@needs_carpool
def test_without_a_tool_the_verb_compares_carpool_with_a_direct_pipe() -> None:
    done = CliRunner().invoke(bench, ["--quick", "--agents", "2", "--seconds", "0.1", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert set(told) == {"machine", "summary", "first_calls", "samples"}
    assert set(told["summary"]["2x1"]) == {"direct", "carpool-sockets"}
    assert {"broker", "supervisor", "server"} <= set(
        told["summary"]["2x1"]["carpool-sockets"]["cpu_us_per_call"]
    )


@pytest.mark.parametrize(
    "arguments", [["t", "--args", "{"], ["t", "--args", "[1]"], ["--args", '{"a":1}'], ["t", "--agents", "0"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(bench, arguments).exit_code == 2


def test_a_soak_says_before_it_begins_that_it_cannot_draw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.soak_report.find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        soak.main(["--plot", "x.svg"])
    assert (
        f"--plot needs matplotlib: {sys.executable} -m pip install 'matplotlib>=3.10'"
        in capsys.readouterr().err
    )


def test_sessions_at_other_nodes_are_no_processes_of_the_benchmark() -> None:
    session = {"pid": 0}
    status = {
        "broker": {"pid": os.getpid()},
        "supervisors": [],
        "servers": {"git": {"instances": [session]}},
    }
    assert "server" not in daemon_roles(status)
