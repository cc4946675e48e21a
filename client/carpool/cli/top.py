"""The verb `top`: a live view of servers, agents, calls and tools on a terminal.

Owns the options and the check of the terminal and of the extra `top`. Refuses to know: what the view shows
(`carpool.top`).
"""

import sys
from typing import Any

import click

from carpool.cli.status import with_door
from carpool.control.place import runtime_place
from carpool.control.verdict import with_verdict
from carpool.launcher.http_door import read_door_status
from carpool.readings.health_line import health_line
from carpool.terminal.verb_output import EXIT_USAGE, fail
from carpool.top.feed import BrokerFeed
from carpool_protocol.bootstrap.extras import install_command, is_installed


@click.command()
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.2, 60.0), default=1.0, metavar="SECONDS",
    show_default=True, help="The time between two readings.",
)  # fmt: skip
def top(interval_s: float) -> None:
    """Show servers, agents, calls and tools live, with keys to act on them.

    s, a, c, t choose the table, o the order, / a filter; l shows a log; r, x, p restart, stop and pause the
    server with the cursor, k cancels the call or disconnects the session; q leaves.
    """
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        fail("`carpool top` needs a terminal; `carpool status` and `carpool stats` print pages", EXIT_USAGE)
    if not is_installed("top"):
        fail(f"`carpool top` needs more than is installed: {install_command('top')}", EXIT_USAGE)
    from carpool.top.app import TopApp  # late: an extra, which takes a while to import

    place = runtime_place()
    feed = BrokerFeed(place.directory, place.logs)

    def sentence(status: dict[str, Any]) -> str:
        return health_line(with_verdict(with_door(status, read_door_status(place.directory))))

    try:
        TopApp(feed, sentence, interval_s).run()
    finally:
        feed.close()
