"""The runtime directory that a verb works with.

Owns the end of a verb where that directory cannot be private, and the note on stderr where it is not the
wished one.

Knows nothing of: how the directory is found (`paths`), the broker in it (`control_client`).
"""

import click

from carpool.launcher.up import Place
from carpool.terminal.verb_output import EXIT_USAGE, fail
from carpool_protocol.bootstrap import paths


def the_place() -> Place:
    """Where this carpool lives; ends the verb when that cannot be."""
    try:
        place = Place()
    except paths.NotPrivateError as error:
        fail(str(error), EXIT_USAGE)
    if place.note:
        click.echo(f"carpool: {place.note}", err=True)
    return place
