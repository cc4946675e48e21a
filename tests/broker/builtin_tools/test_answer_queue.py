"""Answers of carpool's own tools: nobody waits for those of others, and each call is answered."""

from collections.abc import Callable

import pytest
import trio

from carpool_broker.builtin_tools import answer_queue
from carpool_broker.builtin_tools.answer_queue import BuiltinAnswerQueue
from carpool_broker.builtin_tools.search import (
    INDEX_BATCH_TOOLS,
    TOOLS_AT_ONCE,
    CannotSearchError,
    ToolSearch,
)
from carpool_broker.core.model.effects import AnswerBuiltin
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.wire.downgrade import NEWEST
from tests.behaviours import behaviour
from tests.broker.builtin_tools.test_search import many

LONG, SHORT = TOOLS_AT_ONCE + 3 * INDEX_BATCH_TOOLS, TOOLS_AT_ONCE


class AnswerQueueRig:
    """`answered`: the calls, in order. Each answer to a search searches, as the real one does."""

    def __init__(self) -> None:
        self.finder = ToolSearch()
        self.views: dict[SessionId, View] = {}
        self.behind: set[SessionId] = set()
        self.answered: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.settled: list[int] = []
        self.turns = 0
        self.queue = BuiltinAnswerQueue(
            self.finder,
            view_of=self.views.get,
            is_behind=self.behind.__contains__,
            answer=self.answer,
            refuse=lambda effect, fault: self.refused.append((int(effect.id), fault)),
        )

    def answer(self, effect: AnswerBuiltin) -> None:
        if effect.kind == "find_tools":
            view = self.views[effect.session]
            assert self.finder.find(view.tools, {}, "something", 5).total == len(view.tools)
        self.answered.append(int(effect.id))

    def search(self, number: int, view: View, session: str = "", principal: str = "") -> None:
        """A search of this view, in the session `s<number>` if no other is named."""
        own = SessionId(session or f"s{number}")
        self.views[own] = view
        self._call(own, number, "find_tools", principal)

    def list(self, number: int, session: str, principal: str = "", arguments: bytes = EMPTY_OBJECT) -> None:
        """A call that needs no index."""
        self._call(SessionId(session), number, "list_resources", principal, arguments)

    def _call(
        self, session: SessionId, number: int, kind: str, principal: str, rest: bytes = EMPTY_OBJECT
    ) -> None:
        effect = AnswerBuiltin(session, RawJson(b"%d" % number), kind, RawJson(rest), NEWEST, False)
        owner = ("token", principal) if principal else ("session", session)
        self.queue.call_received(effect, owner, needs_index=kind == "find_tools")

    async def run_until(self, done: Callable[[], bool]) -> None:
        """Let the queue run until this is so. `turns` counts how often others could go on meanwhile."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.queue.run, self.settle)
            with trio.fail_after(30):
                while not done():
                    self.turns += 1
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    def settle(self) -> None:
        self.settled = [*self.answered]


@behaviour("search:long-lists")
async def test_a_search_in_a_long_list_lets_others_go_on_and_is_answered() -> None:
    rig = AnswerQueueRig()
    long, short = many(LONG), many(SHORT)
    rig.search(1, long)
    rig.search(2, short)
    await rig.run_until(lambda: 1 in rig.settled)
    assert rig.answered == [2, 1], "who needs a short index does not wait for a long one"
    assert rig.turns >= LONG // INDEX_BATCH_TOOLS - 1, "everybody had a turn after each piece"


@behaviour("search:turns")
@pytest.mark.parametrize("size", [SHORT, LONG])
async def test_hundreds_of_searches_at_once_let_others_go_on(size: int) -> None:
    rig = AnswerQueueRig()
    view = many(size)
    rig.search(0, view)
    await rig.run_until(lambda: rig.settled == [0])
    rig.turns = 0
    for number in range(1, 101):
        rig.search(number, view, "s1", "ann")
    assert rig.answered == [0], "nothing is answered in the burst that brought the calls"
    await rig.run_until(lambda: len(rig.settled) == 101)
    assert rig.turns >= 100, "everybody had a turn after each answer"


@behaviour("search:turns")
async def test_principals_take_turns_and_so_do_the_sessions_of_one() -> None:
    rig = AnswerQueueRig()
    for number in range(1, 5):
        rig.list(number, "s1", "ann")
    rig.list(5, "s2", "ann")
    rig.list(6, "s3", "bob")
    rig.list(7, "s4")
    await rig.run_until(lambda: len(rig.settled) == 7)
    assert rig.answered == [1, 6, 7, 5, 2, 3, 4]


async def test_a_principal_with_many_lists_to_index_holds_up_no_other_one() -> None:
    rig = AnswerQueueRig()
    for number in range(1, 9):
        rig.search(number, many(LONG + number), principal="ann")
    rig.search(20, many(LONG), principal="bob")
    await rig.run_until(lambda: len(rig.settled) == 9)
    assert rig.answered.index(20) <= 1, "each has an index made in turn"


async def test_a_list_that_changes_meanwhile_is_searched_as_it_is_then() -> None:
    rig = AnswerQueueRig()
    rig.search(1, many(LONG))

    def change() -> bool:
        if rig.turns == 3:
            rig.views[SessionId("s1")] = many(LONG + 1)
        return bool(rig.settled)

    await rig.run_until(change)


async def test_an_agent_that_does_not_read_gets_no_more_answers_until_it_reads() -> None:
    rig = AnswerQueueRig()
    rig.behind.add(SessionId("s1"))
    rig.list(1, "s1")
    rig.list(2, "s2")
    await rig.run_until(lambda: rig.settled == [2])

    def read() -> bool:
        if rig.turns > 10 and rig.behind:
            assert rig.answered == [2]
            rig.behind.clear()
            rig.queue.unread_changed()
        return rig.settled == [2, 1]

    await rig.run_until(read)


async def test_what_waits_for_one_principal_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_queue, "MAX_WAITING", 3)
    monkeypatch.setattr(answer_queue, "MAX_WAITING_BYTES", 100)
    rig = AnswerQueueRig()
    for number in range(1, 5):
        rig.list(number, f"s{number}", "ann")
    assert rig.refused == [(4, "too_many_calls")]
    rig.list(5, "s5", "bob", b"{%b}" % (60 * b" "))
    rig.list(6, "s6", "bob", b"{%b}" % (60 * b" "))
    assert rig.refused[1:] == [(6, "too_many_calls")]
    await rig.run_until(lambda: len(rig.settled) == 4)
    rig.list(7, "s1", "ann")
    rig.list(8, "s6", "bob", b"{%b}" % (60 * b" "))
    await rig.run_until(lambda: len(rig.settled) == 6)
    assert len(rig.refused) == 2, "there is room again"


def test_a_session_is_known_to_wait() -> None:
    rig = AnswerQueueRig()
    rig.list(1, "s1", "ann")
    assert rig.queue.is_waiting(SessionId("s1"))
    assert not rig.queue.is_waiting(SessionId("s2"))
    rig.queue.answer_all()
    assert not rig.queue.is_waiting(SessionId("s1"))


def test_waiting_calls_are_answered_or_refused_when_carpool_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_queue, "MAX_LAST", 3)
    rig = AnswerQueueRig()
    rig.behind.add(SessionId("s2"))
    for number in (1, 2):
        rig.search(number, many(LONG))
    rig.list(3, "s1")
    rig.list(4, "s1")
    rig.queue.answer_all()
    assert rig.answered == [1, 2, 3]
    assert rig.refused == [(4, "closing")]


async def test_a_search_without_an_index_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> bool:
        raise CannotSearchError

    rig = AnswerQueueRig()
    monkeypatch.setattr(rig.finder, "index_more", none)
    rig.search(1, many(LONG))
    await rig.run_until(lambda: rig.settled == [1])
