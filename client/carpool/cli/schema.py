"""The verb `schema`: the JSON Schema of our configuration file, for editors. Knows nothing of files."""

import click

from carpool_protocol.config.pages.json_schema import text


@click.command()
def schema() -> None:
    """Print the JSON Schema of carpool.json.

    Write it to a file and name that in "$schema": editors then complete keys and mark mistakes.
    """
    click.echo(text(), nl=False)
