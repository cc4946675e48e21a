"""The verb `schema`: the JSON Schema of our configuration file, for editors. Knows nothing of files."""

import click

from carpool.cli.main import json_option
from carpool_protocol.config.pages.json_schema import text


@click.command()
@json_option
def schema(as_json: bool) -> None:
    """Print the JSON Schema of carpool.json; `--json` changes nothing.

    Write it to a file and name that in "$schema": editors then complete keys and mark mistakes.
    """
    click.echo(text(), nl=False)
