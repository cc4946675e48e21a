"""The verb `token`: a fresh bearer token for the HTTP door, and its hash for the configuration.

The token is shown once and kept nowhere; the configuration holds only its SHA-256.
"""

import secrets

import click

from carpool.cli.main import json_option
from carpool.http.core.access import hash_of
from carpool.terminal.verb_output import print_json
from carpool_protocol.wire.tool_name_resolver import check_server_name

TOKEN_BYTES = 32


@click.command()
@click.argument("name")
@click.option("--profile", default="", metavar="NAME", help="Whoever brings it has this profile.")
@json_option
def token(name: str, profile: str, as_json: bool) -> None:
    """Make a bearer token for agents that come over HTTP as NAME."""
    if profile and (why := check_server_name(profile, "profile")) is not None:
        raise click.UsageError(why)
    if not name.isprintable() or not 0 < len(name) <= 64:
        raise click.UsageError("a name has 1 to 64 printable characters")
    fresh = secrets.token_urlsafe(TOKEN_BYTES)
    if as_json:
        print_json({"name": name, "token": fresh, "hash": hash_of(fresh), "profile": profile})
        return
    entry = f'{{ "hash": "{hash_of(fresh)}", "profile": "{profile}" }}' if profile else f'"{hash_of(fresh)}"'
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    click.echo(f"token, for the agent (`Authorization: Bearer …`; shown only now):\n\n  {fresh}\n")
    click.echo(f'for carpool.json:\n\n  "http": {{ "tokens": {{ "{quoted}": {entry} }} }}')
