"""What is settled of a passage, where `tests.client.shim.test_resume` does not look."""

from carpool_broker.era import handshake, repeated_lines
from carpool_broker.transport.delivery_log import SETTLE_BYTES, SETTLE_LINES, DeliveryLog
from carpool_protocol.bootstrap.carrier_contract import name_of
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.ids import AskId, Epoch, RawJson, SessionId
from carpool_protocol.wire.jsonrpc import error_body_line, result_line
from tests.behaviours import behaviour

CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t"}}'
PING = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'
GREET = b'{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{}}'
READY = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
LISTEN = b"""{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":{
"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"a","version":"1"}}}}"""
SAYS = b'{"jsonrpc":"2.0","id":"%s","result":{}}'
CANCEL = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}'


class DeliveryLogRig:
    """Lines go by their numbers here, each direction's from 1. No two are alike: blanks see to that."""

    def __init__(self) -> None:
        self.passage = DeliveryLog(Epoch("e1"))
        self.said: list[int] = []
        self.heard: list[int] = []

    def came(self, *lines: bytes) -> None:
        for line in lines:
            self.takes(handshake.read_line(SessionId("s1"), line.replace(b"\n", b"")), line)
        self.passage.check()

    def takes(self, meaning: object, line: bytes) -> None:
        line = line.replace(b"\n", b"") + b" " * len(self.said)
        self.said.append(name_of(line))
        self.passage.line_received(meaning, line)

    def goes(self, line: bytes, number: int, *, answers: bool = False, ask: str = "") -> bool:
        request = RawJson(b"%d" % number)
        line = line.replace(b"\n", b"") + b" " * len(self.heard) + b"\n"
        went = self.passage.line_sent(line, request, answers=answers)
        if went:
            self.heard.append(name_of(line[:-1]))
        if ask:
            self.passage.ask_sent(AskId(ask), request, line)
        self.passage.check()
        return went

    def answered(self, number: int) -> bool:
        return self.goes(result_line(RawJson(b"%d" % number), RawJson(b"{}")), number, answers=True)

    def refused(self, number: int) -> None:
        _, body = fault_answer(fault("duplicate_request_id"), "")
        self.goes(error_body_line(RawJson(b"%d" % number), body), number, answers=True)

    def asks(self, ask: str, number: int) -> None:
        self.goes(b"{}", number, ask=ask)

    def withdraws(self, ask: str, number: int) -> None:
        self.goes(b"{}", number)
        self.passage.ask_withdrawn(AskId(ask))

    def open(self) -> set[int]:
        told = self.passage.take_settled()
        return {self.said.index(name) + 1 for name in told.open + told.both}

    def kept(self) -> list[int]:
        told = self.passage.take_settled()
        return sorted(self.said.index(name) + 1 for name in told.kept + told.both)

    def held(self) -> list[int]:
        return [self.heard.index(name) + 1 for name in self.passage.take_settled().held]


def test_a_call_that_is_open_stays_so_when_another_of_its_id_is_refused() -> None:
    rig = DeliveryLogRig()
    rig.came(CALL % 1, CALL % 1, CALL % 1)
    assert rig.open() == {1, 2, 3}
    for left in ({1, 3}, {1}):
        rig.refused(1)
        assert rig.open() == left
    rig.answered(1)
    assert rig.open() == set()


def test_a_call_is_open_whose_id_came_before_the_one_that_had_it_was_answered() -> None:
    rig = DeliveryLogRig()
    rig.came(PING % 1, CALL % 1)
    rig.answered(1)
    assert rig.open() == {2}
    rig.came(CANCEL % 1)
    assert rig.open() == set()


def test_an_answer_to_a_question_is_open_until_the_call_is_that_it_is_for() -> None:
    rig = DeliveryLogRig()
    rig.came(CALL % 1, CALL % 2)
    rig.asks("q1", 1)
    assert rig.held() == [1]
    rig.came(SAYS % b"q1")
    assert (rig.held(), rig.open()) == ([], {1, 2, 3})
    rig.answered(2)
    assert rig.open() == {1, 3}
    rig.answered(1)
    assert rig.open() == set()


@behaviour("pressure:asks")
def test_a_withdrawn_question_is_in_no_report() -> None:
    rig = DeliveryLogRig()
    rig.came(CALL % 1)
    for number in range(1000):
        rig.asks(f"q{number}", 1)
        rig.withdraws(f"q{number}", 1)
    rig.asks("q", 1)
    assert rig.held() == [2001]


@behaviour("pressure:asks")
def test_reports_name_not_many_more_lines_than_there_are() -> None:
    rig = DeliveryLogRig()
    rig.came(CALL % 1)
    lines = names = size_bytes = 0
    for number in range(3000):
        rig.asks(f"q{number}", 1)
        rig.came(SAYS % b"q%d" % number)
        lines += 2
        size_bytes += 2 * number  # the rig's blanks
        if rig.passage.due:
            told = rig.passage.take_settled()
            names += len(told.open + told.kept + told.both + told.held)
    assert names <= 2 * (lines + size_bytes * SETTLE_LINES // SETTLE_BYTES)


def test_a_question_is_over_with_its_call() -> None:
    rig = DeliveryLogRig()
    rig.came(CALL % 1)
    rig.asks("q1", 1)
    rig.came(CANCEL % 1)
    assert (rig.held(), rig.open()) == ([], set())


def test_an_answer_to_a_question_of_an_earlier_broker_is_open_as_long_as_anything_is() -> None:
    rig = DeliveryLogRig()
    rig.passage.resumed([AskId("q1")])
    rig.came(CALL % 1, SAYS % b"q1", SAYS % b"q1", SAYS % b"junk")
    assert rig.open() == {1, 2}
    rig.answered(1)
    assert rig.open() == set()


def test_readiness_said_before_the_greeting_is_answered_is_kept_with_it() -> None:
    rig = DeliveryLogRig()
    rig.came(GREET % 1, READY)
    assert (rig.open(), rig.kept()) == ({1, 2}, [1])
    rig.answered(1)
    assert (rig.open(), rig.kept()) == (set(), [1, 2])


def test_a_listen_is_kept_once_it_is_acknowledged_and_is_not_acknowledged_twice() -> None:
    rig = DeliveryLogRig()
    rig.came(LISTEN % 7)
    assert (rig.open(), rig.kept()) == ({1}, [])
    assert rig.goes(b"{}", 7)
    assert rig.passage.due
    assert (rig.open(), rig.kept()) == (set(), [1])
    again = DeliveryLogRig()
    again.came(LISTEN % 7)
    again.passage.line_replayed(handshake.read_line(SessionId("s1"), (LISTEN % 7).replace(b"\n", b"")))
    assert not again.goes(b"{}", 7)
    assert again.goes(b"{}", 7), "what it brings then is for the agent"
    assert (again.open(), again.kept()) == (set(), [1])
    again.came(CANCEL % 7)
    assert (again.open(), again.kept()) == (set(), [])


ACK = b"""{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{
"io.modelcontextprotocol/subscriptionId":7},"notifications":{"toolsListChanged":true}}}"""


def test_the_acknowledgement_of_a_listen_is_held_while_the_listen_is_in_force() -> None:
    rig = DeliveryLogRig()
    rig.came(LISTEN % 7)
    rig.goes(ACK, 7)
    rig.goes(b"{}", 7)
    assert rig.held() == [1]
    rig.came(LISTEN % 7)
    rig.refused(7)
    assert (rig.held(), rig.kept()) == ([1], [1]), "that was another"
    rig.came(CANCEL % 7)
    assert (rig.held(), rig.kept()) == ([], [])


def test_a_replayed_acknowledgement_is_kept_as_the_carriers_own_line() -> None:
    rig = DeliveryLogRig()
    granted = repeated_lines.read_acknowledgement(SessionId("s1"), ACK.replace(b"\n", b""))
    rig.takes(granted, ACK)
    rig.passage.line_replayed(granted)
    rig.came(LISTEN % 7)
    rig.passage.line_replayed(handshake.read_line(SessionId("s1"), (LISTEN % 7).replace(b"\n", b"")))
    assert rig.kept() == [1, 2]
    assert not rig.goes(ACK, 7)
    assert (rig.held(), rig.kept()) == ([], [1, 2])
    rig.came(CANCEL % 7)
    assert rig.kept() == []


def test_a_replayed_line_is_kept_and_not_open_while_its_answer_is_still_to_come() -> None:
    rig = DeliveryLogRig()
    rig.came(LISTEN % 7)
    rig.passage.line_replayed(handshake.read_line(SessionId("s1"), (LISTEN % 7).replace(b"\n", b"")))
    assert (rig.open(), rig.kept()) == (set(), [1]), "the agent has its answer: asked anew it would get two"


def test_a_settled_message_is_due_after_enough_lines_or_bytes_and_with_another_supervisor() -> None:
    rig = DeliveryLogRig()
    for number in range(SETTLE_LINES):
        assert not rig.passage.due
        rig.came(CALL % number)
    told = rig.passage.take_settled()
    assert (told.read, told.times) == (rig.said[-1], 1)
    due = [rig.passage.due]
    rig.passage.line_sent(b"x" * SETTLE_BYTES, RawJson(b""), answers=False)
    due.append(rig.passage.due)
    rig.passage.take_settled()
    rig.passage.set_supervisor_epoch(Epoch("e1"))
    due.append(rig.passage.due)
    rig.passage.set_supervisor_epoch(Epoch("e2"))
    due.append(rig.passage.due)
    assert due == [False, True, False, True]
    assert rig.passage.take_settled().epoch == "e2"


def test_the_later_of_two_requests_about_one_subject_counts_also_when_it_is_answered_first() -> None:
    watch = b'{"jsonrpc":"2.0","id":%d,"method":"resources/%bsubscribe","params":{"uri":"u"}}'
    rig = DeliveryLogRig()
    rig.came(watch % (1, b""), watch % (2, b"un"))
    rig.answered(2)
    rig.answered(1)
    assert rig.kept() == []
    rig.came(watch % (3, b"un"), watch % (4, b""))
    rig.answered(4)
    rig.answered(3)
    assert rig.kept() == [4]


def test_a_settled_message_counts_equal_lines_that_were_read_and_that_are_open() -> None:
    delivery_log, line = DeliveryLog(Epoch("e1")), CALL % 1
    for _ in range(3):
        delivery_log.line_received(handshake.read_line(SessionId("s1"), line), line)
    told = delivery_log.take_settled()
    assert (told.read, told.times, told.open) == (name_of(line), 3, [name_of(line)] * 3)
    told = delivery_log.take_settled()
    assert (told.read, told.times, told.open) == (0, 0, [name_of(line)] * 3), "none was read since"
