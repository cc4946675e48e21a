"""Bridges at each place where they can stand with carpool, and the verdict on each feature of such a place.

Owns the runs of a place, directly and through carpool, and what is said of their difference. A verdict also
names a fault where a bridge by itself passes on something else than `tests.programs.bridges` says.

Knows nothing of: faults that are known (`known_differences`), how verdicts are kept (`record`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.kit.private_daemon import until
from tests.kit.sdks import call, do
from tests.programs.bridge_tours import (
    LIST_STEPS,
    BridgeTour,
    Name,
    Pause,
    beside,
    take_tour,
    text,
    through_carpool,
    travel,
)
from tests.programs.bridges import (
    LISTS,
    MCP_REMOTE,
    MCPO,
    PASSED_ON,
    PROGRESS,
    QUESTIONS,
    URL_BRIDGES,
    WRAPPERS,
    BridgedServer,
    BridgeProgram,
    UrlBridge,
    Wrapper,
    reached,
)
from tests.programs.features import NONE, YES, Verdict
from tests.programs.loopback import Loopback
from tests.programs.mcpo_api import McpoApi
from tests.programs.program import Entry
from tests.programs.stage import ARMS, BOUND_S, ProgramStage

NO: Final = "no"
ANSWERS: Final = "calls, answers and errors"
NEW_LIST: Final = "a client that asks again gets the new list"
IN_A_CALL: Final = {"broker killed in a call": "kill_broker", "restart --all in a call": "restart_all"}
BETWEEN_CALLS: Final = {
    "broker killed between calls": "kill_broker",
    "restart --all between calls": "restart_all",
    "down and up between calls": "down_and_up",
}
SERVER_DIES: Final = "its HTTP server killed between calls"
NEXT_AGENT: Final = "the next agent after that"
_TRIES: Final = 4
"""So many calls an agent makes after the server of a bridge has come back."""
_OWN_STEPS: Final[Mapping[str, tuple[str, ...]]] = {
    LISTS: LIST_STEPS,
    QUESTIONS: ("question",),
    PROGRESS: ("progress",),
}
"""The steps of a tour that show a feature of their own."""

Verdicts = dict[str, Verdict]
Opened = Callable[[ProgramStage], AbstractContextManager[list[str]]]
"""The command on stdio by which a client comes to the odd server of the stage's arm, by the bridge."""


@dataclass(frozen=True)
class BridgeScenario:
    """Runs of a bridge at a place, and the features that they show."""

    features: tuple[str, ...]
    run: Callable[[Loopback], Verdicts]


@dataclass(frozen=True)
class BridgePlace:
    """A bridge at one place."""

    program: BridgeProgram
    place: str
    scenarios: tuple[BridgeScenario, ...]
    needs: tuple[str, ...]
    """The programs that must be installed."""

    @property
    def name(self) -> str:
        return f"{self.program.name} {self.place}"

    @property
    def features(self) -> tuple[str, ...]:
        """The features of the place, in the order of its scenarios."""
        return tuple(feature for each in self.scenarios for feature in each.features)

    def scenario_of(self, feature: str) -> int:
        """The place of the scenario that shows this feature, in `scenarios`."""
        return next(at for at, each in enumerate(self.scenarios) if feature in each.features)


def _yes(there: bool) -> str:
    return YES if there else NO


# --- what a tour shows -----------------------------------------------------------------------------------


def _passed_on(feature: str, says: frozenset[str], found: tuple[bool, bool], same: bool) -> Verdict:
    """`says`: what the bridge is said to pass on; `found`: it did, directly and through carpool."""
    direct, through = found
    fault = ""
    if direct != (feature in says):
        fault = "the bridge by itself passes on something else than `bridges.py` says"
    elif direct and not through:
        fault = "the bridge passes it on without carpool alone"
    elif direct and not same:
        fault = "what the client sees of it differs"
    return Verdict(_yes(direct), _yes(through), fault)


def judge_tours(says: frozenset[str], direct: BridgeTour, through: BridgeTour) -> Verdicts:
    """The verdicts on a tour in both arms through a bridge that is said to pass on this."""
    seen = direct.comparable(through_carpool), through.comparable(str)
    own = {step for steps in _OWN_STEPS.values() for step in steps}
    other = sorted(step for step in seen[0].keys() - own if seen[0][step] != seen[1][step])
    fault = f"what the client sees of these differs: {', '.join(other)}" if other else ""
    verdicts = {ANSWERS: Verdict(YES, _yes(not other), fault)}
    passed = direct.passed(), through.passed()
    for feature in PASSED_ON:
        steps = _OWN_STEPS.get(feature, ())
        same = all(seen[0][step] == seen[1][step] for step in steps)
        verdicts[feature] = _passed_on(feature, says, (feature in passed[0], feature in passed[1]), same)
    listed = direct.lists_new_tool(), through.lists_new_tool()
    fault = "the list that a client gets is an old one" if listed[0] and not listed[1] else ""
    verdicts[NEW_LIST] = Verdict(_yes(listed[0]), _yes(listed[1]), fault)
    return verdicts


def _tour(opened: Opened, says: frozenset[str], loopback: Loopback) -> Verdicts:
    tours = []
    for arm in ARMS:
        name: Name = str if arm == "direct" else through_carpool
        with ProgramStage(arm, loopback, servers=["odd"]) as stage, opened(stage) as command:
            tours.append(take_tour(stage, command, name, says))
    return judge_tours(says, *tours)


# --- what deaths and restarts show -----------------------------------------------------------------------


def _after(feature: str, said: str, wanted: str) -> Verdicts:
    """The verdict on the answer to a call after a death or restart of carpool."""
    good = said == wanted
    return {feature: Verdict(NONE, _yes(good), "" if good else f"the client reads: {said[:300]}")}


def _between(opened: Opened, feature: str, loopback: Loopback) -> Verdicts:
    """Calls before and after an act. A bridge may answer an error once and greet again after that."""
    with ProgramStage("carpool", loopback, servers=["odd"]) as stage, opened(stage) as command:
        pause = Pause(stage, "act", getattr(stage, BETWEEN_CALLS[feature]))
        echo = call(through_carpool("echo"), text="well")
        with beside(pause.run):
            first, _, last = travel(stage, command, [echo, pause.then(echo), echo])
    assert text(first) == "well", first
    return _after(feature, text(last), "well")


def _in_a_call(opened: Opened, feature: str, loopback: Loopback) -> Verdicts:
    """A call in which something happens to carpool, one at once after it and one when that is over.

    The one between may come while carpool restarts, and is then refused: it has not run.
    """
    act = IN_A_CALL[feature]
    with ProgramStage("carpool", loopback, servers=["odd"]) as stage, opened(stage) as command:
        slow = stage.slow_call(getattr(stage, act), ends_first=act == "restart_all")
        assert slow.during is not None
        [waits] = slow.calls
        echo = call(through_carpool("echo"), text="again")
        calls = [call(through_carpool("pid")), call(through_carpool("slow"), **waits.arguments), echo]
        with beside(slow.during) as acting:
            pause = Pause(stage, "over", acting.join)
            with beside(pause.run):
                _, slowly, _, last = travel(stage, command, [*calls, pause.then(echo)])
    return _after(feature, f"{text(slowly)}, {text(last)}", "slow is done, again")


def _restarts(
    opened: Opened, features: Mapping[str, str], run: Callable[..., Verdicts]
) -> tuple[BridgeScenario, ...]:
    return tuple(BridgeScenario((each,), partial(run, opened, each)) for each in features)


# --- the places --------------------------------------------------------------------------------------------


@contextmanager
def _in_front(bridge: UrlBridge, stage: ProgramStage) -> Iterator[list[str]]:
    """The bridge in front of the HTTP door; directly in front of a server at a URL."""
    if stage.arm == "direct":
        [odd] = stage.servers.values()
        with reached(stage, odd) as server:
            yield bridge.to_url(server.url())
        return
    stage.up(http=True)
    stage.greet_askable_agent()
    yield bridge.to_url(stage.url())


@contextmanager
def _behind(bridge: UrlBridge, stage: ProgramStage) -> Iterator[list[str]]:
    """The bridge as a server of carpool."""
    [odd] = stage.servers.values()
    with reached(stage, odd) as server, _before(bridge, stage, server) as command:
        yield command


@contextmanager
def _before(bridge: UrlBridge, stage: ProgramStage, server: BridgedServer) -> Iterator[list[str]]:
    """The bridge in front of this server, by carpool where the arm has one."""
    if stage.arm == "direct":
        yield bridge.to_url(server.url())
        return
    program, *words = bridge.to_url(server.url())
    stage.servers = {"odd": Entry(program, tuple(words))}
    stage.write_configuration()
    stage.up()
    entry = stage.carpool_entry()
    command = [entry.command, *entry.args]
    # Of one that starts a session for each request nobody can say when it has greeted.
    until(lambda: _lists_tools(stage, command), "an agent that can be asked gets the tools", BOUND_S)
    yield command
    stage.down()


def _lists_tools(stage: ProgramStage, command: list[str]) -> bool:
    [listed] = travel(stage, command, [do("tools/list")])
    return bool(listed.get("answer", {}).get("tools"))


@contextmanager
def _around(wrapper: Wrapper, stage: ProgramStage) -> Iterator[list[str]]:
    """The bridge around `carpool connect`; directly around the server. mcp-remote leads to one at a URL."""
    if stage.arm == "carpool":
        stage.up()
        stage.greet_askable_agent()
    [entry] = stage.entries().values()
    if not wrapper.ready:
        yield wrapper.around(entry, 0)
        return
    with BridgedServer(stage, lambda port: wrapper.around(entry, port), wrapper.ready) as server:
        yield URL_BRIDGES[0].to_url(server.url())


def _server_dies(bridge: UrlBridge, loopback: Loopback) -> Verdicts:
    """The HTTP server behind a bridge dies and comes back; a second agent comes after that."""
    last: list[tuple[str, str]] = []
    echo = call("echo", text="well")
    for arm in ARMS:
        name: Name = str if arm == "direct" else through_carpool
        echo = call(name("echo"), text="well")
        with ProgramStage(arm, loopback, servers=["odd"]) as stage:
            [odd] = stage.servers.values()
            with reached(stage, odd) as server, _before(bridge, stage, server) as command:
                pause = Pause(stage, "death", server.die_and_come_back)
                with beside(pause.run):
                    first, *_, own = travel(stage, command, [echo, pause.then(echo), *[echo] * (_TRIES - 1)])
                assert text(first) == "well", first
                *_, other = travel(stage, command, [echo] * _TRIES)
        last.append((text(own), text(other)))
    return judge_deaths(bridge.restores_session, *last)


def judge_deaths(restores: bool, direct: tuple[str, str], through: tuple[str, str]) -> Verdicts:
    """The verdicts on the last answers to the agent that was there and to the next one, in both arms.

    `restores`: the bridge is said to greet again when its server has forgotten its session.
    """
    said = dict(zip((SERVER_DIES, NEXT_AGENT), zip(direct, through, strict=True), strict=True))
    verdicts = {}
    for feature, (alone, behind) in said.items():
        fault = "" if (alone == "well") == (behind == "well") else f"the client reads: {behind[:300]}"
        verdicts[feature] = Verdict(_yes(alone == "well"), _yes(behind == "well"), fault)
    if (direct[0] == "well") != restores:
        was = verdicts[SERVER_DIES]
        fault = "the bridge by itself greets again, or does not, other than `bridges.py` says"
        verdicts[SERVER_DIES] = Verdict(was.direct, was.through, fault)
    return verdicts


def _tour_scenario(opened: Opened, passes: frozenset[str]) -> BridgeScenario:
    return BridgeScenario((ANSWERS, *PASSED_ON, NEW_LIST), partial(_tour, opened, passes))


_DOWN_AND_UP: Final = {"down and up between calls": "down_and_up"}


def _at_url(bridge: UrlBridge) -> Iterator[BridgePlace]:
    needs = tuple(dict.fromkeys(("supergateway", bridge.program.name)))
    in_front, behind = partial(_in_front, bridge), partial(_behind, bridge)
    yield BridgePlace(
        bridge.program,
        "in front of the HTTP door",
        (
            _tour_scenario(in_front, bridge.passes),
            *_restarts(in_front, IN_A_CALL, _in_a_call),
            *_restarts(in_front, _DOWN_AND_UP, _between),
        ),
        needs,
    )
    deaths = BridgeScenario((SERVER_DIES, NEXT_AGENT), partial(_server_dies, bridge))
    yield BridgePlace(
        bridge.program, "as a server of carpool", (_tour_scenario(behind, bridge.passes), deaths), needs
    )


def _wrapping(wrapper: Wrapper) -> BridgePlace:
    around = partial(_around, wrapper)
    scenarios = (_tour_scenario(around, wrapper.passes), *_restarts(around, BETWEEN_CALLS, _between))
    needs = (MCP_REMOTE.name, wrapper.program.name)
    return BridgePlace(wrapper.program, "around `carpool connect`", scenarios, needs)


# --- mcpo, which has an API of its own ----------------------------------------------------------------------


def _mcpo(stage: ProgramStage, *, at_door: bool) -> McpoApi:
    """mcpo in front of the odd server of the stage's arm, once it is entered."""
    if stage.arm == "direct":
        [odd] = stage.servers.values()
        return McpoApi(stage, odd, str)
    stage.up(http=True)
    entry = Entry(url=stage.url()) if at_door else stage.carpool_entry()
    return McpoApi(stage, entry, through_carpool)


def _mcpo_tour(at_door: bool, loopback: Loopback) -> Verdicts:
    seen, passed = [], []
    for arm in ARMS:
        with ProgramStage(arm, loopback, servers=["odd"]) as stage:
            api = _mcpo(stage, at_door=at_door)
            name: Name = through_carpool if arm == "direct" else str
            with api.server:
                tools = {name(tool): told for tool, told in api.tools().items()}
                answers = api.answers()
                seen.append({**tools, **answers})
                passed.append(api.passed(answers))
    other = sorted(name for name in seen[0].keys() | seen[1].keys() if seen[0].get(name) != seen[1].get(name))
    fault = f"what the caller sees of these differs: {', '.join(other)}" if other else ""
    verdicts = {ANSWERS: Verdict(YES, _yes(not other), fault)}
    for feature in PASSED_ON:
        verdicts[feature] = _passed_on(
            feature, frozenset(), (feature in passed[0], feature in passed[1]), True
        )
    return verdicts


def _mcpo_between(at_door: bool, feature: str, loopback: Loopback) -> Verdicts:
    with ProgramStage("carpool", loopback, servers=["odd"]) as stage:
        api = _mcpo(stage, at_door=at_door)
        with api.server:
            before = api.call("echo")
            getattr(stage, BETWEEN_CALLS[feature])()
            api.call("echo")  # one error may come before mcpo starts its server again
            after = api.call("echo")
    assert before == '200 "well"'
    return _after(feature, after, before)


def _mcpo_place(place: str, *, at_door: bool) -> BridgePlace:
    tour = BridgeScenario((ANSWERS, *PASSED_ON), partial(_mcpo_tour, at_door))
    acts = (BridgeScenario((each,), partial(_mcpo_between, at_door, each)) for each in BETWEEN_CALLS)
    return BridgePlace(MCPO, place, (tour, *acts), (MCPO.name,))


_ALL: Final = (
    *(place for bridge in URL_BRIDGES for place in _at_url(bridge)),
    *map(_wrapping, WRAPPERS),
    _mcpo_place("in front of the HTTP door", at_door=True),
    _mcpo_place("around `carpool connect`", at_door=False),
)
PLACES: Final[dict[str, BridgePlace]] = {each.name: each for each in _ALL}
FEATURES: Final = tuple(dict.fromkeys(feature for each in _ALL for feature in each.features))
"""Every feature of a place, each once."""
