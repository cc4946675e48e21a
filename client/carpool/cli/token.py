"""The verb `token`: a fresh bearer token for the HTTP door, and its hash for the configuration.

The token is shown once and kept nowhere; the configuration holds only its SHA-256.
"""

import secrets
from typing import Final

import click

from carpool.cli.main import json_option
from carpool.http.core.access import hash_of
from carpool.terminal.verb_output import print_json
from carpool_protocol.wire.tool_name_resolver import check_server_name

TOKEN_BYTES = 32
_OPERATOR_KEY: Final = {"full": ', "operator": true', "read": ', "operator": "read"'}


@click.command()
@click.argument("name")
@click.option("--profile", default="", metavar="NAME", help="Whoever brings it has this profile.")
@click.option(
    "--operator",
    type=click.Choice(["full", "read"]),
    default=None,
    help="The token is for /operator/ and /metrics, not for agents. `read` changes nothing.",
)
@json_option
def token(name: str, profile: str, operator: str | None, as_json: bool) -> None:
    """Make a bearer token for agents that come over HTTP as NAME, or for an operator."""
    if profile and operator:
        raise click.UsageError("--profile is for agents, and a token with --operator is for none")
    if profile and (why := check_server_name(profile, "profile")) is not None:
        raise click.UsageError(why)
    if not name.isprintable() or not 0 < len(name) <= 64:
        raise click.UsageError("a name has 1 to 64 printable characters")
    fresh = secrets.token_urlsafe(TOKEN_BYTES)
    if as_json:
        facts = {"name": name, "token": fresh, "hash": hash_of(fresh), "profile": profile}
        print_json({**facts, "operator": operator or ""})
        return
    extra = f', "profile": "{profile}"' if profile else _OPERATOR_KEY.get(operator or "", "")
    entry = f'{{ "hash": "{hash_of(fresh)}"{extra} }}' if extra else f'"{hash_of(fresh)}"'
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    holder = "operator" if operator else "agent"
    click.echo(f"token, for the {holder} (`Authorization: Bearer …`; shown only now):\n\n  {fresh}\n")
    click.echo(f'for carpool.json:\n\n  "http": {{ "tokens": {{ "{quoted}": {entry} }} }}')
