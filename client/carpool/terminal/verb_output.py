"""Exit codes of verbs, their JSON output, and the end of a verb with an error sentence.

Owns the codes: 0; 1 it failed; 2 usage or configuration; 69 no broker runs here. Text is made safe for the
terminal here.

Knows nothing of: verbs, the daemon.
"""

import sys
from typing import Any, NoReturn

import click

from carpool.terminal import display, screen, table

EXIT_FAILED, EXIT_USAGE, EXIT_NO_BROKER = 1, 2, 69


def print_json(value: Any) -> None:
    """One JSON document. Escaped to ASCII: nothing in it can play with the terminal."""
    import json  # late: most output is for people

    click.echo(json.dumps(value, indent=2))


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """End the verb with a sentence on stderr."""
    has_colours = screen.has_colours(sys.stderr)
    name = table.coloured("carpool:", "red") if has_colours else "carpool:"
    said = table.wrapped(display.printable(text, lines=True), screen.error_width(), " " * len("carpool: "))
    click.echo(f"{name} {said.lstrip(' ')}", err=True, color=has_colours)
    raise click.exceptions.Exit(code)
