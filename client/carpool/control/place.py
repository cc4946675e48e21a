"""The runtime directory that a verb uses.

Owns the error that ends a verb if the directory cannot be private, and the note on stderr if a fallback
directory is used.

Knows nothing of: how the directory is found (`paths`), the broker in it (`control_client`).
"""

import click

from carpool.launcher.runtime_place import RuntimePlace
from carpool.terminal.verb_output import EXIT_USAGE, fail
from carpool_protocol.bootstrap import paths


def runtime_place() -> RuntimePlace:
    """Return the runtime directory; end the verb with an error if it is not private."""
    try:
        place = RuntimePlace()
    except paths.NotPrivateError as error:
        fail(str(error), EXIT_USAGE)
    if place.note:
        click.echo(f"carpool: {place.note}", err=True)
    return place
