"""Each verdict on a feature names a fault when the arms differ in another way than carpool means to."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.programs.agents.codex import PROGRAM
from tests.programs.features import FEATURES, OWN_VARIABLES
from tests.programs.model.requests import ModelRequest, OfferedTool, ToolResult
from tests.programs.run import Observation
from tests.programs.scenarios import (
    DEATHS,
    DIRECT_DEATHS,
    HTTP_TURNS,
    LOST_IN_A_CALL,
    TOLD_S,
    TOUR,
    VALUE,
    VARIABLE,
    ArmPair,
)
from tests.programs.script import Json
from tests.programs.stage import Arm

INSTRUCTIONS = "".join(f"[odd instruction {at:02d}]" for at in range(1, 61)) + "Use plain for tests."


def request(names: list[str], answer: str = "", **changes: Any) -> ModelRequest:
    tools = tuple(OfferedTool(name, f"about {name[-4:]}", {"type": "object"}) for name in names)
    results = (ToolResult("1", answer, None, 0, {}),) if answer else ()
    whole = ModelRequest(0.0, "responses", "POST", "/", {}, {}, tools, INSTRUCTIONS, results)
    return replace(whole, **changes)


def seen(arm: Arm, requests: list[ModelRequest], **changes: Any) -> Observation:
    """A run with one request at each second, and one call that ran in each turn."""
    turns = [replace(each, at=float(at)) for at, each in enumerate(requests)]
    calls = [call(at) for at in range(len(turns) - 1)]
    whole = Observation(arm, 0, "", "", turns, turns, {"odd": calls, "plain": []}, [])
    return replace(whole, **changes)


def call(turn: int) -> Json:
    return {"event": "call", "at": turn + 0.5}


def told(*steps: str) -> list[Json]:
    return [
        {
            "from": "server",
            "message": {"method": "notifications/progress", "params": {"message": step}},
        }
        for step in steps
    ]


def facts(cwd: str, **environ: str) -> str:
    own = {"HOME": "/h", "LANG": "C", "PATH": "/bin", "ODD_ENTRY": "told"}
    return json.dumps({"environ": {**own, **environ}, "cwd": cwd})


def tour(arm: Arm) -> Observation:
    """A tour on which both arms see the same, by the names of their arm."""
    head = "mcp__carpool__odd__" if arm == "carpool" else "mcp__odd__"
    own = dict.fromkeys(sorted(OWN_VARIABLES), "1") if arm == "carpool" else {"MORE": "1"}
    cwd = "/h" if arm == "carpool" else "/h/work/project"
    names = [f"{head}pid", f"{head}fails"]
    answers = ["", *("the answer" if tool != "facts" else facts(cwd, **own) for tool in TOUR)]
    return seen(arm, [request(names, answer) for answer in answers])


def fault(name: str, direct: Observation, through: Observation) -> str:
    return FEATURES[name].judge(PROGRAM, ArmPair(direct, through)).fault


@pytest.mark.parametrize("name", [each.name for each in FEATURES.values() if each.scenario == "tour"])
def test_arms_that_see_the_same_have_no_fault(name: str) -> None:
    assert fault(name, tour("direct"), tour("carpool")) == ""


def changed(at: int, **changes: Any) -> Observation:
    """A tour through carpool in which one request is another."""
    whole = tour("carpool")
    requests = list(whole.turns)
    requests[at] = replace(requests[at], **changes)
    return replace(whole, turns=requests)


FIRST = tour("carpool").turns[0].tools
ANSWER = TOUR.index("fails") + 1
FACTS = TOUR.index("facts") + 1


def result(text: str, *, is_error: bool | None = None, images: int = 0) -> dict[str, Any]:
    return {"results": (ToolResult("1", text, is_error, images, {}),)}


@pytest.mark.parametrize(
    ("name", "through", "words"),
    [
        ("tools", changed(0, tools=FIRST[:1]), "not offered through carpool: ['fails']"),
        (
            "tools",
            changed(0, tools=(*FIRST, OfferedTool("mcp__carpool__odd__more"))),
            "only there: ['more']",
        ),
        (
            "descriptions",
            changed(0, tools=(FIRST[0], replace(FIRST[1], description="x"))),
            "descriptions of",
        ),
        ("schemas", changed(0, tools=(FIRST[0], replace(FIRST[1], schema={}))), "schemas of"),
        ("instructions", changed(0, instructions=INSTRUCTIONS[:-20]), "instructions of plain are missing"),
        ("instructions", changed(0, instructions=INSTRUCTIONS[20:]), "instructions of odd are missing"),
        ("error of a tool", changed(ANSWER, **result("another")), "the model reads"),
        ("error of a tool", changed(ANSWER, **result("the answer", is_error=True)), "the model reads"),
        ("image", changed(TOUR.index("image") + 1, **result("the answer", images=1)), "the model reads"),
        (
            "environment of the server",
            changed(FACTS, **result(facts("/h", LEAKED="1"))),
            "the server gets ['LEAKED'] only through carpool",
        ),
        (
            "environment of the server",
            changed(FACTS, **result(facts("/h", ODD_ENTRY=""))),
            "a variable of the server's entry does not reach it",
        ),
        (
            "environment of the server",
            changed(FACTS, **result(facts("/h", LANG="de"))),
            "['LANG'] of the shell do not reach the server",
        ),
        (
            "environment of the server",
            changed(FACTS, **result(facts("/h", PATH=""))),
            "['PATH'] of the shell do not reach the server",
        ),
        (
            "directory of the server",
            changed(FACTS, **result(facts("/h/work/project"))),
            "the server does not run in the home directory",
        ),
        ("left running afterwards", replace(tour("carpool"), left={7: "x"}), "left running: {7: 'x'}"),
        (
            "lists that change",
            changed(TOUR.index("shrink") + 2, tools=(*FIRST, OfferedTool("mcp__carpool__odd__grown_1"))),
            "what the model is offered after a change differs",
        ),
    ],
)
def test_a_difference_is_a_fault(name: str, through: Observation, words: str) -> None:
    assert words in fault(name, tour("direct"), through)


def test_an_error_of_a_request_that_reads_another_way_is_a_fault() -> None:
    direct = seen("direct", [request([]), request([], "refused on purpose")])
    assert fault("error of a request", direct, replace(direct, arm="carpool")) == ""
    other = seen("carpool", [request([]), request([], "lost")])
    assert "the model reads" in fault("error of a request", direct, other)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (("", "Traceback:\nValueError: no links\nDuring task 'a'\n"), "no links"),
        (("it ended\n", ""), "it ended"),
    ],
)
def test_a_run_that_ended_is_recorded_with_its_last_words_in_one_line(
    output: tuple[str, str], words: str
) -> None:
    short = replace(tour("carpool"), turns=tour("carpool").turns[:3], stdout=output[0], stderr=output[1])
    verdict = FEATURES["links and resources"].judge(PROGRAM, ArmPair(tour("direct"), short))
    assert words in verdict.through
    assert "\n" not in verdict.through


def stepped(arm: Arm, *steps: str, answer: str = "steps are done, told") -> Observation:
    """A tour on which the server is asked to tell progress, and these steps arrive at the program."""
    whole = tour(arm)
    at = TOUR.index("steps") + 1
    turns = list(whole.turns)
    turns[at] = replace(turns[at], **result(answer))
    return replace(whole, turns=turns, wire=told(*steps))


@pytest.mark.parametrize("steps", [(), ("step 1", "step 3"), ("step 2", "step 1", "step 3")])
def test_progress_that_does_not_arrive_at_the_program_is_a_fault(steps: tuple[str, ...]) -> None:
    direct = stepped("direct")
    assert fault("progress", direct, stepped("carpool", "step 1", "step 2", "step 3")) == ""
    assert "the program is told" in fault("progress", direct, stepped("carpool", *steps))


def test_a_program_that_asks_for_no_progress_and_is_told_some_is_a_fault() -> None:
    direct = stepped("direct", answer="steps are done, not asked for")
    assert fault("progress", direct, stepped("carpool")) == ""
    assert "the program is told ['step 1']" in fault("progress", direct, stepped("carpool", "step 1"))
    assert "the model reads" in fault("progress", direct, stepped("carpool", answer="lost"))


def long_told(arm: Arm, answer: str, steps: int) -> Observation:
    wire = told(*(f"step {at}" for at in range(1, steps + 1)))
    return seen(arm, [request([]), request([], answer)], wire=wire)


@pytest.mark.parametrize(
    ("answer", "steps", "words"),
    [
        ("steps are done, told", 4 * TOLD_S, ""),
        ("steps are done, told", 4 * TOLD_S - 1, "the program is told"),
        ("the call timed out", 4 * TOLD_S, "the model reads"),
    ],
)
def test_a_call_that_ends_although_it_tells_progress_is_a_fault(answer: str, steps: int, words: str) -> None:
    [name] = [each.name for each in FEATURES.values() if each.scenario == "told call"]
    found = fault(name, long_told("direct", "steps are done, told", 0), long_told("carpool", answer, steps))
    assert words in found
    assert bool(words) == bool(found)


def deaths(arm: Arm, **answers: str) -> Observation:
    names = DEATHS if arm == "carpool" else DIRECT_DEATHS
    said = {name: "slow is done" if "in a call" in name else "process 1" for name in names}
    said |= {name: "The call may have been executed." for name in names if name in LOST_IN_A_CALL}
    requests = [request([]), *(request([], text) for text in {**said, **answers}.values())]
    return seen(arm, requests)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("broker killed between turns", "process 2"),
        ("broker killed between turns", "Transport closed"),
        ("broker killed in a call", "The call may have been executed."),
        ("restart --all in a call", "Transport closed"),
        ("server killed in a call", "Transport closed"),
        ("supervisor killed in a call", "Transport closed"),
        ("launcher killed in a call", "slow is done"),
        ("down and up between turns", "Transport closed"),
    ],
)
def test_a_death_that_the_model_reads_of_is_a_fault(name: str, answer: str) -> None:
    assert fault(name, deaths("direct"), deaths("carpool")) == ""
    assert "the model reads" in fault(name, deaths("direct"), deaths("carpool", **{name: answer}))


@pytest.mark.parametrize("name", DEATHS[1:])
@pytest.mark.parametrize("count", [0, 2])
def test_a_call_that_does_not_run_exactly_once_is_a_fault(name: str, count: int) -> None:
    whole = deaths("carpool")
    at = DEATHS.index(name)
    events = [each for each in whole.events["odd"] if each != call(at)] + [call(at)] * count
    through = replace(whole, events={"odd": events, "plain": []})
    assert fault(name, deaths("direct"), through) == f"the call of one turn ran {count} times"


@pytest.mark.parametrize(("answer", "words"), [("may have been executed", ""), ("closed", "the model reads")])
def test_a_call_that_down_ends_without_words_is_a_fault(answer: str, words: str) -> None:
    through = seen("carpool", [request([]), request([], answer)])
    found = FEATURES["down and up in a call"].judge(PROGRAM, ArmPair(None, through)).fault
    assert words in found
    assert bool(words) == bool(found)


def over_http(arm: Arm, name: str = "", answer: str = "", offered: str = "") -> Observation:
    """A run over HTTP in which all goes well but for the answer to one call; each request offers one tool."""
    requests = [request([offered])]
    for each in HTTP_TURNS:
        text = "slow is done" if "in a call" in each else "process 1"
        requests.append(request([offered], answer if each == name else text))
    return seen(arm, requests)


RESTARTED = "restart --all between turns"


@pytest.mark.parametrize("name", ["call", "broker killed in a call", "door killed between turns", RESTARTED])
def test_a_call_over_http_that_fails_through_carpool_alone_is_a_fault(name: str) -> None:
    fails = over_http("carpool", name, "Session not found")
    assert fault(f"HTTP: {name}", over_http("direct"), over_http("carpool")) == ""
    assert "the model reads" in fault(f"HTTP: {name}", over_http("direct"), fails)
    assert fault(f"HTTP: {name}", over_http("direct", name, "Session not found"), fails) == ""


def test_a_call_over_http_that_runs_twice_is_a_fault() -> None:
    whole = over_http("carpool")
    twice = replace(whole, events={"odd": [*whole.events["odd"], call(HTTP_TURNS.index(RESTARTED))]})
    assert fault(f"HTTP: {RESTARTED}", over_http("direct"), twice) == "the call of one turn ran 2 times"


@pytest.mark.parametrize(
    ("direct", "through", "words"),
    [("grown_1", "grown_1", ""), ("grown_1", "", "the list of before"), ("", "", ""), ("", "grown_1", "")],
)
def test_a_list_over_http_that_is_new_directly_alone_is_a_fault(
    direct: str, through: str, words: str
) -> None:
    found = fault(
        "HTTP: lists that change",
        over_http("direct", offered=direct),
        over_http("carpool", offered=through),
    )
    assert words in found
    assert bool(words) == bool(found)


def test_a_run_that_ended_too_soon_is_a_fault() -> None:
    short = deaths("carpool")
    short = replace(short, turns=short.turns[:3])
    assert "the run ended after 2 turns" in fault("broker killed in a call", deaths("direct"), short)


@pytest.mark.parametrize(("value", "words"), [(VALUE, ""), ("", "does not reach the server")])
def test_a_variable_that_is_empty_is_a_fault(value: str, words: str) -> None:
    direct = seen("direct", [request([]), request([], facts("/h", **{VARIABLE: VALUE}))])
    turns = [request([]), *[request([], "x")] * 3, request([], facts("/h", **{VARIABLE: value}))]
    found = fault("variables of the shell, after setup", direct, seen("carpool", turns))
    assert words in found
    assert bool(words) == bool(found)


def test_a_server_that_is_not_reached_in_a_home_is_a_fault() -> None:
    reached = seen("direct", [request([]), request([], facts("/h"))])
    away = seen("carpool", [request([])])
    assert fault("home: nvm", reached, replace(reached, arm="carpool")) == ""
    assert "not reached" in fault("home: nvm", reached, away)
