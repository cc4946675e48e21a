"""`python -m tests.browser.picture docs/web.png`: the picture of the web page with 200 agents.

Starts a private carpool with an HTTP door and seven servers of the kit, lets 200 agents call them now and
then and takes the picture in a headless Chromium. Loopback only; half a minute; ends what it started.

Knows nothing of: what the page shows.
"""

import json
import os
import random
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from bench.counters_cost import echo_server
from bench.prometheus import free_port
from bench.revisions import HERE, Tree
from carpool import Carpool
from carpool.errors import CarpoolError
from tests.kit.browser import browsing
from tests.kit.live import kit

AGENTS: Final = 200
WATCHED_S: Final = 16.0
ROLES: Final = ("planner", "coder", "reviewer", "tester", "writer", "triage")
QUICK: Final = ("git", "time", "files", "notes")
SERVERS: Final[dict[str, Any]] = {
    **{name: echo_server() for name in QUICK},
    "search": kit("slow", sharing="serial"),
    "browser": kit("slow", sharing="session"),
    "tickets": kit("dies_at_start"),
}


async def agent(number: int) -> None:
    """Call quick servers now and then, and sometimes a slow one."""
    dice = random.Random(number)
    await trio.sleep(dice.random() * 8)
    async with Carpool(name=f"{ROLES[number % len(ROLES)]}-{number}") as mine:
        while True:
            await trio.sleep(dice.expovariate(0.25))
            if number % 50 == 1:
                await mine.call("browser__sleep", {"seconds": 0.4})
            elif dice.random() < 0.06:
                await mine.call("search__sleep", {"seconds": dice.random()})
            elif dice.random() < 0.02:
                with suppress(CarpoolError):
                    await mine.call("git__blame", {})
            else:
                await mine.call(f"{dice.choice(QUICK)}__echo", {"text": "hi"})


async def take(tree: Tree, file: Path) -> None:
    """Let the agents call, and write the picture."""
    url = json.loads(tree.carpool("web", "--json"))["url"]
    async with trio.open_nursery() as nursery:
        for number in range(AGENTS):
            nursery.start_soon(agent, number)
        async with browsing() as browser:
            await browser.resize(1200, 1010)
            await browser.open(url)
            await trio.sleep(WATCHED_S)
            await browser.picture(file)
        nursery.cancel_scope.cancel()


def main() -> None:
    """Run the command."""
    with tempfile.TemporaryDirectory(prefix="cpp") as made:
        place = Path(made)
        config = place / "carpool.json"
        config.write_text(json.dumps({"mcpServers": SERVERS}))
        tree = Tree(HERE, place / "run")
        tree.carpool("up", "--detach", "--config", str(config), "--http", f"127.0.0.1:{free_port()}")
        os.environ.update(tree.environment())
        try:
            trio.run(take, tree, Path(sys.argv[1]))
        finally:
            tree.carpool("down")


if __name__ == "__main__":
    main()
