"""What a shim says to the next broker, after any traffic and a death at any moment.

The broker's half of the accounting (`transport.delivery_log`) and the shim's (`kept_lines`, `resume`) face
each other here: what matters is what they make of it together.
"""

import json
import marshal
import os
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.shim import resume as resume_module
from carpool.shim.kept_lines import KEEP_BYTES, SETTLED, KeptLines
from carpool.shim.resume import resume as resume_session
from carpool_broker.core.model.effects import AcknowledgeListen
from carpool_broker.core.model.events import RequestCancelled
from carpool_broker.era import handshake, stateless_encode
from carpool_broker.era import repeated_lines as kept
from carpool_broker.era.stateless_encode import ACKNOWLEDGED
from carpool_broker.transport.delivery_log import DeliveryLog
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, name_of
from carpool_protocol.carrier.attach_line import (
    ATTACHED_PREFIX,
    Attach,
    ResumeSession,
    Settled,
    attach_line,
    attached_line,
    environment_line,
    parse_attach,
    settled_line,
)
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from carpool_protocol.wire.jsonrpc import error_body_line, request_line, result_line
from tests.behaviours import behaviour

Json = dict[str, Any]
S: Final = SessionId("s1")
HELLO: Final = attach_line(Attach(version=ATTACH_VERSION, carrier="shim", keeps=True))
CALL: Final = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"t"}}'
BODY: Final = RawJson(b"{}")
REQUESTS: Final[dict[str, bytes]] = {
    "call": CALL,
    "greet": b'{"jsonrpc":"2.0","id":%b,"method":"initialize","params":{}}',
    "level": b'{"jsonrpc":"2.0","id":%b,"method":"logging/setLevel","params":{"level":"info"}}',
    "list": b'{"jsonrpc":"2.0","id":%b,"method":"tools/list"}',
    "watch": b'{"jsonrpc":"2.0","id":%b,"method":"resources/subscribe","params":{"uri":"u"}}',
    "unwatch": b'{"jsonrpc":"2.0","id":%b,"method":"resources/unsubscribe","params":{"uri":"u"}}',
    "listen": b'{"jsonrpc":"2.0","id":%b,"method":"subscriptions/listen","params":{"notifications":{},'
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}}}}',
}
KINDS: Final = {
    "initialize": "greeting",
    "logging/setLevel": "level",
    "tools/list": "list",
    "resources/subscribe": "watch",
    "resources/unsubscribe": "watch",
}
"""What only the last of its kind counts for."""


def acknowledgement(request: bytes) -> bytes:
    """As the broker words it."""
    return stateless_encode.acknowledged_line(AcknowledgeListen(S, RawJson(request), ("tools",), ("u",)))


def message_of(line: bytes) -> Any:
    return json.loads(line) if line.strip() else None


def requests_in(line: bytes) -> list[Json]:
    message = message_of(line)
    parts = message if isinstance(message, list) else [message]
    return [part for part in parts if isinstance(part, dict) and "method" in part and "id" in part]


def applied(lines: list[Json]) -> dict[str, int]:
    """What a session is made of after these requests, all granted: the id of the one that counts, by kind."""
    made: dict[str, int] = {}
    for each in lines:
        kind = KINDS.get(each["method"])
        if each["method"] == "resources/unsubscribe":
            made.pop("watch", None)
        elif kind is not None:
            made[kind] = each["id"]
    return made


class DelayedLines:
    """A shim's memory and a broker's, and the lines between them that are not there yet."""

    def __init__(self) -> None:
        self.kept = KeptLines()
        self.delivery_log = DeliveryLog(Epoch("e1"))
        self.under_way: list[bytes] = []
        """Of the broker, not at the shim."""
        self.unread: list[bytes] = []
        """Of the agent, not at the broker."""
        self.open: list[bytes] = []
        """Ids of requests that the broker has read and not answered."""
        self.silent: set[bytes] = set()
        """Ids of requests that are replayed and not answered again yet."""
        self.said: list[bytes] = []
        """By the agent, ever."""
        self.has: list[Json] = []
        """What the agent was told, ever."""
        self.count = 0
        self.half = b""
        self.next: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
        self.kept.broker_attached(attached_line("s1", [], "0.secret", "e1"))

    # --- the agent ---

    def says(self, what: Any) -> None:
        match what:
            case "batch":
                self.sends(b"[%b , %b]" % (CALL % self.fresh(), CALL % self.fresh()))
            case "blank":
                self.sends(b"")
            case "notice":
                self.sends(b'{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}')
            case "ready":
                self.sends(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            case str(kind):
                self.sends(REQUESTS[kind] % self.fresh())
            case "says", int(at) if asks := self.open_asks():
                self.sends(b'{"jsonrpc":"2.0","id":"%b","result":{}}' % asks[at % len(asks)].encode())
            case "cancels", int(at) if asked := self.unanswered(listens=True):
                params = b'{"requestId":%d}' % asked[at % len(asked)]
                self.sends(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%b}' % params)

    def fresh(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    def sends(self, line: bytes) -> None:
        self.kept.agent_lines_sent(line + b"\n")
        self.said.append(line)
        self.unread.append(line)

    def answered(self) -> list[int]:
        return [each["id"] for each in self.has if "method" not in each]

    def cancelled(self) -> set[int]:
        messages = [message_of(line) for line in self.said]
        return {
            each["params"]["requestId"]
            for each in messages
            if isinstance(each, dict) and each.get("method") == "notifications/cancelled"
        }

    def acknowledged(self) -> dict[int, Json]:
        """The listens in force, as far as the agent knows, and what it was told of them."""
        acks = [each["params"] for each in self.has if each.get("method") == ACKNOWLEDGED]
        told = {each["_meta"]["io.modelcontextprotocol/subscriptionId"]: each for each in acks}
        assert len(told) == len(acks), "told twice that it listens"
        return {request: each for request, each in told.items() if request not in self.cancelled()}

    def unanswered(self, *, listens: bool = False) -> list[int]:
        over = {*self.answered(), *self.cancelled(), *(() if listens else self.acknowledged())}
        return [each["id"] for line in self.said for each in requests_in(line) if each["id"] not in over]

    def open_asks(self) -> list[str]:
        messages = [message_of(line) for line in self.said]
        given = [each["id"] for each in messages if isinstance(each, dict) and "method" not in each]
        asked = [each["id"] for each in self.has if "method" in each and "id" in each]
        return [ask for ask in asked if ask not in given]

    # --- the broker ---

    def reads(self) -> None:
        """The broker takes the next line."""
        if not self.unread:
            return
        line = self.unread.pop(0)
        meaning = handshake.read_line(S, line) if line else None
        self.delivery_log.line_received(meaning, line)
        parts = [meaning]
        if isinstance(meaning, handshake.LineBatch):
            parts = [handshake.read_line(S, part) for part in meaning.lines]
            for part in parts:
                self.delivery_log.batch_part_received(part)
        for part in parts:
            if isinstance(part, RequestCancelled):
                if self.is_listen(bytes(part.id)):
                    self.silent.discard(bytes(part.id))  # it is acknowledged no more
                if bytes(part.id) in self.open:
                    self.open.remove(bytes(part.id))
            elif (request := getattr(part, "id", None)) is not None:
                self.open.append(bytes(request))
        self.delivery_log.check()

    def does(self, what: str, at: int) -> None:
        if what == "settles":
            self.settles()
        elif self.silent and what == "answers again":
            request = sorted(self.silent)[at % len(self.silent)]
            if self.is_listen(request):
                self.goes(acknowledgement(request), request, answers=False)
            else:
                self.goes(result_line(RawJson(request), BODY), request, answers=True)
        elif self.open and self.is_listen(self.open[at % len(self.open)]) and what != "errors":
            request = self.open.pop(at % len(self.open))
            self.goes(acknowledgement(request), request, answers=False)
        elif self.open and what == "asks":
            request, ask = self.open[at % len(self.open)], f"ask{self.fresh().decode()}"
            line = request_line(RawJson(b'"%b"' % ask.encode()), "sampling/createMessage", BODY)
            self.goes(line, request, answers=False)
            self.delivery_log.ask_sent(AskId(ask), RawJson(request), line)
        elif self.open:
            request = self.open.pop(at % len(self.open))
            line_of = error_body_line if what == "errors" else result_line
            self.goes(line_of(RawJson(request), BODY), request, answers=True)
        self.delivery_log.check()

    def is_listen(self, request: bytes) -> bool:
        return REQUESTS["listen"] % request in self.said

    def goes(self, line: bytes, about: bytes, *, answers: bool) -> None:
        if self.delivery_log.due:
            self.settles()
        goes = self.delivery_log.line_sent(line, RawJson(about), answers=answers)
        assert goes == (about not in self.silent)
        self.silent.discard(about)
        if goes:
            self.under_way.append(line)

    def settles(self) -> None:
        self.under_way.append(settled_line(self.delivery_log.take_settled()))

    def arrives(self) -> None:
        """The shim reads the next line of the broker."""
        if self.under_way:
            line = self.under_way.pop(0)
            if line.startswith(SETTLED):
                self.kept.lines_settled(line)
            else:
                self.kept.broker_lines_passed(line)
                self.has.append(message_of(line))

    # --- its death ---

    def dies(self, untaken: int = 0) -> ResumeSession:
        """What the shim says next is what it should say. `untaken`: so many of the lines that the broker has
        not read never reached it.
        """
        never = self.unread[max(len(self.unread) - untaken, 0) :]
        said = resume_session(
            self.kept, HELLO, again=False, untaken_bytes=len(self.half) + sum(len(line) + 1 for line in never)
        )
        first, *lines, self.half = said.split(b"\n")
        attach = parse_attach(first)
        assert isinstance(attach, Attach)
        assert attach.resume is not None
        resume = attach.resume
        assert (resume.session, resume.supervisor) == ("s1", "e1")
        over = resume.kept + resume.open
        self.next = lines[: resume.kept], lines[resume.kept : over], lines[over:]
        made, perhaps, new = self.next
        never_had = {each["id"] for line in never for each in requests_in(line)}
        assert never_had >= {each["id"] for line in new for each in requests_in(line)}, "perhaps run twice"
        assert not never_had & {each["id"] for line in perhaps for each in requests_in(line)}, "lost in vain"
        unsettled = perhaps + new
        assert len(self.answered()) == len(set(self.answered())), "answered twice"
        again = [each["id"] for line in unsettled for each in requests_in(line)]
        assert len(again) == len(set(again)), "said twice"
        assert set(again) >= set(self.unanswered()), "a request is forgotten"
        assert not set(again) & set(self.answered()), "a request is said again that is answered"
        asked = [each for line in self.said for each in requests_in(line)]
        # Of requests that overtook each other, or were cancelled, either may count.
        good = [each["id"] for each in self.has if "result" in each]
        if good == sorted(good) and not self.cancelled():
            granted = applied([each for each in asked if each["id"] in good])
            replayed = [message_of(line) for line in made]
            errors = [each["id"] for each in self.has if "error" in each]
            held = applied([each for each in replayed if "id" in each and each["id"] not in errors])
            assert held == granted
        for request, told in self.acknowledged().items():
            at = made.index(REQUESTS["listen"] % b"%d" % request)
            assert message_of(made[at - 1])["params"] == told, "nobody says what it was granted"
            assert made.count(made[at - 1]) == 1
        of_open = {each["id"] for each in self.has if "method" in each and "id" in each}
        assert set(resume.asks) <= of_open
        if self.unanswered() == [each["id"] for each in asked]:  # nothing is over: every ask is open
            assert set(self.open_asks()) <= set(resume.asks)
        return resume

    def begins_again(self) -> None:
        """The next broker takes what the shim says."""
        made, unsettled, new = self.next
        self.delivery_log, self.under_way, self.open, self.silent = DeliveryLog(Epoch("e1")), [], [], set()
        self.unread = []
        for line in made:
            meaning: Any = kept.read_acknowledgement(S, line)
            if meaning is not None:
                self.delivery_log.line_received(meaning, line)
                continue
            meaning = handshake.read_line(S, line)
            self.delivery_log.line_received(meaning, line)
            self.delivery_log.line_replayed(meaning)
            if (request := getattr(meaning, "id", None)) is not None:
                self.silent.add(bytes(request))
        self.unread = list(unsettled)
        for _ in unsettled:
            self.reads()
        self.delivery_log.resumed([])
        self.unread = list(new)
        self.kept.broker_attached(attached_line("s1", [], "1.secret", "e1"))


ASKING: Final = [*REQUESTS, "call", "batch", "blank", "notice", "ready"]
STEPS: Final = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from(ASKING), st.tuples(st.sampled_from(["cancels", "says"]), st.integers(0, 3))
        ),
        st.integers(0, 3),
        st.lists(
            st.tuples(
                st.sampled_from(["answers", "answers", "errors", "asks", "settles", "answers again"]),
                st.integers(0, 3),
            ),
            max_size=3,
        ),
        st.integers(0, 5),
        st.integers(0, 7),
        st.integers(0, 2),
    ),
    max_size=20,
)
"""Each: what the agent says; how many lines the broker reads; what it does; how many of its lines arrive;
0: it dies; how many lines it has never had then.
"""


@behaviour("reattach:carrier-keeps")
@given(STEPS, st.binary(max_size=5).map(lambda half: half.replace(b"\n", b"")))
@settings(max_examples=300, deadline=None)
def test_after_a_death_at_any_moment_what_is_open_is_said_again_and_what_is_answered_is_not(
    steps: list[Any], half: bytes
) -> None:
    wire = DelayedLines()
    for said, reads, does, arrive, lives, untaken in steps:
        wire.says(said)
        for _ in range(reads):
            wire.reads()
        for what, at in does:
            wire.does(what, at)
        for _ in range(arrive):
            wire.arrives()
        if not lives:
            wire.dies(untaken)
            wire.begins_again()
    wire.kept.agent_lines_sent(half)
    wire.half = half
    wire.dies()
    assert wire.half == half


STRAY: Final = environment_line({"A": "late"}, "mark")


class Astray(DelayedLines):
    """The broker takes lines for the agent's that the carrier has said itself."""

    def strays(self) -> None:
        self.delivery_log.line_received(None, STRAY[:-1])

    def dies(self, untaken: int = 0) -> ResumeSession:
        in_doubt = self.kept.in_doubt
        never = self.unread[max(len(self.unread) - untaken, 0) :]
        untaken_bytes = sum(len(line) + 1 for line in never)
        said = resume_session(self.kept, HELLO, again=False, untaken_bytes=untaken_bytes)
        first, *lines, _ = said.split(b"\n")
        attach = parse_attach(first)
        assert isinstance(attach, Attach)
        assert attach.resume is not None
        resume = attach.resume
        assert resume.supervisor == ("" if in_doubt else "e1")
        over = resume.kept + resume.open
        self.next = lines[: resume.kept], lines[resume.kept : over], lines[over:]
        again = [each["id"] for line in lines[resume.kept :] for each in requests_in(line)]
        assert len(again) == len(set(again)), "said twice"
        assert not set(again) & set(self.answered()), "a request is said again that is answered"
        assert set(again) >= set(self.unanswered()), "a request is forgotten"
        return resume


@behaviour("reattach:one-line-more")
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 5),
            st.integers(0, 7),
            st.booleans(),
            st.booleans(),
        ),
        max_size=30,
    )
)
@settings(max_examples=300, deadline=None)
def test_a_line_that_only_the_broker_takes_for_the_agents_makes_nothing_run_again(steps: list[Any]) -> None:
    wire = Astray()
    for reads, answers, arrive, lives, strays, settles in steps:
        wire.says("call")
        for _ in range(reads):
            wire.reads()
        if strays:
            wire.strays()
        for at in range(answers):
            wire.does("answers", at)
        if settles:
            wire.settles()
        for _ in range(arrive):
            wire.arrives()
        if not lives:
            wire.dies()
            wire.begins_again()
    wire.dies()


def test_a_carrier_that_was_not_meant_goes_by_what_it_has_itself_and_is_sure_of_nothing() -> None:
    wire = Astray()
    for number, strays in ((1, False), (2, True), (3, False)):
        wire.says("call")
        wire.reads()
        wire.does("answers", 0)
        if strays:
            wire.strays()  # the last line that it has read, as far as it knows
        wire.settles()
        for _ in range(3):
            wire.arrives()
        assert wire.kept.in_doubt == (number > 1)
    wire.says("call")
    resume = wire.dies()
    assert (resume.supervisor, resume.open) == ("", 1)
    assert [message_of(line)["id"] for line in wire.next[1]] == [4]


def left_of(*said: bytes, has: bytes = b"") -> list[bytes]:
    """What is not done with of these lines, when the agent `has` these."""
    wire = DelayedLines()
    for line in said:
        wire.sends(line)
    wire.kept.broker_lines_passed(has)
    return resume_session(wire.kept, HELLO, again=False).split(b"\n")[1:-1]


def test_numbers_and_strings_are_different_ids_and_keep_their_spelling() -> None:
    raws = (b"1", b"1.0", b'"1"', b"1" * 5000, b'"\\ud800"')
    has = b'{"jsonrpc":"2.0","id":1.0,"result":{"x":1e999}}\n' + result_line(RawJson(b'"1"'), BODY)
    assert left_of(*[CALL % raw for raw in raws], has=has) == [CALL % raws[0], CALL % raws[3], CALL % raws[4]]


def test_each_answer_counts_for_one_request_where_an_agent_uses_one_id_for_everything() -> None:
    has = result_line(RawJson(b"1"), BODY)
    assert left_of(CALL % b"1", CALL % b"1", has=has) == [CALL % b"1"]


def listening(*heard: bytes) -> list[bytes]:
    """What is said of a listen that is told as kept, when its agent has heard this."""
    wire = DelayedLines()
    wire.sends(REQUESTS["listen"] % b"1")
    wire.reads()
    for line in (acknowledgement(b"1"), *heard):
        wire.kept.broker_lines_passed(line)
    said, ack = name_of(REQUESTS["listen"] % b"1"), name_of(acknowledgement(b"1")[:-1])
    wire.kept.lines_settled(settled_line(Settled("e1", said, 1, [], [said], [], [ack])))
    for line in heard:
        wire.kept.broker_lines_passed(line)
    return resume_session(wire.kept, HELLO, again=False).split(b"\n")[1:-1]


def test_a_listen_that_was_ended_is_not_said_again() -> None:
    ack, said = acknowledgement(b"1").strip(), REQUESTS["listen"] % b"1"
    assert listening() == [ack, said]
    assert listening(result_line(RawJson(b"1"), BODY)) == []
    assert listening(error_body_line(RawJson(b"1"), BODY)) == [ack, said], "another of its id was refused"


def test_whoever_comes_back_does_not_start_a_carpool_that_was_stopped_while_no_broker_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resume_module, "ALONE_S", 0.0)
    Path(paths.down_file(str(tmp_path))).touch()
    ends = os.pipe()
    found = resume_module.connect_to_next_broker(
        str(tmp_path), pytest.fail, again=False, stdin=ends[0], stdout=ends[1]
    )
    for end in ends:
        os.close(end)
    text = "carpool was stopped; connect the agent again to start it"
    assert found == (None, resume_module.EXIT_NO_BROKER, text)


def test_of_a_batch_only_the_unanswered_part_is_said_again_byte_for_byte() -> None:
    one, two = CALL % b"1", b'{"jsonrpc":"2.0", "id":2,\r "method":"tools/call","params":{"x":1.50}}'
    has = result_line(RawJson(b"1"), BODY)
    assert left_of(b"[ %b ,%b]" % (one, two), has=has) == [two.replace(b"\r", b" ")]


def test_a_batch_within_a_batch_is_said_again_as_it_is_however_deep() -> None:
    deep = b"[" * 900 + b"]" * 900
    assert left_of(b"[%b,%b]" % (deep, CALL % b"1")) == [deep, CALL % b"1"]


def test_what_cannot_be_read_is_said_again_as_it_is() -> None:
    lines = [b"\xff", b"{", b"[" * 100_000, b'"text"', b"[1,"]
    assert left_of(*lines) == lines


def test_what_has_no_answer_is_new_to_a_broker_that_takes_over_on_purpose() -> None:
    wire = DelayedLines()
    wire.sends(CALL % b"1")
    wire.reads()
    wire.settles()
    wire.arrives()
    wire.sends(CALL % b"2")
    wire.kept.agent_lines_sent(b"half")
    first, *lines, half = resume_session(wire.kept, HELLO, again=True).split(b"\n")
    attach = parse_attach(first)
    assert isinstance(attach, Attach)
    assert attach.resume is not None
    assert (attach.resume.kept, attach.resume.open) == (0, 0)
    assert (lines, half) == ([CALL % b"1", CALL % b"2"], b"half")


def test_a_cancel_that_no_broker_has_had_stays_with_the_request_that_one_may_have_had() -> None:
    wire = DelayedLines()
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
    for line in (CALL % b"1", cancel, CALL % b"2", cancel):
        wire.sends(line)
    untaken_bytes = len(cancel + CALL % b"2" + cancel) + 3
    first, *lines, _ = resume_session(wire.kept, HELLO, again=False, untaken_bytes=untaken_bytes).split(b"\n")
    attach = parse_attach(first)
    assert isinstance(attach, Attach)
    assert attach.resume is not None
    assert lines[: attach.resume.open] == [CALL % b"1", cancel]


def test_a_broker_that_died_before_it_said_anything_took_nothing() -> None:
    kept = KeptLines()
    kept.agent_lines_sent(CALL % b"1" + b"\nha")
    assert resume_session(kept, HELLO, again=False) == HELLO + CALL % b"1" + b"\nha"


@behaviour("lease:everything-died")
def test_servers_at_which_the_session_may_have_state_are_told_to_every_broker_that_comes() -> None:
    kept = DelayedLines().kept
    kept.lines_settled(settled_line(Settled("e1", 0, 0, [], [], [], [], ("browser", "think"))))
    for life in ("1.secret", "2.secret"):
        attach = parse_attach(resume_session(kept, HELLO, again=False).partition(b"\n")[0])
        assert isinstance(attach, Attach)
        assert attach.resume is not None
        assert attach.resume.stateful == ["browser", "think"]
        kept.broker_attached(attached_line("s1", [], life, "e1"))
    kept.lines_settled(settled_line(Settled("e1", 0, 0, [], [], [], [])))
    assert kept.stateful == b""


def test_too_much_that_is_not_settled_is_not_kept() -> None:
    kept = DelayedLines().kept
    kept.agent_lines_sent(b"x" * KEEP_BYTES)
    assert (kept.is_full, len(kept.fresh)) == (False, KEEP_BYTES)
    kept.agent_lines_sent(b"y")
    assert (kept.is_full, len(kept.fresh)) == (True, 0)


def test_an_old_broker_settles_nothing_and_nothing_is_kept_for_it() -> None:
    kept = KeptLines()
    kept.broker_attached(ATTACHED_PREFIX + b',"params":{"version":1,"session":"s1","env":[]}}\n')
    assert kept.is_full


def test_a_search_pauses_longer_and_longer_and_starts_carpool_when_nobody_leads() -> None:
    search = resume_module.BrokerSearch(100.0, again=False)
    pauses = [search.attempt_failed(100.0 + at, led=True) for at in range(12)]
    assert None not in pauses
    assert pauses == sorted(pauses, key=lambda pause_s: pause_s or 0)
    assert search.attempt_failed(113.0, led=False) is not None
    assert search.attempt_failed(115.0, led=False) is None
    assert search.attempt_failed(115.1, led=False) is not None, "it was started just now"


def test_a_search_after_a_word_to_come_back_waits_for_who_brings_carpool_up() -> None:
    search = resume_module.BrokerSearch(100.0, again=True)
    assert search.attempt_failed(100.0 + resume_module.RETURN_S - 1, led=False) is not None
    assert search.attempt_failed(100.0 + resume_module.RETURN_S + 1, led=True) is None
    assert not search.is_over(100.0 + resume_module.RETURN_S + 1)
    assert search.is_over(101.0 + 2 * resume_module.RETURN_S)


def test_a_packed_session_says_the_same_to_the_next_broker_from_another_process() -> None:
    kept, copy = KeptLines(), KeptLines()
    kept.broker_attached(
        ATTACHED_PREFIX + b',"params":{"session":"s1","secret":"0.x","supervisor":"e","env":[]}}\n'
    )
    kept.agent_lines_sent(CALL % b"1" + b"\n" + CALL % b"2" + b"\nhalf")
    kept.broker_lines_passed(b'{"jsonrpc":"2.0","id":2,"result":{}}\n')
    copy.restore(kept.pack())
    assert vars(copy) == vars(kept)
    assert resume_session(copy, HELLO, again=False) == resume_session(kept, HELLO, again=False)
    copy.agent_lines_sent(b"goes on")


def test_a_session_packed_in_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="another version"):
        KeptLines().restore(marshal.dumps((0, vars(KeptLines()))))
