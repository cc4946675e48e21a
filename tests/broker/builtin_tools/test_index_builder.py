"""Searches in long lists: nobody waits for one, and each is answered."""

import pytest
import trio

from carpool_broker.builtin_tools.search import (
    INDEX_BATCH_TOOLS,
    TOOLS_AT_ONCE,
    CannotSearchError,
    SearchQueue,
    ToolSearch,
)
from carpool_broker.core.model.effects import AnswerBuiltin
from carpool_broker.core.registry.view import View
from carpool_protocol.ids import EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.wire.downgrade import NEWEST
from tests.behaviours import behaviour
from tests.broker.builtin_tools.test_search import many

LONG, SHORT = TOOLS_AT_ONCE + 3 * INDEX_BATCH_TOOLS, TOOLS_AT_ONCE


def search(number: int) -> AnswerBuiltin:
    return AnswerBuiltin(SessionId("s1"), RawJson(b"%d" % number), "find_tools", EMPTY_OBJECT, NEWEST, False)


class IndexBuilderRig:
    """`answered`: the requests, in order. Each answer searches, as the real one does."""

    def __init__(self) -> None:
        self.finder = ToolSearch()
        self.views: dict[bytes, View] = {}
        self.answered: list[int] = []
        self.settled: list[int] = []
        self.searching = SearchQueue(self.finder, self.answer)

    def answer(self, effect: AnswerBuiltin) -> None:
        view = self.views[effect.id]
        assert self.finder.find(view.tools, {}, "something", 5).total == len(view.tools)
        self.answered.append(int(effect.id))

    def wanted(self, number: int, view: View) -> None:
        effect = search(number)
        self.views[effect.id] = view
        self.searching.search_requested(effect, view)

    def settle(self) -> None:
        self.settled = [*self.answered]


@behaviour("search:long-lists")
async def test_a_search_in_a_long_list_lets_others_go_on_and_is_answered() -> None:
    desk, turns = IndexBuilderRig(), 0
    long, short = many(LONG), many(SHORT)
    desk.wanted(1, long)
    desk.wanted(2, short)
    assert desk.answered == [2], "who needs a short index does not wait for a long one"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.searching.run, desk.settle)
        with trio.fail_after(30):
            while 1 not in desk.settled:
                turns += 1
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert turns >= LONG // INDEX_BATCH_TOOLS - 1, "everybody had a turn after each piece"
    desk.wanted(3, long)
    assert desk.answered == [2, 1, 3], "there is an index now"


async def test_a_list_that_changes_meanwhile_is_searched_as_it_is_then() -> None:
    desk = IndexBuilderRig()
    desk.wanted(1, many(LONG))
    desk.views[b"1"] = many(LONG + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.searching.run, desk.settle)
        with trio.fail_after(30):
            while not desk.settled:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


def test_waiting_searches_are_answered_when_carpool_ends() -> None:
    desk = IndexBuilderRig()
    for number in (1, 2):
        desk.wanted(number, many(LONG))
    desk.searching.answer_all()
    assert desk.answered == [1, 2]


def test_a_search_without_an_index_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> bool:
        raise CannotSearchError

    desk = IndexBuilderRig()
    monkeypatch.setattr(desk.finder, "index_more", none)
    desk.wanted(1, many(LONG))
    assert desk.answered == [1]
