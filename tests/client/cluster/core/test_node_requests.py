"""Requests of one node to another: their numbers, their ends, their bounds, and the right to drain."""

from typing import Final

import msgspec
import pytest

from carpool.cluster.core.channel import MAX_CLOSES
from carpool.cluster.core.frames import (
    CHANNEL_VERSION,
    AnswerRecord,
    AnyRecord,
    ChannelFrame,
    OpenRecord,
    RequestRecord,
    decode_frame,
    encode_frame,
)
from carpool.cluster.core.minute_counts import MINUTE_S, MinuteCounts
from carpool.cluster.core.node import (
    MAX_TURNS,
    DrainingAsked,
    NodeAnswered,
    NodeAsked,
    NodeCore,
    NodeEffect,
    NotReachedError,
    OwnOfferChanged,
    Report,
)
from carpool.cluster.core.node_requests import (
    MAX_ANSWERS,
    MAX_DRAINS,
    MAX_IN_WORK,
    MAX_STEPS,
    MAX_TEXT,
    MAX_UNIX_S,
    REQUEST_S,
    NodeAnswer,
    NodeRequests,
    NodeStep,
    encode_answer,
    may_drain,
    read_answer,
)
from carpool.cluster.core.offers import MAX_COUNT
from carpool.cluster.core.sessions import SessionName
from tests.behaviours import behaviour
from tests.kit.node_world import NodeWorld


def test_an_answer_counts_once_and_from_the_node_that_was_asked() -> None:
    requests = NodeRequests()
    number = requests.begin("beta", 1.0)
    assert requests.answered("gamma", number, 1.5) is None
    assert requests.answered("beta", number, 1.5) == 0.5
    assert requests.answered("beta", number, 1.6) is None


def test_a_request_without_an_answer_ends_after_its_time_or_with_its_node() -> None:
    requests = NodeRequests()
    slow, lost = requests.begin("beta", 0.0), requests.begin("gamma", 1.0)
    assert requests.next_deadline() == REQUEST_S
    assert requests.node_lost("gamma") == [lost]
    assert requests.expired(REQUEST_S - 0.1) == []
    assert requests.expired(REQUEST_S) == [slow]
    assert requests.next_deadline() == float("inf")


def test_one_node_has_a_bounded_number_of_requests_in_work() -> None:
    requests = NodeRequests()
    asked = [requests.accept("beta", number) for number in range(MAX_IN_WORK)]
    assert all(asked)
    assert not requests.accept("beta", MAX_IN_WORK)
    assert requests.accept("gamma", MAX_IN_WORK), "others are not held up"
    assert requests.finish("beta", asked[0]) == 0
    assert requests.finish("beta", asked[0]) is None
    assert requests.accept("beta", MAX_IN_WORK)
    requests.check()


def test_an_answer_is_cut_to_its_limits_and_one_that_cannot_be_read_refuses() -> None:
    steps = [NodeStep(float(at), "broker", "x" * 2 * MAX_TEXT) for at in range(2 * MAX_STEPS)]
    found = read_answer(encode_answer(NodeAnswer(call="c1", steps=steps)))
    assert len(found.steps) == MAX_STEPS
    assert (found.steps[-1].at, len(found.steps[-1].text)) == (2 * MAX_STEPS - 1, MAX_TEXT)
    assert read_answer(b"\xff").refused
    assert read_answer(b'{"steps": 3}').refused


@behaviour("cluster:hostile")
def test_an_answer_that_keeps_to_no_limit_is_cut_when_it_is_read() -> None:
    times = (-1e18, 1e300, *map(float, range(2 * MAX_STEPS)))
    steps = [[at, "w" * 2 * MAX_TEXT, "x" * 2 * MAX_TEXT] for at in times]
    told = {"refused": "r" * 2 * MAX_TEXT, "call": "c" * 2 * MAX_TEXT, "unix_s": 1e308, "steps": steps}
    found = read_answer(msgspec.json.encode(told))
    assert (len(found.refused), len(found.call), found.unix_s) == (MAX_TEXT, MAX_TEXT, MAX_UNIX_S)
    assert [each.at for each in found.steps] == list(range(MAX_STEPS, 2 * MAX_STEPS))
    assert {(len(each.where), len(each.text)) for each in found.steps} == {(MAX_TEXT, MAX_TEXT)}
    assert read_answer(b'{"unix_s": -1e308}').unix_s == 0.0
    hostile = read_answer(b'{"load": 9007199254740993, "open_calls": -5}')
    assert (hostile.load, hostile.open_calls) == (MAX_COUNT, -1)


@behaviour("cluster:drain_by")
def test_the_setting_names_who_may_drain() -> None:
    assert may_drain("beta", ["*"])
    assert may_drain("beta", ["gamma", "beta"])
    assert not may_drain("beta", ["gamma"])
    assert not may_drain("beta", [])


NOTED: Final = NodeAsked | NodeAnswered | DrainingAsked | OwnOfferChanged


class AskedWorld(NodeWorld):
    """Notes what nodes ask of each other, and the answers."""

    def __init__(self, *names: str, drain_by: tuple[str, ...] = ("*",)) -> None:
        self.noted: dict[str, list[NodeEffect]] = {name: [] for name in names}
        super().__init__(*names, drain_by=drain_by)
        self.run(3.0)

    def perform(self, node: str, effects: list[NodeEffect]) -> None:
        """Note what concerns requests, and do the rest."""
        self.noted[node] += [e for e in effects if isinstance(e, NOTED)]
        super().perform(node, effects)


@behaviour("cluster:drain_by")
def test_a_node_drains_for_those_that_may_and_says_so() -> None:
    world = AskedWorld("alpha", "beta")
    alpha = world.cores["alpha"]
    number = alpha.request("beta", "drain", world.now)
    world.run(1.0)
    assert world.noted["beta"] == [
        OwnOfferChanged(),
        DrainingAsked("alpha", is_on=True, is_allowed=True),
    ]
    assert world.cores["beta"].is_draining
    [answered] = world.noted["alpha"]
    assert isinstance(answered, NodeAnswered)
    assert (answered.number, answered.answer.refused, answered.is_received) == (number, "", True)


@behaviour("cluster:drain_by")
def test_a_node_tells_those_that_may_not_drain_it_that_they_may_not() -> None:
    world = AskedWorld("alpha", "beta", drain_by=("gamma",))
    world.cores["beta"].set_draining(is_on=True)
    world.cores["alpha"].request("beta", "undrain", world.now)
    world.run(1.0)
    assert world.noted["beta"] == [DrainingAsked("alpha", is_on=False, is_allowed=False)]
    assert world.cores["beta"].is_draining
    [refused] = world.noted["alpha"]
    assert isinstance(refused, NodeAnswered)
    assert (refused.is_received, "`cluster.drain_by`" in refused.answer.refused) == (True, True)


def test_a_drain_that_is_repeated_is_an_act_and_neither_a_change_nor_a_line_of_the_log() -> None:
    flood = Flood()
    for number in (1, 2):
        flood.send([RequestRecord(number, "drain")], 1.0)
    assert sum(isinstance(each, DrainingAsked) for each in flood.effects) == 2
    assert flood.effects.count(OwnOfferChanged()) == 1
    assert flood.effects.count(Report("node gamma asks this one to drain")) == 1
    assert flood.core.set_draining(is_on=True) == []
    assert flood.core.set_draining(is_on=False) == [OwnOfferChanged()]


@behaviour("cluster:drain_by")
def test_who_asks_for_a_drain_is_not_told_that_it_is_done_before_the_node_has_said_so() -> None:
    world = AskedWorld("alpha", "beta")
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.cores["alpha"].request("beta", "drain", world.now)
    world.run(REQUEST_S + 1.0)
    [answered] = world.noted["alpha"]
    assert isinstance(answered, NodeAnswered)
    assert not answered.is_received
    assert "has not answered" in answered.answer.refused


def test_a_node_that_is_not_reached_is_not_asked() -> None:
    core = NodeCore("alpha", "", iter(range(1, 9)).__next__)
    with pytest.raises(NotReachedError, match="beta is not reached"):
        core.request("beta", "ping", 0.0)


def test_a_request_that_a_node_does_not_know_is_answered() -> None:
    """As one of a later carpool would be, whose records are the same."""
    world = AskedWorld("alpha", "beta")
    world.cores["alpha"].request("beta", "juggle", world.now)  # type: ignore[arg-type]
    world.run(1.0)
    [answered] = world.noted["alpha"]
    assert isinstance(answered, NodeAnswered)
    assert "does not know this request" in answered.answer.refused


@behaviour("cluster:status")
def test_figures_that_a_node_is_asked_for_stand_in_place_of_those_of_its_offer() -> None:
    world = AskedWorld("alpha", "beta")
    alpha, beta = world.cores["alpha"], world.cores["beta"]
    world.run(4.0)
    assert alpha.offer_age_s("beta", world.now) > 1.0
    alpha.request("beta", "figures", world.now)
    world.run(0.2)
    [asked] = world.noted["beta"]
    assert isinstance(asked, NodeAsked)
    assert asked.kind == "figures"
    beta.answer("alpha", asked.number, NodeAnswer(load=7, open_calls=3))
    world.run(0.2)
    known = alpha.offers["beta"]
    assert (known.load, known.open_calls, known.servers[0].name) == (7, 3, "echo")
    assert alpha.offer_age_s("beta", world.now) < 1.0
    alpha.request("beta", "ping", world.now)
    world.run(0.2)
    beta.answer("alpha", asked.number + 1, NodeAnswer(unix_s=1.0))
    world.run(0.2)
    assert alpha.offers["beta"] == known, "an answer without figures changes none"


class Flood:
    """A hostile node that asks and acknowledges nothing, and what the node alpha makes of it."""

    def __init__(self) -> None:
        self.core = NodeCore("alpha", "e", iter(range(1, 99)).__next__)
        self.number = 0
        self.effects: list[NodeEffect] = []
        self.core.frame_received("gamma", self._frame(0, 0, []), 0.0)
        [(_, greeting)] = self.core.take_frames(0.0)
        self.target = decode_frame(greeting).source

    def _frame(self, target: int, number: int, records: list[AnyRecord]) -> bytes:
        return encode_frame(
            ChannelFrame(CHANNEL_VERSION, 7, target, number, 0, missing=False, records=records)
        )

    def send(self, records: list[AnyRecord], now: float) -> None:
        """Let these records come, and tell what there is to send."""
        self.number += 1
        data = self._frame(self.target, self.number, records)
        self.effects += self.core.frame_received("gamma", data, now)
        self.effects += self.core.tick(now)
        self.core.take_frames(now)

    def waiting(self, kind: type[AnyRecord]) -> int:
        """The records that wait for the hostile node."""
        return self.core._nodes["gamma"].channel.waiting(kind)


@behaviour("cluster:hostile")
@pytest.mark.parametrize("kind", ["drain", "ping", "juggle"])
def test_a_flood_of_requests_leaves_few_lines_few_acts_and_few_answers(kind: str) -> None:
    flood = Flood()
    for turn in range(200):
        kinds = ("drain", "undrain") if kind == "drain" else (kind, kind)
        flood.send([RequestRecord(100 * turn + each, kinds[each % 2]) for each in range(100)], turn / 100)
        for asked in flood.effects:
            if isinstance(asked, NodeAsked):
                flood.core.answer("gamma", asked.number, NodeAnswer(unix_s=1.0))
        flood.effects = [each for each in flood.effects if not isinstance(each, NodeAsked)]
    assert sum(isinstance(each, DrainingAsked) for each in flood.effects) <= MAX_DRAINS + 2 * (
        kind == "drain"
    )
    told = [each for each in flood.effects if isinstance(each, Report)]
    turns = [each for each in told if each.text.startswith("node gamma asks this one to")]
    assert len(turns) <= MAX_DRAINS * (kind == "drain")
    assert len(told) - len(turns) <= 3
    assert flood.waiting(AnswerRecord) <= MAX_ANSWERS + MAX_IN_WORK
    flood.core.check()


@behaviour("cluster:acts", "cluster:hostile")
def test_each_drain_that_takes_effect_is_told_and_those_too_many_are_counted_once_a_minute() -> None:
    flood = Flood()
    for number in range(MAX_DRAINS + 7):
        flood.send([RequestRecord(number, "drain")], 1.0)
    done = [each for each in flood.effects if isinstance(each, DrainingAsked)]
    assert done == MAX_DRAINS * [DrainingAsked("gamma", is_on=True, is_allowed=True)]
    assert flood.core.next_deadline() <= 1.0 + MINUTE_S
    assert not any(isinstance(each, DrainingAsked) for each in flood.core.tick(MINUTE_S))
    told = [each for each in flood.core.tick(1.0 + MINUTE_S) if isinstance(each, DrainingAsked)]
    assert told == [DrainingAsked("gamma", is_on=True, is_allowed=False, times=7)]
    assert not any(isinstance(each, DrainingAsked) for each in flood.core.tick(3 * MINUTE_S))


@behaviour("cluster:hostile")
def test_a_node_that_opens_sessions_by_the_thousand_and_takes_no_answer_is_lost() -> None:
    flood = Flood()
    for turn in range(3):
        flood.send(
            [OpenRecord(MAX_CLOSES * turn + each, "") for each in range(1, MAX_CLOSES + 1)], turn / 100
        )
    assert "gamma" not in flood.core._nodes
    assert any(isinstance(each, Report) and "opens sessions faster" in each.text for each in flood.effects)


@behaviour("cluster:hostile")
def test_a_node_that_starts_again_without_end_has_few_lines_in_the_log() -> None:
    core = NodeCore("alpha", "e", iter(range(1, 9999)).__next__)
    effects: list[NodeEffect] = []
    for life in range(1, 1000):
        frame = ChannelFrame(CHANNEL_VERSION, life, 0, 0, 0, missing=False, records=[])
        effects += core.frame_received("gamma", encode_frame(frame), life / 100)
    assert sum(isinstance(each, Report) for each in effects) <= MAX_TURNS


def test_drains_are_allowed_again_in_the_next_minute() -> None:
    counts = MinuteCounts(1)
    assert counts.allows("beta", 0.0)
    assert not counts.allows("beta", MINUTE_S - 0.1)
    assert counts.allows("gamma", MINUTE_S - 0.1), "others are not held up"
    assert counts.allows("beta", MINUTE_S)


def test_all_nodes_together_have_a_bound_of_their_own() -> None:
    counts = MinuteCounts(2, 3)
    assert [counts.allows(node, 0.0) for node in ("a", "a", "a", "b", "c")] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert counts.allows("c", MINUTE_S)


@behaviour("cluster:story")
def test_a_story_is_asked_for_by_the_session_of_the_node_that_asks() -> None:
    """The name that the other node gives the session holds the asking node, which the link has proven."""
    world = AskedWorld("alpha", "beta")
    number = world.cores["alpha"].request("beta", "story", world.now, session=3, call=17)
    world.run(1.0)
    assert world.noted["beta"] == [NodeAsked("alpha", number, "story", SessionName("alpha", -3), 17)]
    world.cores["beta"].answer("alpha", number, NodeAnswer(call="c4"))
    world.cores["beta"].answer("alpha", number, NodeAnswer(call="twice"))
    world.run(1.0)
    [answered] = world.noted["alpha"]
    assert isinstance(answered, NodeAnswered)
    assert answered.answer.call == "c4"


@behaviour("cluster:story")
def test_an_answer_to_an_earlier_life_of_a_node_answers_no_request_of_the_next_one() -> None:
    """Each life of a process numbers its requests from 1."""
    world = AskedWorld("alpha", "beta")
    world.cores["alpha"].request("beta", "story", world.now, session=5, call=1)
    world.run(1.0)
    world.start("alpha")
    world.run(3.0)
    number = world.cores["alpha"].request("beta", "story", world.now, session=9, call=2)
    world.run(1.0)
    first, second = (each for each in world.noted["beta"] if isinstance(each, NodeAsked))
    for asked, call in ((first, "of life 1"), (second, "of life 2")):
        world.cores["beta"].answer("alpha", asked.number, NodeAnswer(call=call))
    world.run(1.0)
    [answered] = world.noted["alpha"]
    assert isinstance(answered, NodeAnswered)
    assert (answered.number, answered.answer.call) == (number, "of life 2")
