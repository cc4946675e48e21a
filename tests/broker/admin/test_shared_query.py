"""Many who ask the same of all supervisors: what is sent, who gets which answer, which pages are made."""

from functools import partial

import pytest
import trio
import trio.testing
from msgspec import Raw

from carpool_broker.admin.shared_query import HOLD_UP_S, Answers, SharedPages, SharedQuery
from carpool_broker.admin.supervisor_queries import SupervisorQueries
from carpool_protocol.link.messages import AnyMessage, Survey, Surveyed
from tests.behaviours import behaviour


class SilentSupervisors:
    """Supervisors that answer when the test says so."""

    def __init__(self, *names: str) -> None:
        self.linked = {name: number for number, name in enumerate(names, 1)}
        self.tokens: list[int] = []
        self.heard: list[Answers] = []
        self.queries = SupervisorQueries(self._send, lambda: self.linked)
        self.query = SharedQuery(self.queries, lambda token: Survey(token, []), self.heard.append)

    def _send(self, message: AnyMessage) -> None:
        assert isinstance(message, Survey)
        self.tokens.append(message.token)

    def answer(self, token: int, *names: str) -> None:
        for name in names or self.linked:
            self.queries.answer_received(name, Surveyed(token, [], []))


class Askers:
    """Tasks that ask, and what each was told."""

    def __init__(self, rig: SilentSupervisors, nursery: trio.Nursery) -> None:
        self._rig = rig
        self._nursery = nursery
        self.told: dict[str, list[int | str]] = {}
        self.scopes: dict[str, trio.CancelScope] = {}

    async def ask(self, name: str, limit_s: float = 5.0) -> None:
        """Begin to ask, until this asker waits."""
        self.scopes[name] = trio.CancelScope()
        self._nursery.start_soon(self._ask, name, limit_s)
        await trio.testing.wait_all_tasks_blocked()

    async def _ask(self, name: str, limit_s: float) -> None:
        with self.scopes[name]:
            found = await self._rig.query.ask(limit_s)
            self.told[name] = [each if isinstance(each, str) else each.token for each in found.values()]

    async def go(self, name: str) -> None:
        self.scopes[name].cancel()
        await trio.testing.wait_all_tasks_blocked()


@behaviour("status:asked-once")
async def test_who_asks_while_a_query_is_open_gets_the_answer_of_the_next_one_and_all_of_them_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rig = SilentSupervisors("a")
    async with trio.open_nursery() as nursery:
        askers = Askers(rig, nursery)
        for number in range(100):
            await askers.ask(f"n{number}")
        assert len(rig.tokens) == 1
        rig.answer(rig.tokens[0])
        assert len(rig.tokens) == 2
        await trio.testing.wait_all_tasks_blocked()
        assert askers.told == {"n0": [rig.tokens[0]]}, "nobody is told what was found before they asked"
        rig.answer(rig.tokens[1])
    assert len(rig.tokens) == 2
    assert [askers.told[f"n{number}"] for number in range(1, 100)] == [[rig.tokens[1]]] * 99


@behaviour("status:asked-once")
async def test_a_query_for_which_nobody_waits_any_more_is_not_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rig = SilentSupervisors("a")
    async with trio.open_nursery() as nursery:
        askers = Askers(rig, nursery)
        for name in ("first", "gone", "late"):
            await askers.ask(name, HOLD_UP_S / 2)
        await askers.go("first")
        await askers.go("gone")
        await trio.sleep(HOLD_UP_S * 0.6)
        assert askers.told == {"late": ["late"]}
        rig.answer(rig.tokens[0])
        assert len(rig.tokens) == 1
        assert len(rig.heard) == 1, "an answer for which nobody waits any more is heard"
        await askers.ask("next")
        rig.answer(rig.tokens[1])


async def test_a_supervisor_that_is_silent_holds_up_the_next_query_only_for_a_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rig = SilentSupervisors("a", "b")
    async with trio.open_nursery() as nursery:
        askers = Askers(rig, nursery)
        await askers.ask("first")
        rig.answer(rig.tokens[0], "a")
        await askers.ask("second")
        assert len(rig.tokens) == 1
        await trio.sleep(HOLD_UP_S * 1.1)
        assert len(rig.tokens) == 2
        rig.answer(rig.tokens[1])
        rig.answer(rig.tokens[0], "b")
    assert askers.told == {"first": [rig.tokens[0]] * 2, "second": [rig.tokens[1]] * 2}


async def test_the_loss_of_a_supervisor_ends_the_query_and_the_next_one_asks_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rig = SilentSupervisors("a", "b")
    async with trio.open_nursery() as nursery:
        askers = Askers(rig, nursery)
        await askers.ask("first")
        await askers.ask("second")
        rig.answer(rig.tokens[0], "a")
        del rig.linked["b"]
        rig.queries.supervisor_lost("b")
        rig.answer(rig.tokens[1], "a")
    assert askers.told == {"first": [rig.tokens[0], "lost"], "second": [rig.tokens[1]]}
    assert len(rig.heard) == 1, "what others were asked is not heard"
    rig.linked.clear()
    assert await rig.query.ask(5.0) == {}


@behaviour("status:asked-once")
async def test_a_page_is_made_once_for_all_who_want_it_in_one_pass_and_again_for_those_after(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pages, made = SharedPages(), list[str]()
    got: list[bytes] = []

    def make(key: str) -> Raw:
        made.append(key)
        return Raw(b"%d" % len(made))

    async def want(key: str) -> None:
        got.append(bytes(await pages.page(key, partial(make, key))))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for key in "a" * 50 + "b" * 50:
                nursery.start_soon(want, key)
    assert sorted(made) == ["a", "a", "b", "b"]
    assert sorted(got) == sorted([b"1", b"2", b"3", b"4"] * 50)


async def test_a_page_that_cannot_be_made_or_whose_first_asker_goes_is_made_for_the_others(
    autojump_clock: trio.testing.MockClock,
) -> None:
    pages, got = SharedPages(), list[Raw]()
    failures = [ValueError("once")]

    def make() -> Raw:
        if failures:
            raise failures.pop()
        return Raw(b"1")

    async def want(scope: trio.CancelScope) -> None:
        with scope:
            try:
                got.append(await pages.page("k", make))
            except ValueError:
                got.append(Raw(b"failed"))

    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(4)]
        for scope in scopes:
            nursery.start_soon(want, scope)
        scopes[0].cancel()
    assert sorted(map(bytes, got)) == [b"1", b"1", b"failed"]


@pytest.mark.parametrize("linked", [(), ("a",)])
async def test_a_query_without_a_time_limit_left_is_not_waited_for(
    linked: tuple[str, ...], autojump_clock: trio.testing.MockClock
) -> None:
    rig = SilentSupervisors(*linked)
    assert await rig.query.ask(0.0) == dict.fromkeys(linked, "late")
