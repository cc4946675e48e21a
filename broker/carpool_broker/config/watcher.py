"""Schedules scans of workspaces and readings of the user's file, and brings into force what they find.

Owns when and where to scan, that nobody waits longer than `blocking_io.PATIENCE_S`, and that of two
overlapping scans of one place the later wins. A place that takes longer is given up: its sessions go on
without it, what comes in the end is brought into force under them, and meanwhile nobody scans it again.
Owns also how long to wait for a file that is still being written. Many programs do not save in one step: a
file is away for a moment (editors that keep a backup, a checkout of another branch), or empty. Read then, it
would say that all its servers are gone, and agents would lose their leases for nothing.

Knows nothing of: what a scan looks for (`scan`), what follows from it (`configuration`), agents.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import count
from typing import Final

import trio

from carpool_broker.config.blocking_io import PATIENCE_S, Errands, StartSoon
from carpool_broker.config.configuration import Configuration, Followed
from carpool_broker.config.locations import Wish
from carpool_broker.config.scan import Sight
from carpool_broker.config.workspaces import Watched
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import Stamp, is_current, stamp

STILL_S: Final = 0.1
MOST_LOOKS: Final = 10
"""A file that changes all the time is read all the same."""


async def settled(
    files: Collection[str], stamps: Callable[[Collection[str]], Awaitable[list[Stamp]]]
) -> None:
    """Return once the files have stayed as they are for `STILL_S`, as `stamps` tells."""
    before = await stamps(files)
    for _ in range(MOST_LOOKS):
        await trio.sleep(STILL_S)
        now = await stamps(files)
        if now == before:
            return
        before = now


TOO_SLOW = f"could not be read within {PATIENCE_S:g} s; what it says counts as soon as it can be"
USERS = ""
"""The key of the user's own files (`Configuration.watched`)."""
EVERYTHING: Final = (Watched(USERS, {}),)
"""As if the user's file had changed: then each place may be another one."""
Then = Callable[[Sight], None]


class Reader:
    """That of one broker. `feed` takes what follows of late news for the core; `settle`: a burst is over."""

    def __init__(
        self,
        configuration: Configuration,
        feed: Callable[[list[Followed]], None],
        settle: Callable[[], None],
        start_soon: StartSoon,
    ) -> None:
        self._configuration = configuration
        self._workspaces = configuration.layers.workspaces
        self._feed = feed
        self._settle = settle
        self._start_soon = start_soon
        self.errands = Errands(settle, start_soon)
        self._numbers = count(1)
        self._waiting: dict[Wish, list[Then]] = {}
        """Whom to tell of a look that is under way."""
        self._stuck: set[str] = set()
        """Which of `Watched` do not answer, so that what changes there is not looked for."""
        self._changing = trio.Lock()
        """What everybody sees is changed by one at a time."""

    # --- one session ------------------------------------------------------------------------------------

    def look(self, wish: Wish, then: Then, *, spell: bool = False) -> None:
        """See `workspace_moves.Looks`."""
        if spell:
            then = partial(self._spelled, then)
        if self._workspaces.knows(wish):
            then(self._workspaces.sight_of(wish))
        elif wish in self._waiting:
            self._waiting[wish].append(then)
        else:
            self._waiting[wish] = [then]
            self._start_soon(self._look, wish)

    def _spelled(self, then: Then, sight: Sight) -> None:
        if sight.directory in {"", sight.wish.workspace}:
            then(sight)
        else:
            self.look(Wish(sight.directory, sight.wish.cwd), then)

    async def _look(self, wish: Wish) -> None:
        await self._find(wish)
        for then in self._waiting.pop(wish):
            self.look(wish, then)  # one who was told may have left at once, and all that is known with them
        self._settle()

    async def _find(self, wish: Wish) -> None:
        """Have it known what is there, by the configuration that is in force in the end."""
        workspaces, configuration = self._workspaces, self._configuration
        while not workspaces.knows(wish):
            config, number = configuration.config, next(self._numbers)
            look = workspaces.looker(wish, config, number)
            sight = await self.errands.run(wish, look, partial(self._late, config))
            if sight is None:
                workspaces.give_up(wish, number, TOO_SLOW)
            elif configuration.config is config:
                workspaces.take(sight)

    def _late(self, config: Config, sight: Sight) -> None:
        """It has come in the end. Whoever asked for it goes on without it since."""
        if sight.wish not in (wishes := self._configuration.wishes()):
            self._workspaces.keep(wishes)  # whoever is on the way there has it looked once more
            return
        if config is self._configuration.config:
            self._feed(self._configuration.looked([sight]))
        else:
            self._start_soon(self._catch_up, sight.wish)

    async def _catch_up(self, wish: Wish) -> None:
        self._feed(await self.again([wish]))
        self._settle()

    # --- all of them ------------------------------------------------------------------------------------

    async def reload(self, changed: Sequence[Watched] = EVERYTHING) -> list[Followed]:
        """Read again what has changed, or everything; what follows is for the core, at once."""
        if all(each.wishes for each in changed):
            return await self.again({wish for each in changed for wish in each.wishes})
        async with self._changing:
            configuration, users = self._configuration, self._configuration.users
            layer = await self.errands.run(USERS, users.load)
            if layer is None:
                users.give_up(TOO_SLOW)
            config = (layer.loaded.config if layer is not None else None) or configuration.config
            found: dict[Wish, Sight | None] = {}
            while missing := {each for each in configuration.wishes() if self._is_missing(each, found)}:
                found |= await self._all(missing, config)
            return configuration.reload(layer, filter(None, found.values()))

    def _is_missing(self, wish: Wish, found: dict[Wish, Sight | None]) -> bool:
        """Whether one has come there in between, and it was not looked yet, or since then by what is over."""
        if wish not in found:
            return True
        sight = found[wish]
        return sight is not None and sight.number < self._workspaces.sight_of(wish).number

    async def again(self, wishes: Collection[Wish]) -> list[Followed]:
        """Look there again; what follows is for the core, at once."""
        async with self._changing:
            found = await self._all(wishes, self._configuration.config)
            return self._configuration.looked(filter(None, found.values()))

    async def _all(self, wishes: Collection[Wish], config: Config) -> dict[Wish, Sight | None]:
        found: dict[Wish, Sight | None] = {}

        async def one(wish: Wish) -> None:
            number = next(self._numbers)
            look = self._workspaces.looker(wish, config, number, again=True)
            found[wish] = await self.errands.run(wish, look, partial(self._late, config))
            if found[wish] is None:
                self._workspaces.give_up(wish, number, TOO_SLOW)

        async with trio.open_nursery() as nursery:
            for wish in wishes:
                nursery.start_soon(one, wish)
        return found

    # --- what changes on disk ---------------------------------------------------------------------------

    async def changed(self) -> list[Watched]:
        """What is another than it was, by now; files that are just being saved are waited for."""
        hanging = self._stuck | ({USERS} if self.errands.hangs(USERS) else set())
        once = _Round([each for each in self._configuration.watched() if each.key not in hanging])
        if await self.errands.run(once, once.run, self._unstuck) is None:
            once.stuck_at = once.at
            self._stuck.add(once.at)  # without it the next round comes further
        changed = [*once.changed]
        if changed:
            await settled([file for each in changed for file in each.seen], self._stamps)
        return changed

    def _unstuck(self, once: "_Round") -> None:
        self._stuck.discard(once.stuck_at)

    async def _stamps(self, files: Collection[str]) -> list[Stamp]:
        found = await self.errands.run(object(), lambda: [stamp(each) for each in files])
        return found or []


class _Round:
    """One look at whether anything has changed, in a thread."""

    def __init__(self, groups: Sequence[Watched]) -> None:
        self._groups = groups
        self.at = USERS
        """What is being looked at."""
        self.stuck_at = USERS
        """The same, when it was given up."""
        self.changed: list[Watched] = []

    def run(self) -> "_Round":
        for each in self._groups:
            self.at = each.key
            if not is_current(each.seen):
                self.changed.append(each)
        return self
