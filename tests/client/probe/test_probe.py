"""The divergence probe: it blames the other session only where nothing else can be to blame."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.cli import check
from carpool.launcher.runtime_place import RuntimePlace
from carpool.launcher.sandbox import PrivateCarpool
from carpool.probe import probe
from carpool.probe.config import ALONE, SHARED, probe_config
from carpool.probe.judge import (
    ROUNDS,
    ComparedAnswer,
    Outcome,
    compared_answer,
    judge,
    result_of,
    shared_order,
)
from carpool.probe.run import ProbeCall, ProbedTool, ProbeRun
from carpool_protocol.config.reading.parse import read_config
from tests.behaviours import behaviour
from tests.kit.fake_broker import STATUS, FakeBroker
from tests.kit.private_daemon import PrivateDaemon

# --- judgement ------------------------------------------------------------------------------------------

Instance = Callable[[str], str]
"""What one running process answers to each tool, as text; `!` first makes it an error."""


class FakeProbeRun:
    """The experiment on servers that are functions. `start`: makes an instance."""

    def __init__(self, start: Callable[[], Instance]) -> None:
        self._start = start
        self.private_runs = 0

    def run_private(self, tries: Sequence[ProbeCall], runs: int) -> list[list[ComparedAnswer]]:
        self.private_runs += runs
        return [
            [answer(instance, each) for _ in range(ROUNDS) for each in tries]
            for instance in [self._start() for _ in range(runs)]
        ]

    def run_shared(self, tries: Sequence[ProbeCall]) -> list[list[ComparedAnswer]]:
        instance = self._start()
        heard: list[list[ComparedAnswer]] = [[], []]
        for session, call in shared_order(len(tries)):
            heard[session].append(answer(instance, tries[call]))
        return heard


def answer(instance: Instance, each: ProbeCall) -> ComparedAnswer:
    text = instance(each.tool)
    return compared_answer({"content": [text]}, refused=text.startswith("!"))


def counter() -> Instance:
    counts = {"n": 0}

    def call(tool: str) -> str:
        counts["n"] += tool == "increment"
        return "fixed" if tool == "version" else str(counts["n"])

    return call


def outcomes_of(start: Callable[[], Instance], *tools: str) -> list[Outcome]:
    return probe.experiment(FakeProbeRun(start), [ProbeCall(tool) for tool in tools])


@behaviour("modes:probe")
def test_a_counter_diverges_and_its_other_tools_do_not() -> None:
    assert outcomes_of(counter, "increment", "read", "version") == ["diverged", "diverged", "agreed"]


def test_a_tool_whose_state_nobody_changed_agrees() -> None:
    assert outcomes_of(counter, "read") == ["agreed"]


def test_what_differs_between_processes_is_not_counted() -> None:
    pids = itertools.count(100)

    def start() -> Instance:
        pid = str(next(pids))
        return lambda tool: pid

    assert outcomes_of(start, "pid") == ["not_deterministic"]


def test_state_outside_the_process_is_not_blamed_on_sharing() -> None:
    file = itertools.count()
    assert outcomes_of(lambda: lambda tool: str(next(file)), "append") == ["not_deterministic"]


@given(st.lists(st.integers(0, 1), min_size=64, max_size=64))
@settings(deadline=None)
def test_a_clock_never_diverges_however_slowly_it_ticks(ticks: list[int]) -> None:
    clock = itertools.accumulate(ticks)
    [outcome] = outcomes_of(lambda: lambda tool: str(next(clock)), "now")
    assert outcome in ("agreed", "not_deterministic")


def test_a_third_private_run_is_made_only_to_confirm_that_sessions_differ() -> None:
    calm = FakeProbeRun(lambda: lambda tool: "same")
    probe.experiment(calm, [ProbeCall("a")])
    assert calm.private_runs == 2
    torn = FakeProbeRun(counter)
    probe.experiment(torn, [ProbeCall("increment")])
    assert torn.private_runs == 3


def test_errors_alone_show_nothing_but_an_error_that_another_session_lifts_does() -> None:
    assert outcomes_of(lambda: lambda tool: "!no", "broken") == ["failed"]

    def browser() -> Instance:
        pages: list[str] = []

        def call(tool: str) -> str:
            if tool == "open":
                pages.append("p")
                return "opened"
            return "page" if pages else "!no page"

        return call

    assert outcomes_of(browser, "look", "open") == ["diverged", "agreed"]


@behaviour("modes:probe")
@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=4))
def test_a_server_without_state_never_diverges(tools: list[str]) -> None:
    assert set(outcomes_of(lambda: lambda tool: f"answer {tool}", *tools)) == {"agreed"}


def test_meta_of_an_answer_is_not_compared_and_everything_else_is() -> None:
    plain = {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": 1}}
    assert compared_answer({**plain, "_meta": {"trace": 7}}) == compared_answer(plain)
    assert compared_answer({**plain, "structuredContent": {"a": 2}}) != compared_answer(plain)
    assert compared_answer({**plain, "isError": True}).is_error
    assert compared_answer("text") != compared_answer(None)


@given(st.integers(1, 5))
def test_both_sessions_make_all_calls_in_order_on_the_shared_instance(calls: int) -> None:
    made = shared_order(calls)
    for session in (0, 1):
        assert [call for who, call in made if who == session] == list(range(calls)) * ROUNDS
    assert made[:calls] == [(0, call) for call in range(calls)]


def test_each_place_of_a_transcript_is_compared_with_the_same_place() -> None:
    def transcript(*texts: str) -> list[ComparedAnswer]:
        return [ComparedAnswer(text, is_error=False) for text in texts]

    same = transcript("a", "b", "a", "b")
    assert judge(2, [same, same], [same, transcript("a", "b", "a", "c")]) == ["agreed", "diverged"]
    assert judge(2, [same, transcript("x", "b", "a", "b")], [same, same]) == ["not_deterministic", "agreed"]


@pytest.mark.parametrize(
    ("outcomes", "result"),
    [
        (["agreed", "diverged"], "diverged"),
        (["agreed", "failed", "not_deterministic"], "agreed"),
        (["failed", "not_deterministic"], "inconclusive"),
    ],
)
def test_one_call_that_diverges_is_enough_and_agreement_needs_one_that_could(
    outcomes: list[Outcome], result: str
) -> None:
    assert result_of(outcomes) == result


# --- choice of calls ------------------------------------------------------------------------------------

TOOLS = [
    ProbedTool("list", reads=True, bare=True),
    ProbedTool("show", reads=True, bare=False),
    ProbedTool("delete", reads=False, bare=True),
]


def test_unasked_only_tools_are_tried_that_say_they_read_and_need_nothing() -> None:
    assert [each.tool for each in probe.choose("git", TOOLS, [])] == ["list"]


def test_what_the_user_names_is_tried_whatever_it_does_also_by_its_name_for_agents() -> None:
    wished = [ProbeCall("git__delete"), ProbeCall("show", msgspec.Raw(b'{"a":1}'))]
    assert [(each.tool, bytes(each.arguments)) for each in probe.choose("git", TOOLS, wished)] == [
        ("delete", b"{}"),
        ("show", b'{"a":1}'),
    ]


def test_without_a_safe_tool_nothing_is_tried_and_how_to_name_one_is_told() -> None:
    with pytest.raises(probe.CannotBeginError, match="--call TOOL --args JSON"):
        probe.choose("git", TOOLS[1:], [])


def test_a_misspelt_tool_is_guessed() -> None:
    with pytest.raises(probe.CannotBeginError, match="did you mean 'delete'"):
        probe.choose("git", TOOLS, [ProbeCall("deltee")])


def test_a_probe_that_cannot_begin_says_why_without_a_lesson_in_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], default_signals: None
) -> None:
    class NothingSafe(FakeProbeRun):
        def __init__(self, logins: str, say: object) -> None:
            super().__init__(counter)

        def open(self, config: str) -> list[ProbedTool]:
            return TOOLS[1:]

        def close(self) -> list[str]:
            return []

    monkeypatch.setattr(probe, "ProbeRun", NothingSafe)
    loaded = read_config('{"mcpServers": {"git": {"command": "true"}}}', "probe")
    assert loaded.config is not None
    with pytest.raises(click.exceptions.Exit) as ended:
        probe._run_experiment("git", [], loaded.config, {"command": "true"}, "", as_json=True)
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.startswith("carpool: no tool of git says that it only reads")


class Moody:
    """A door to a private carpool whose two instances of a server offer different tools."""

    def __init__(self, arm: str) -> None:
        self._tools = [*(["mood"] if arm == ALONE else ["grudge"]), "read"]

    def __enter__(self) -> "Moody":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def initialize(self) -> None:
        pass

    def request(self, method: str, params: dict[str, Any], _timeout_s: float) -> bytes:
        if method == "tools/call":
            return msgspec.json.encode({"content": [params["name"]]})
        named = [{"tool": tool, "name": tool, "inputSchema": {}} for tool in self._tools]
        hints = {"annotations": {"readOnlyHint": True}}
        return msgspec.json.encode({"tools": [{**each, **hints} for each in named]})


def test_a_tool_that_only_one_of_two_instances_offers_is_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(ProbeRun, "_door", lambda _, arm, control: Moody(arm))
    monkeypatch.setattr(PrivateCarpool, "up", lambda _: None)
    bench = ProbeRun(str(tmp_path), heard.append)
    try:
        tools = bench.open("{}")
        tries = probe.choose("odd", tools, [])
        assert [each.tool for each in tries] == ["read"]
        assert heard == ["leaving out grudge, mood: of two instances only one offers them"]
        assert len(bench.run_shared(tries)[1]) == ROUNDS
    finally:
        bench.close()


def test_arguments_belong_to_the_call_before_them() -> None:
    order: list[str | None] = ["calls", "calls", "arguments", "calls"]
    assert check.paired(order, ["a", "b", "c"], ["{1}"]) == [("a", "{}"), ("b", "{1}"), ("c", "{}")]


# --- configuration --------------------------------------------------------------------------------------


def test_the_private_configuration_is_right_and_keeps_what_decides_how_the_server_runs() -> None:
    written: dict[str, Any] = {
        "command": "npx",
        "args": ["-y", "${X:-y}"],
        "env": {"TOKEN": "${TOKEN}"},
        "cwd": "${workspace}",
        "timeout_s": 7,
        "tools": {"deny": ["d*"]},
        "sharing": "serial",
        "pool": {"max": 9, "min": 3},
        "auto_connect": True,
        "disabled": True,
        "tools_prefix": "",
        "tools_file": "tools.json",
    }
    loaded = read_config(probe_config(written, "/home/e/.env"), "probe")
    assert loaded.problems == []
    assert loaded.config is not None
    assert loaded.config.env_file == "/home/e/.env"
    assert loaded.config.servers.keys() == {ALONE, SHARED}
    for server in loaded.config.servers.values():
        assert (server.command, server.args, server.env) == ("npx", ("-y", "${X:-y}"), written["env"])
        assert (server.cwd, server.policy.timeout_s, server.tools_deny) == ("${workspace}", 7, ("d*",))
        assert (server.disabled, server.tools_prefix, server.policy.min_instances) == (False, None, 0)
        assert server.tools_file is None
    for profile in loaded.config.profiles.values():
        assert (profile.allow, profile.deny) == ((f"mcp:{profile.name}",), ())
    assert loaded.config.profiles.keys() == {ALONE, SHARED}
    alone, shared = (loaded.config.servers[name].policy for name in loaded.config.servers)
    assert (alone.sharing, shared.sharing, shared.max_instances) == ("session", "concurrent", 1)
    assert alone.max_instances >= 3


# --- what is told afterwards ----------------------------------------------------------------------------


@pytest.fixture
def broker(house: PrivateDaemon) -> Iterator[FakeBroker]:
    with FakeBroker(house.directory) as broker:
        yield broker


FOUND: dict[str, Any] = {
    "server": "time",
    "result": "diverged",
    "calls": [
        {"tool": "increment", "outcome": "diverged"},
        {"tool": "increment", "outcome": "diverged"},
        {"tool": "read", "outcome": "agreed"},
        {"tool": "now", "outcome": "not_deterministic"},
    ],
}


def recorded(
    house: PrivateDaemon, file: str, found: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> tuple[bool, str]:
    monkeypatch.setenv("CARPOOL_RUNTIME_DIR", str(house.directory))
    return probe.record(RuntimePlace(), file, "time", found)


def test_the_running_carpool_hears_the_result_and_the_tools(
    house: PrivateDaemon, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, note = recorded(house, STATUS["config"]["file"], FOUND, monkeypatch)
    assert done
    assert "carpool why time" in note
    [told] = [message["params"] for message in broker.heard if message.get("method") == "carpool/testify"]
    assert told == {
        "server": "time",
        "kind": "probe_diverged",
        "detail": "diverged: increment; agreed: read",
    }


def test_a_carpool_with_another_configuration_hears_nothing(
    house: PrivateDaemon, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done, note = recorded(house, str(tmp_path / "other.json"), FOUND, monkeypatch)
    assert not done
    assert "another configuration" in note
    assert "carpool/testify" not in broker.methods()


def test_without_a_carpool_nothing_is_recorded_and_how_to_is_told(
    house: PrivateDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, note = recorded(house, "/c.json", FOUND, monkeypatch)
    assert not done
    assert "carpool up --detach" in note


def test_no_conclusion_is_no_evidence(
    house: PrivateDaemon, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, _ = recorded(house, "/c.json", {**FOUND, "result": "inconclusive"}, monkeypatch)
    assert not done
    assert broker.heard == []


@pytest.mark.parametrize("result", ["agreed", "diverged", "inconclusive"])
def test_the_conclusion_names_each_call_and_what_to_do(result: str) -> None:
    text = probe.conclusion("time", {**FOUND, "result": result, "note": "NOTE"})
    assert text.endswith("NOTE")
    assert [line.split()[0] for line in text.splitlines()[:5]] == [
        "CALL",
        "increment",
        "increment",
        "read",
        "now",
    ]


def test_an_unknown_server_and_a_broken_configuration_exit_2(house: PrivateDaemon, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"mcpServers": {"counter": {"command": "true"}}}')
    done = house.run("check", "--config", str(file), "--probe", "couner")
    assert done.returncode == 2
    assert "did you mean 'counter'" in done.stderr
    file.write_text('{"mcpServers": {"counter": {"comand": "true"}}}')
    done = house.run("check", "--config", str(file), "--probe", "counter")
    assert done.returncode == 2
    assert "did you mean" in done.stderr
    assert not house.launcher
