"""The features of agent programs, each with the verdict on what was seen of it directly and through carpool.

A verdict says in words what each arm showed, and names a fault where the arms differ in another way than
carpool means to: names have the server in front, servers run in the home directory and get only the
variables that their entry names.

Knows nothing of: how runs are made (`tests.programs.scenarios`), faults that are known (`known_differences`).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from carpool_protocol.wire.tool_name_resolver import qualify
from tests.programs.homes import SHAPES
from tests.programs.installed import ROOT
from tests.programs.model.requests import OfferedTool
from tests.programs.program import Program
from tests.programs.run import Observation
from tests.programs.scenarios import (
    DEATHS,
    DIRECT_DEATHS,
    HTTP_TURNS,
    IDLE_TURNS,
    LIMIT_S,
    LONG_S,
    LOST_IN_A_CALL,
    REFUSED,
    TOLD_S,
    TOUR,
    VALUE,
    VARIABLE,
    ArmPair,
)
from tests.programs.script import Json
from tests.programs.stage import SERVER_NAMES

YES: Final = "yes"
NONE: Final = "-"
"""There is nothing to see in this arm."""
_ERROR: Final = "an error"
ANSWERS: Final = {
    "large": "200 KB",
    "image": "image",
    "structured": "structure",
    "structured_alone": "structure without text",
    "links": "links and resources",
    "fails": "error of a tool",
    "steps": "progress",
    "asks_user": "question to the user",
}
"""Tools of the tour whose answers the model must read alike."""
OWN_VARIABLES: Final = {"CARPOOL_RUNTIME", "CARPOOL_INSTANCE"}
"""The marks that carpool's servers have in their environment."""
BASE_VARIABLES: Final = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"}
"""Variables of the shell that every server of carpool gets, as documented; a program may pass on fewer."""


@dataclass(frozen=True)
class Verdict:
    """What each arm showed, and the fault of the difference; no fault, no words."""

    direct: str
    through: str
    fault: str = ""


@dataclass(frozen=True)
class Feature:
    """One row of the matrix."""

    name: str
    scenario: str
    judge: Callable[[Program, ArmPair], Verdict]
    applies: Callable[[Program], bool] = lambda _: True


def _same(direct: str, through: str, what: str) -> Verdict:
    return Verdict(direct, through, "" if direct == through else f"{what} differs")


def _tool(full_name: str) -> tuple[str, str]:
    """Server and tool of a name that a program made of a server's own tool: `mcp__odd__pid`."""
    for server in SERVER_NAMES:
        head, found, tool = full_name.partition(f"{server}_")
        if found and not head.strip("_").endswith(SERVER_NAMES):
            return server, tool.lstrip("_")
    # Some programs put nothing before a name, so that of two servers with one name the program shows one.
    return "odd", full_name


def _direct_tools(seen: Observation, turn: int = 0) -> dict[tuple[str, str], OfferedTool]:
    return {_tool(name): each for name, each in seen.offered(turn).items()}


def _through_names(tools: dict[tuple[str, str], OfferedTool]) -> dict[str, tuple[str, str]]:
    """The end of the name that carpool gives each of these tools."""
    return {qualify(server, tool): (server, tool) for server, tool in tools}


def _through_tools(pair: ArmPair, turn: int = 0) -> dict[tuple[str, str], OfferedTool]:
    """The tools offered through carpool, by the server and tool whose name carpool made."""
    direct, through = pair.both()
    known = _through_names(_direct_tools(direct, turn))
    found = {}
    for name, each in through.offered(turn).items():
        ends = [end for end in known if name.endswith(end)]
        found[known[max(ends, key=len)] if ends else _described(each, _direct_tools(direct, turn))] = each
    return found


def _described(tool: OfferedTool, tools: dict[tuple[str, str], OfferedTool]) -> tuple[str, str]:
    """The tool of the same description: a program may have cut the name in the middle."""
    server, name = _tool(tool.full_name)
    if f"{server}__{name}" in tool.full_name and name in {own for _, own in tools}:
        return server, name
    same = [key for key, each in tools.items() if each.description == tool.description]
    return same[0] if len(same) == 1 else (server, name)


def _tools(_: Program, pair: ArmPair) -> Verdict:
    direct, through = _direct_tools(pair.both()[0]), _through_tools(pair)
    missing = sorted(tool for _, tool in direct.keys() - through.keys())
    names = {tool for _, tool in direct}
    # Of two servers with one name a program that puts nothing before names shows one tool directly.
    more = sorted(tool for _, tool in through.keys() - direct.keys() if tool not in names)
    fault = f"not offered through carpool: {missing}; only there: {more}" if missing or more else ""
    return Verdict(f"{len(direct)} tools", f"{len(through)} tools", fault)


def _names(_: Program, pair: ArmPair) -> Verdict:
    direct, through = pair.both()
    longest = max(map(len, direct.offered())), max(map(len, through.offered()))
    example = next((name for name in through.offered() if name.endswith("odd__pid")), "")
    bare = [name for name in through.offered() if "odd__" not in name and "plain__" not in name]
    said = next((name for name in direct.offered() if name.endswith("pid")), "")
    fault = f"names without their server: {bare}" if bare else ""
    return Verdict(
        f"`{said}`, at most {longest[0]} characters", f"`{example}`, at most {longest[1]} characters", fault
    )


def _parts(part: Callable[[OfferedTool], object], what: str, _: Program, pair: ArmPair) -> Verdict:
    direct, through = _direct_tools(pair.both()[0]), _through_tools(pair)
    other = [tool for tool in direct.keys() & through.keys() if part(direct[tool]) != part(through[tool])]
    fault = f"{what} of {sorted(other)} differ" if other else ""
    return Verdict(YES, "other ones" if other else YES, fault)


def marks(text: str) -> dict[str, int]:
    """How much of the instructions of each server is in a text: marks of 60, and the plain server's
    sentence.
    """
    return {
        "odd": len(set(re.findall(r"\[odd instruction (\d\d)\]", text))),
        "plain": text.count("Use plain for tests."),
    }


def _instructions(_: Program, pair: ArmPair) -> Verdict:
    said = [marks(each.turns[0].instructions) if each.turns else marks("") for each in pair.both()]
    direct, through = (
        f"{each['odd']} of 60 marks of one server, {'all' if each['plain'] else 'none'} of the other"
        for each in said
    )
    less = [name for name, count in said[0].items() if said[1][name] < count]
    return Verdict(direct, through, f"instructions of {', '.join(less)} are missing" if less else "")


def read(text: str) -> str:
    """The result as a model reads it, without what differs from run to run."""
    text = re.sub(r"^Wall time: [\d.]+ seconds\n", "", text)
    text = re.sub(r"/tmp/cpp-\w+", "BASE", text)
    text = text.replace(str(ROOT), "CHECKOUT")
    text = re.sub(r"-tmp-cpp-[\w-]+?-home", "HOME", text)
    text = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID", text)
    text = re.sub(r"\b\d{13,}\b", "TIME", text)
    text = re.sub(r"\btool_[0-9a-zA-Z]{20,}", "TOOL", text)
    # A program that refuses a question says it in its own words, and carpool says it for the program.
    text = re.sub(r'-3260\d, \\?"message\\?": \\?"[^"\\]*', "REFUSED", text)
    text = re.sub(r"\b[0-9a-f]{64}\b|(?<=_)[0-9a-f]{12}(?=\.output)", "HASH", text)
    text = re.sub(r"</?untrusted_context>\n?", "", text)
    text = re.sub(r"(mcp__)?carpool(__|/|_)(odd|plain)__", r"\1\3\2", text)
    text = re.sub(r"\b(odd|plain)__(?=[a-z])", "", text)
    return text.replace("from carpool at", "from odd at")


def _answer(tool: str, calls: tuple[str, ...], _: Program, pair: ArmPair) -> Verdict:
    direct, through = pair.both()
    at = calls.index(tool) + 1
    if at >= min(len(direct.turns), len(through.turns)):
        return Verdict(_progressed(direct, at), _progressed(through, at), "the run ended before")
    results = [each.turns[at].results[0] for each in (direct, through)]
    said = [(read(each.text), each.is_error, each.images) for each in results]
    words = [_in_words(text, error, images) for text, error, images in said]
    return Verdict(
        words[0], words[1], "" if said[0] == said[1] else f"the model reads {said[1]} and not {said[0]}"
    )


def _progressed(seen: Observation, at: int) -> str:
    if at < len(seen.turns):
        return YES
    return _brief(f"the run ended after {len(seen.turns)} turns: {read(seen.last_words())}")


def steps_told(seen: Observation) -> list[str]:
    """The notifications of progress that arrived at the program, in their order."""
    said = [each["message"] for each in seen.wire if each["from"] == "server"]
    return [
        each["params"].get("message", "") for each in said if each.get("method") == "notifications/progress"
    ]


def _progress(_: Program, pair: ArmPair) -> Verdict:
    """Each step arrives at a program that wants to be told. carpool itself wants to be told of each call."""
    verdict = _answer("steps", TOUR, _, pair)
    if "the run ended" in verdict.fault:
        return verdict
    wants = "steps are done, told" in verdict.direct
    told = steps_told(pair.behind())
    words = ["told" if wants else "not asked for", "told" if told else "not asked for"]
    fault = verdict.fault if "steps are done" not in verdict.through else ""
    if told != ([f"step {at}" for at in range(1, 4)] if wants else []):
        fault = f"the program is told {told}, and directly it is told of three steps: {wants}"
    return Verdict(words[0], words[1], fault)


def _told_call(_: Program, pair: ArmPair) -> Verdict:
    said = [_outcome(each, ("told",), "told") for each in pair.both()]
    words = [YES if "steps are done, told" in each else _brief(each) for each in said]
    wanted = [f"step {at}" for at in range(1, 4 * TOLD_S + 1)]
    told = steps_told(pair.behind())
    if words[0] != words[1]:
        return Verdict(words[0], words[1], f"the model reads: {said[1][:300]}")
    return Verdict(words[0], words[1], "" if told == wanted else f"the program is told {told}")


def _in_words(text: str, is_error: bool | None, images: int) -> str:
    if images:
        return "attached"
    if len(text) > 1000:
        return f"{len(text):,} characters"
    said = " ".join(text.removeprefix("Output:").split())
    return f"“{said[:60]}”" + (" as an error" if is_error else "")


def _facts(seen: Observation, turn: int) -> Json:
    """What the server said of its environment in the answer to this turn; empty where it was not reached."""
    if turn + 1 >= len(seen.turns) or not seen.turns[turn + 1].results:
        return {}
    return _facts_in(seen.turns[turn + 1].results[0].text)


def _facts_in(value: object) -> Json:
    """The object with `environ`, also in a text of JSON in a text of JSON."""
    if isinstance(value, str):
        found = re.search(r"\{.*\}", value, re.DOTALL)
        try:
            value = json.loads(found[0]) if found else {}
        except ValueError:
            return {}
    if isinstance(value, dict) and "environ" in value:
        return value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((facts for each in inner if (facts := _facts_in(each))), {})


def _environment(_: Program, pair: ArmPair) -> Verdict:
    direct, through = (_facts(each, TOUR.index("facts")).get("environ", {}) for each in pair.both())
    told = [each.get("ODD_ENTRY", "") for each in (direct, through)]
    more = sorted(through.keys() - direct.keys() - OWN_VARIABLES - BASE_VARIABLES)
    less = sorted(
        name
        for name in direct.keys() & BASE_VARIABLES
        if not through.get(name) or (name != "PATH" and read(through[name]) != read(direct[name]))
    )
    if told != ["told", "told"]:
        fault = "a variable of the server's entry does not reach it"
    elif less:
        fault = f"{less} of the shell do not reach the server as they do directly"
    elif more:
        fault = f"the server gets {more} only through carpool"
    else:
        fault = ""
    names = [", ".join(sorted(each.keys() - OWN_VARIABLES - {"ODD_ENTRY"})) for each in (direct, through)]
    return Verdict(f"{names[0]} and the entry's", f"{names[1]} and the entry's", fault)


def _directory(_: Program, pair: ArmPair) -> Verdict:
    direct, through = (_facts(each, TOUR.index("facts")).get("cwd", "") for each in pair.both())
    words = ["project" if each.endswith("/work/project") else "home" for each in (direct, through)]
    return Verdict(
        words[0], words[1], "" if words[1] == "home" else "the server does not run in the home directory"
    )


def _lists(_: Program, pair: ArmPair) -> Verdict:
    """The added tool is in the model's requests from the turn after its list on."""
    seen = []
    for each in pair.both():
        grown = ["grown_1" in " ".join(each.offered(at)) for at in range(len(each.turns))]
        first, last = TOUR.index("grow") + 2, TOUR.index("shrink") + 2
        seen.append(
            f"seen: {grown[first]}, gone: {not grown[last]}" if len(grown) > last else "the run ended"
        )
    words = {"seen: True, gone: True": "in the next turn", "seen: False, gone: True": "not looked at"}
    return _same(
        words.get(seen[0], seen[0]), words.get(seen[1], seen[1]), "what the model is offered after a change"
    )


def _added_later(_: Program, pair: ArmPair) -> Verdict:
    """The tool that the server adds once it is greeted is in the model's first request."""
    words = [
        "offered" if "added_later" in " ".join(each.offered()) else "not offered" for each in pair.both()
    ]
    fault = "" if words == ["offered", "offered"] else "the tool that is added later is not offered"
    return Verdict(words[0], words[1], fault)


def _long(_: Program, pair: ArmPair) -> Verdict:
    said = [_outcome(each, ("long",), "long") for each in pair.both()]
    words = [YES if "slow is done" in each else _brief(each) for each in said]
    return Verdict(words[0], words[1], "" if words[0] == words[1] else f"the model reads: {said[1][:300]}")


def _left(_: Program, pair: ArmPair) -> Verdict:
    words = ["nothing" if not each.left else f"{len(each.left)} processes" for each in pair.both()]
    return Verdict(words[0], words[1], "" if words[1] == "nothing" else f"left running: {pair.behind().left}")


def _outcome(seen: Observation, names: tuple[str, ...], name: str) -> str:
    """What the model read as the answer to the call of this turn."""
    at = names.index(name) + 1
    if at >= len(seen.turns):
        return f"the run ended after {len(seen.turns) - 1} turns"
    request = seen.turns[at]
    if not request.results:
        return "the tool was no longer offered"
    return read(request.results[0].text).removeprefix("Output:").strip()


def ran(seen: Observation, turn: int) -> int:
    """So many calls servers have begun to run in this turn, from its request to the next one."""
    begin = seen.turns[turn].at
    end = seen.turns[turn + 1].at if turn + 1 < len(seen.turns) else float("inf")
    calls = [each["at"] for events in seen.events.values() for each in events if each["event"] == "call"]
    return sum(1 for at in calls if begin <= at < end)


def is_process(said: str) -> bool:
    """The answer of `pid` is in it, also where a program puts words around it."""
    return re.search(r"\bprocess \d+", said) is not None


def _death(name: str, _: Program, pair: ArmPair) -> Verdict:
    direct, through = pair.both()
    said = _outcome(through, DEATHS, name)
    right = is_process(said) or "slow is done" in said
    if name in LOST_IN_A_CALL:
        right = "may have" in said
    elif right and name.startswith("broker") and is_process(said):
        right = said == _outcome(through, DEATHS, "start")
    alone = _outcome(direct, DIRECT_DEATHS, name) if name in DIRECT_DEATHS else NONE
    words = _brief(said)
    fault = f"the model reads: {said[:300]}"
    if right:
        words = "an error: it may have run" if name in LOST_IN_A_CALL else YES
        fault = _not_once(through, DEATHS.index(name))
    return Verdict(YES if is_process(alone) else _brief(alone), words, fault)


def _not_once(seen: Observation, turn: int) -> str:
    """The fault of a call that the server has not begun exactly once; empty for any other."""
    count = ran(seen, turn)
    return "" if count == 1 else f"the call of one turn ran {count} times"


def _down_in_call(_: Program, pair: ArmPair) -> Verdict:
    through = pair.behind()
    said = _outcome(through, ("down",), "down")
    right = "may have" in said
    fault = _not_once(through, 0) if right else f"the model reads: {said[:300]}"
    return Verdict(NONE, "an error: it may have run" if right else _brief(said), fault)


def _brief(said: str) -> str:
    one = " ".join(said.split())
    return one if one == NONE or len(one) <= 90 else one[:87] + "…"


def _home(name: str, _: Program, pair: ArmPair) -> Verdict:
    words = [YES if _facts(each, 0) else "the server's tool cannot be called" for each in pair.both()]
    fault = "" if words[1] == YES else f"the server is not reached in a home of this shape: {name}"
    return Verdict(words[0], words[1], fault)


def _cold(_: Program, pair: ArmPair) -> Verdict:
    found = _facts(pair.behind(), IDLE_TURNS)
    words = YES if found else "no tool of any server"
    return Verdict(NONE, words, "" if found else "the carpool that the program starts has no server")


def _variable(_: Program, pair: ArmPair) -> Verdict:
    direct, through = pair.both()
    said = [
        _facts(direct, 0).get("environ", {}).get(VARIABLE),
        _facts(through, IDLE_TURNS).get("environ", {}).get(VARIABLE),
    ]
    words = [
        YES if each == VALUE else "empty" if each == "" else "the server is not reached" for each in said
    ]
    return Verdict(
        words[0], words[1], "" if said[1] == VALUE else "the variable of the shell does not reach the server"
    )


def _wire_instructions(_: Program, pair: ArmPair) -> Verdict:
    answers = [each["message"] for each in pair.behind().wire if each["from"] == "server"]
    said = "\n".join(str(each.get("instructions") or each.get("result", {})) for each in answers[:1])
    found = marks(said)["odd"]
    return Verdict(
        NONE,
        f"{found} of 60 marks in the first answer",
        "" if found == 60 else "saved catalogs are not found",
    )


def _http_call(name: str, _: Program, pair: ArmPair) -> Verdict:
    """The call of this turn is answered. Where it is not directly either, the fault is the program's own."""
    direct, through = pair.both()
    turn = HTTP_TURNS.index(name)
    said = [_outcome(each, HTTP_TURNS, name) for each in (direct, through)]
    right = [is_process(each) or "slow is done" in each for each in said]
    if not any(right):
        return Verdict(_ERROR, _ERROR)
    words = [YES if well else _brief(read(each)) for well, each in zip(right, said, strict=True)]
    fault = _not_once(through, turn) if right[1] else f"the model reads: {said[1][:300]}"
    return Verdict(words[0], words[1], fault)


def _http_list(name: str, added: str, _: Program, pair: ArmPair) -> Verdict:
    """A tool that was added is offered in the request for this turn."""
    turn = HTTP_TURNS.index(name)
    words = [
        "the new list" if turn < len(each.turns) and added in " ".join(each.offered(turn)) else "the old list"
        for each in pair.both()
    ]
    worse = words == ["the new list", "the old list"]
    return Verdict(words[0], words[1], "the program keeps the list of before" if worse else "")


def _http_death(name: str) -> Feature:
    return Feature(f"HTTP: {name}", "http", partial(_http_call, name))


def _rows() -> Iterator[Feature]:
    yield Feature("tools", "tour", _tools)
    yield Feature("names", "tour", _names)
    yield Feature("descriptions", "tour", partial(_parts, lambda tool: tool.description, "descriptions"))
    yield Feature("schemas", "tour", partial(_parts, lambda tool: tool.schema, "schemas"))
    yield Feature("instructions", "tour", _instructions)
    yield Feature("environment of the server", "tour", _environment)
    yield Feature("directory of the server", "tour", _directory)
    for tool, name in ANSWERS.items():
        yield Feature(name, "tour", _progress if tool == "steps" else partial(_answer, tool, TOUR))
    yield Feature("lists that change", "tour", _lists)
    yield Feature("left running afterwards", "tour", _left)
    [tool] = REFUSED
    yield Feature("error of a request", "refused call", partial(_answer, tool, REFUSED))
    yield Feature("instructions in the first session", "first session", _instructions)
    yield Feature("tools in the first session", "first session", _tools)
    yield Feature(
        "tools that a server adds after `initialized`", "later tools", _added_later, lambda it: it.is_askable
    )
    yield Feature(
        f"call of {LONG_S} s without progress", "long call", _long, lambda it: it.call_limit_s > LONG_S
    )
    yield Feature(
        f"call of {TOLD_S} s with progress, where silent ones get {LIMIT_S} s",
        "told call",
        _told_call,
        lambda it: it.asks_progress,
    )
    for name in DEATHS[1:]:
        yield Feature(name, "deaths", partial(_death, name))
    yield Feature("down and up in a call", "down in a call", _down_in_call)
    yield Feature(
        "variables of the shell, after setup",
        "variables",
        _variable,
        lambda it: it.setup is not None and it.idle is not None,
    )
    yield Feature("instructions after carpool starts again", "same shell", _wire_instructions)
    yield Feature("instructions after a start in another language", "German shell", _wire_instructions)
    yield Feature("HTTP: call", "http", partial(_http_call, "call"))
    yield _http_death("broker killed between turns")
    yield _http_death("broker killed in a call")
    yield Feature(
        "HTTP: lists that change",
        "http",
        partial(_http_list, "restart --all between turns", "grown_1"),
        lambda it: it.lists_again,
    )
    yield _http_death("restart --all between turns")
    yield Feature(
        "HTTP: lists that change after restart --all",
        "http",
        partial(_http_list, "door killed between turns", "grown_2"),
        lambda it: it.lists_again,
    )
    yield _http_death("door killed between turns")
    yield _http_death("down and up between turns")
    yield Feature("program starts carpool", "cold fresh", _cold, lambda it: it.idle is not None)
    yield Feature(
        "program starts carpool, XDG_CONFIG_HOME is set", "cold xdg", _cold, lambda it: it.idle is not None
    )
    for shape in SHAPES:
        yield Feature(f"home: {shape}", f"home {shape}", partial(_home, shape))


FEATURES: Final[dict[str, Feature]] = {each.name: each for each in _rows()}
