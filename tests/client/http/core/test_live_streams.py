"""The stream of states: when the broker is asked, which state a watcher gets, and who may watch."""

import itertools
import json
from typing import Any

import msgspec
import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.effects import BeginEvents
from carpool.http.core.live_streams import (
    COMMENT_BYTES,
    COMMENT_EVERY_S,
    FROZEN_S,
    MAX_OF_PRINCIPAL,
    MAX_WATCHERS,
    READING_S,
)
from carpool_protocol.carrier.streams import OpenStream, StreamOpened
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, Json
from tests.kit.top_readings import call, counted, status_of

ASKED = ["carpool/status", "carpool/counters", "carpool/calls", "carpool/recent_calls"]
TOKENS = {name: hash_of(name) for name in ("agent", "reader", "full")}
OPERATORS: Any = {"reader": "read", "full": "full"}


def recent(number: int, **more: Any) -> Json:
    return {"call": f"c{number}", "outcome": "ok", "ended_at": 1.5 * number, "total_s": 0.2, **more}


class WatchedDoorRig(DoorCoreRig):
    """A door with tokens, and a broker whose calls grow with each reading."""

    def __init__(self, **more: Any) -> None:
        super().__init__(gate=AccessRules(tokens=TOKENS, operators=OPERATORS), **more)
        self.readings = 0
        self.asked_after: list[int] = []
        self.stream = 0
        self.begun: list[BeginEvents] = []

    def watch(self, token: str = "reader") -> int:
        return self.send("GET", "/operator/live", authorization=f"Bearer {token}")

    def asked(self) -> tuple[int, Json, int] | None:
        """The next request to the broker, if there is one."""
        while self.told:
            if isinstance(self.told[0][1], dict):
                return self.heard()
            s, word = self.word()
            if isinstance(word, OpenStream):
                self.say(s, StreamOpened("sid"))
        return None

    def answer_reading(self, *, status: Json | None = None) -> bool:
        """Answer the four requests of one reading. Returns False if the broker was not asked."""
        self.readings += 1
        first = self.asked()
        if first is None:
            return False
        found: tuple[int, Json, int] | None = first
        for method in ASKED:
            assert found is not None
            s, message, x = found
            assert message["method"] == method
            if method == "carpool/recent_calls":
                self.asked_after.append(message["params"]["after"])
            self.answer(s, x, 1, **self.result(method, status))
            found = self.asked()
        return True

    def result(self, method: str, status: Json | None) -> Json:
        number = self.readings
        match method:
            case "carpool/status":
                return status or status_of()
            case "carpool/counters":
                snapshot = counted("r", float(number), {("git", "log"): 10 * number})
                found: Json = json.loads(msgspec.json.encode(snapshot))
                return found
            case "carpool/calls":
                return {"calls": [call("c17")]}
            case _:
                return {"calls": [recent(number)], "newest": 100 + number, "left_out": 0}

    def states(self, x: int) -> list[Json]:
        return [
            json.loads(line[6:])
            for write in self.streams[x]
            for line in write.data.decode().split("\n")
            if write.data.startswith(b"event: state") and line.startswith("data: ")
        ]


@behaviour("web:same")
def test_a_watcher_gets_its_right_and_a_state_for_each_reading() -> None:
    rig = WatchedDoorRig()
    x = rig.watch()
    assert rig.events(x) == [{"right": "read"}]
    assert rig.answer_reading()
    assert [each["totals"]["sessions"] for each in rig.states(x)] == [2]
    rig.wait(1.0)
    assert rig.answer_reading()
    first, second = rig.states(x)
    assert (first["calls_per_s"], second["calls_per_s"]) == (0.0, 10.0)
    rows = {row[0]: row[1] for row in second["tables"]["servers"]["rows"]}
    assert rows["git"][:6] == ["git", "serving", "2", "2", "1", "10.0"]
    assert [row[0] for row in second["tables"]["agents"]["rows"]] == ["s1", "s2"]
    assert [row[0] for row in second["tables"]["calls"]["rows"]] == ["c17"]
    assert second["sentence"]
    assert rig.asked_after == [0, 101]
    assert [each["call"] for each in second["recent"]] == ["c2", "c1"], "the newest is first"


@behaviour("web:frozen")
def test_the_broker_is_asked_once_for_all_watchers() -> None:
    rig = WatchedDoorRig()
    watchers = [rig.watch() for _ in range(5)]
    assert rig.answer_reading()
    assert rig.asked() is None
    assert {len(rig.states(x)) for x in watchers} == {1}
    late = rig.watch()
    assert len(rig.states(late)) == 1, "it gets the newest state at once"


@behaviour("web:frozen")
def test_watchers_that_come_and_go_do_not_have_the_broker_asked_more_often() -> None:
    rig = WatchedDoorRig()
    rig.gone(rig.watch())
    assert rig.answer_reading()
    for _ in range(20):
        x = rig.watch()
        assert len(rig.states(x)) == 1
        rig.gone(x)
    assert rig.asked() is None, "no time has passed"
    rig.wait(1.0)  # nobody watches, so the state is dropped
    rig.watch()
    assert rig.answer_reading()
    rig.wait(0.5)
    assert rig.asked() is None


@behaviour("web:frozen")
@pytest.mark.parametrize(("cost_s", "quiet_s"), [(0.02, 0), (0.3, 3), (1.0, 10)])
def test_the_pause_after_a_reading_is_ten_times_as_long_as_the_door_has_worked(
    cost_s: float, quiet_s: int
) -> None:
    rig = WatchedDoorRig(cpu_s=itertools.count(0.0, cost_s).__next__)
    rig.watch()
    assert rig.answer_reading()
    for _ in range(quiet_s - 1):
        rig.wait(1.0)
        assert rig.asked() is None
    rig.wait(1.0)
    assert rig.answer_reading()


@behaviour("web:frozen")
def test_a_frozen_watcher_has_one_state_at_most_and_then_the_newest_one() -> None:
    rig = WatchedDoorRig()
    frozen, other = rig.watch(), rig.watch()
    rig.answer_reading()
    rig.take(rig.core.client_blocked(frozen, rig.now))
    for _ in range(10):
        rig.wait(1.0)
        assert rig.answer_reading()
    assert (len(rig.states(frozen)), len(rig.states(other))) == (1, 11)
    rig.take(rig.core.client_has_room(frozen))
    assert rig.states(frozen)[1:] == [rig.states(other)[-1]]


@behaviour("web:frozen")
def test_the_broker_is_not_asked_while_no_watcher_reads() -> None:
    rig = WatchedDoorRig()
    watchers = [rig.watch() for _ in range(20)]
    rig.answer_reading()
    for x in watchers:
        rig.take(rig.core.client_blocked(x, rig.now))
    for _ in range(5):
        rig.wait(1.0)
    assert rig.asked() is None
    rig.take(rig.core.client_has_room(watchers[3]))
    rig.wait(1.0)
    assert rig.answer_reading()


@behaviour("web:frozen")
def test_the_broker_is_not_asked_after_the_last_watcher_has_left() -> None:
    rig = WatchedDoorRig()
    x = rig.watch()
    rig.answer_reading()
    rig.gone(x)
    for _ in range(3):
        rig.wait(1.0)
    assert rig.asked() is None


@behaviour("web:frozen")
def test_there_is_a_bound_on_the_watchers_of_one_token_and_of_all() -> None:
    rig = WatchedDoorRig()
    for _ in range(MAX_OF_PRINCIPAL):
        rig.watch("reader")
    refused = rig.watch("reader")
    assert rig.status(refused) == 503
    assert "watch: close some" in rig.body(refused)["error"]["message"]
    for _ in range(MAX_WATCHERS - MAX_OF_PRINCIPAL):
        assert rig.watch("full") in rig.streams
    assert rig.status(rig.watch("full")) == 503


@behaviour("web:frozen")
@pytest.mark.parametrize("full_of", ["this token", "all tokens"])
def test_a_newcomer_takes_the_place_of_the_watcher_that_has_not_read_for_longest(full_of: str) -> None:
    rig = WatchedDoorRig()
    watchers = [rig.watch("reader") for _ in range(MAX_OF_PRINCIPAL)]
    if full_of == "all tokens":
        watchers = [rig.watch("full") for _ in range(MAX_WATCHERS - MAX_OF_PRINCIPAL)]
    for x in (watchers[7], watchers[3]):
        rig.take(rig.core.client_blocked(x, rig.now))
        rig.wait(1.0)
    rig.wait(FROZEN_S - 2.5)
    assert rig.status(rig.watch("full")) == 503 if full_of == "all tokens" else rig.watch("full")
    token = "full" if full_of == "all tokens" else "reader"
    assert rig.status(rig.watch(token)) == 503, "one that reads slowly is not frozen"
    rig.wait(0.5)
    assert rig.watch(token) in rig.streams
    assert rig.ended == [watchers[7]]
    rig.take(rig.core.client_has_room(watchers[3]))
    rig.wait(FROZEN_S)
    assert rig.status(rig.watch(token)) == 503, "it reads again"
    assert rig.ended == [watchers[7]]


@behaviour("web:frozen")
def test_watchers_get_a_long_comment_where_a_newcomer_is_refused_and_seldom() -> None:
    """The system keeps some small states for a client that does not read: those show nothing."""
    rig = WatchedDoorRig()
    watchers = [rig.watch("reader") for _ in range(MAX_OF_PRINCIPAL)]
    other = rig.watch("full")
    rig.take(rig.core.client_blocked(watchers[0], rig.now))

    def comments(x: int) -> int:
        return sum(len(each.data) > COMMENT_BYTES for each in rig.streams[x])

    for _ in range(3):
        rig.watch("reader")
    assert [comments(x) for x in (watchers[0], *watchers[1:], other)] == [0, *[1] * 31, 0]
    rig.take(rig.core.client_has_room(watchers[0]))
    rig.wait(COMMENT_EVERY_S)
    rig.watch("reader")
    assert [comments(x) for x in watchers] == [1, *[2] * 31]


def test_watchers_are_told_that_the_broker_is_away_and_go_on_with_the_next_one() -> None:
    rig = WatchedDoorRig()
    x = rig.watch()
    rig.answer_reading()
    rig.take(rig.core.broker_lost(rig.now))
    assert rig.streams[x][-1].data == b"event: away\ndata: {}\n\n"
    rig.told.clear()
    rig.take(rig.core.broker_connected(rig.now))
    rig.wait(1.0)
    assert rig.answer_reading()
    assert len(rig.states(x)) == 2
    assert rig.asked_after == [0, 0], "another broker has other numbers"


def test_a_broker_that_does_not_answer_is_told_as_away_and_asked_again() -> None:
    rig = WatchedDoorRig()
    x = rig.watch()
    assert rig.asked() is not None
    rig.wait(READING_S)
    assert rig.streams[x][-1].data.startswith(b"event: away")
    rig.wait(1.0)
    assert rig.answer_reading()
    assert len(rig.states(x)) == 1


def test_a_broker_of_an_earlier_version_is_shown_without_recent_calls() -> None:
    rig = WatchedDoorRig()
    x = rig.watch()
    for method in ASKED:
        found = rig.asked()
        assert found is not None
        s, _, exchange = found
        if method == "carpool/recent_calls":
            rig.error(s, exchange, -32601)
        else:
            rig.answer(s, exchange, 1, **rig.result(method, None))
    assert [each["recent"] for each in rig.states(x)] == [[]]


@behaviour("web:access")
def test_a_stream_ends_with_the_token_that_it_began_with() -> None:
    rig = WatchedDoorRig()
    reader, full = rig.watch("reader"), rig.watch("full")
    rest = {name: value for name, value in TOKENS.items() if name != "reader"}
    rig.take(rig.core.set_gate(AccessRules(tokens=rest, operators={"full": "full"}), rig.now))
    assert rig.ended == [reader]
    assert rig.answer_reading()
    assert rig.states(full)


@behaviour("web:access")
@pytest.mark.parametrize(("token", "status"), [("", 401), ("agent", 403)])
def test_only_operators_may_watch(token: str, status: int) -> None:
    rig = WatchedDoorRig()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    assert rig.status(rig.send("GET", "/operator/live", **headers)) == status
    assert rig.asked() is None


def test_only_get_begins_a_stream() -> None:
    rig = WatchedDoorRig()
    x = rig.send("POST", "/operator/live", b"{}", authorization="Bearer full")
    assert rig.status(x) == 405


@pytest.mark.parametrize("ends", ["for the next door", "for good"])
def test_the_streams_of_all_watchers_end_with_the_door_and_none_begins(ends: str) -> None:
    rig = WatchedDoorRig()
    watchers = [rig.watch("reader"), rig.watch("full")]
    assert rig.answer_reading()
    rig.take(rig.core.door_ends(rig.now) if ends == "for the next door" else rig.core.watchers_end())
    assert rig.ended == watchers
    late = rig.watch()
    assert rig.answers[late].status == 503
    rig.wait(1.0)
    assert rig.ended == watchers
