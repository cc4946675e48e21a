"""The screen of `carpool top`, driven by keys without a terminal."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Footer, Static

from carpool.readings.live_view import Reading
from carpool.top.app import ConfirmScreen, LogScreen, TopApp
from carpool.top.feed import BrokerFeed, FeedError
from tests.behaviours import behaviour
from tests.kit.top_readings import reading, server, session, status_of

Script = Callable[[TopApp, Pilot[None]], Awaitable[None]]


class CannedFeed(BrokerFeed):
    """Readings without a broker, and what was asked of it."""

    def __init__(self, *readings: Reading | FeedError) -> None:
        super().__init__("/nowhere", "/nowhere")
        self._readings = list(readings)
        self.is_held = False
        """True while the same reading is given again and again."""
        self.acts: list[tuple[str, dict[str, Any]]] = []

    def read(self) -> Reading:
        found = self._readings[0]
        if len(self._readings) > 1 and not self.is_held:
            self._readings.pop(0)
        if isinstance(found, FeedError):
            raise found
        return found

    def act(self, method: str, params: dict[str, Any]) -> str:
        self.acts.append((method, params))
        return "git: restarted"

    def last_lines(self, server: str, count: int) -> list[str]:
        return [f"{server} says \x1b[2J[red]x", f"at most {count > 0}"]


def drive(feed: CannedFeed, script: Script) -> None:
    """Run a script on a screen of 80 columns that has drawn its first reading."""

    async def run() -> None:
        app = TopApp(feed, lambda _: "all is well", interval_s=0.05)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: not text(app, "head").startswith("asking"))
            await script(app, pilot)

    asyncio.run(asyncio.wait_for(run(), 60))


def text(app: TopApp, name: str) -> str:
    return str(app.query_one(f"#{name}", Static).render())


def age_s(app: TopApp) -> float:
    """The age of the counters of the last reading."""
    now = app.view.now
    return now.counters.age_s if now is not None and now.counters is not None else 0.0


def keys(app: TopApp) -> list[str]:
    table = app.query_one("#rows")
    return [str(row.value) for row in table.rows]  # type: ignore[attr-defined]  # a DataTable


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Let the screen work until this holds; `drive` bounds it."""
    while not condition():
        await pilot.pause(0.01)


@behaviour("top:keys")
def test_keys_choose_the_table_its_order_and_its_rows() -> None:
    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        assert text(app, "head") == "all is well"
        assert keys(app) == ["browser", "git", "jira"]
        await pilot.press("O")
        assert keys(app) == ["jira", "git", "browser"]
        await pilot.press("a")
        assert keys(app) == ["s1", "s2"]
        await pilot.press("c", "o")
        assert (keys(app), app.sorted_by) == (["c17"], 1)
        await pilot.press("n")
        assert keys(app) == [], "it is in no cluster"
        await pilot.press("s", "slash", "g", "i", "enter")
        assert keys(app) == ["git"]

    drive(CannedFeed(reading(1.0, 1)), script)


@behaviour("top:keys")
def test_every_key_is_named_on_a_screen_of_80_columns() -> None:
    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.pause()
        drawn = app.export_screenshot()
        lines = re.sub(r"<[^>]+>|&#160;", " ", drawn)
        for words in ("servers", "agents", "calls", "tools", "nodes", "order", "filter", "log"):
            assert words in lines
        last = next(iter(app.query(Footer)))
        assert [each.region.right <= 80 for each in last.children] == [True] * 8
        longest, measured = re.subn(
            r"view \d+% CPU, broker \d+ ms", "view 100% CPU, broker 99999 ms", text(app, "bottom")
        )
        assert measured == 1
        assert len(longest) <= 80, "whatever is measured"

    drive(CannedFeed(reading(1.0, 1)), script)


@behaviour("top:keys")
@pytest.mark.parametrize(
    ("pressed", "act"),
    [
        (("down", "r"), ("carpool/operate", {"verb": "restart", "servers": ["git"]})),
        (("down", "x"), ("carpool/operate", {"verb": "stop", "servers": ["git"]})),
        (("p",), ("carpool/pause", {"servers": ["browser"], "paused": True})),
        (("c", "k"), ("carpool/cancel", {"call": "c17"})),
        (("a", "down", "k"), ("carpool/disconnect", {"session": "s2"})),
    ],
)
def test_an_act_is_done_after_a_yes_and_not_after_a_no(
    pressed: tuple[str, ...], act: tuple[str, dict[str, Any]]
) -> None:
    feed = CannedFeed(reading(1.0, 1))

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press(*pressed)
        assert isinstance(app.screen, ConfirmScreen)
        await pilot.press("n")
        assert feed.acts == []
        await pilot.press(pressed[-1], "y")
        await until(pilot, lambda: bool(feed.acts))

    drive(feed, script)
    assert feed.acts == [act]


@behaviour("top:keys")
def test_a_paused_server_is_resumed_by_the_same_key() -> None:
    feed = CannedFeed(reading(1.0, 1, status=status_of(git=server("serving", paused=True))))

    async def script(_app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("p", "y")
        await until(pilot, lambda: bool(feed.acts))

    drive(feed, script)
    assert feed.acts == [("carpool/pause", {"servers": ["git"], "paused": False})]


@behaviour("top:keys")
def test_the_log_of_a_server_is_text_only_and_readings_go_on_behind_it() -> None:
    feed = CannedFeed(reading(1.0, 1), reading(2.0, 9))

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down", "l")
        assert isinstance(app.screen, LogScreen)
        shown = str(app.screen.query_one("#log", Static).render())
        assert "git says \\x1b[2J[red]x" in shown
        await until(pilot, lambda: age_s(app) == 2.0)
        await pilot.press("escape")
        assert app.chosen_key() == "git"

    drive(feed, script)


@behaviour("top:view")
def test_the_cursor_stays_on_its_row_when_rows_come_and_go() -> None:
    less = status_of(git=server("serving"), jira=server("serving"))
    feed = CannedFeed(reading(1.0, 1), reading(2.0, 1, status=less))
    feed.is_held = True

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("down")
        feed.is_held = False
        await until(pilot, lambda: keys(app) == ["git", "jira"])
        assert app.chosen_key() == "git"

    drive(feed, script)


@behaviour("top:view")
def test_a_broker_that_cannot_be_asked_is_said_and_asked_again() -> None:
    feed = CannedFeed(reading(1.0, 1), FeedError("the broker does not answer"), reading(2.0, 1))

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: age_s(app) == 2.0)
        assert text(app, "head") == "all is well"

    drive(feed, script)
    silent = CannedFeed(FeedError("the broker does not answer"))

    async def look(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("r", "k", "l", "o", "c", "t")  # nothing to act on
        assert text(app, "head") == "the broker does not answer"

    drive(silent, look)


@behaviour("top:view")
def test_texts_of_agents_are_no_markup_and_the_cost_of_the_view_is_shown() -> None:
    hostile = {**status_of(), "sessions": [session("s1", agent="[/red][b]\x1b[2J")]}
    feed = CannedFeed(reading(1.0, 1, status=hostile))

    async def script(app: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("a")
        assert "[/red][b]\\x1b[2J" in text(app, "details")
        assert re.search(r"view \d+% CPU, broker 4 ms", text(app, "bottom"))

    drive(feed, script)
