"""The verb `token`: adds bearer tokens of the HTTP door to the user's file, lists them, and revokes them.

A fresh token is shown once and kept nowhere; the configuration holds only its SHA-256. Owns the entry that is
written and the table. Knows nothing of: how a file is edited (`cli.edit`), how the door checks a token.
"""

import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

import click

from carpool.cli.edit import config_in_force, edit_file, reload_running
from carpool.cli.main import json_option
from carpool.http.core.access import hash_of
from carpool.logs.moment import parse_later_moment
from carpool.terminal import display
from carpool.terminal.table import Cell
from carpool.terminal.verb_output import EXIT_FAILED, fail, print_json
from carpool_protocol.config.edit.edit import remove_member, set_member
from carpool_protocol.config.schema.model import Config, HttpToken
from carpool_protocol.runtime.wallclock import unix_s, utc_text
from carpool_protocol.wire.tool_name_resolver import check_server_name

TOKEN_BYTES: Final = 32
_TOKENS: Final = ("http", "tokens")
_OPERATOR: Final[dict[str, bool | str]] = {"full": True, "read": "read"}
_LAST: Final = (
    "it is the last token: without any, every process of yours may use the HTTP door; "
    "repeat with --last if that is meant"
)


@click.command()
@click.argument("what", type=click.Choice(["add", "list", "revoke"]))
@click.argument("name", required=False)
@click.option("--profile", default="", metavar="NAME", help="With add: the profile of its agents.")
@click.option(
    "--operator",
    type=click.Choice(["full", "read"]),
    default=None,
    help="With add: it is for /operator/ and /metrics, not for agents. `read` changes nothing.",
)
@click.option(
    "--expires", default="", metavar="WHEN", help="With add: after 12h, 30d, 8w, or on a date: 2027-01-31."
)
@click.option("--last", is_flag=True, help="With revoke: also if it is the last token.")
@click.option("--config", "file", help="This file, not your own carpool.json.")
@json_option
def token(
    what: Literal["add", "list", "revoke"],
    name: str | None,
    *,
    profile: str,
    operator: str | None,
    expires: str,
    last: bool,
    file: str | None,
    as_json: bool,
) -> None:
    """Add, list and revoke bearer tokens for agents that come over HTTP, or for operators.

    A token is shown once. The configuration holds its hash, and a running carpool knows of a change at once.
    """
    if (name is None) != (what == "list"):
        raise click.UsageError(f"`token {what}` {'takes no name' if name else 'needs the NAME of a token'}")
    if what != "add" and (profile or operator or expires):
        raise click.UsageError("--profile, --operator and --expires go with `token add`")
    config = config_in_force(file)
    if what == "list":
        _list(config, as_json=as_json)
    elif what == "revoke":
        _revoke(config, str(name), last=last, as_json=as_json)
    else:
        _add(config, str(name), _entry(profile, operator, expires), operator or "", as_json=as_json)


def _entry(profile: str, operator: str | None, expires: str) -> dict[str, Any]:
    """Return the members of a token beside its hash, from what was typed."""
    if profile and operator:
        raise click.UsageError("--profile is for agents, and a token with --operator is for none")
    if profile and (why := check_server_name(profile, "profile")) is not None:
        raise click.UsageError(why)
    entry: dict[str, Any] = {"profile": profile} if profile else {}
    if operator:
        entry["operator"] = _OPERATOR[operator]
    if expires:
        try:
            entry["expires"] = parse_later_moment(expires, datetime.now(UTC))
        except ValueError:
            raise click.UsageError("--expires takes a time to come: 12h, 30d, 8w, 2027-01-31") from None
    return entry


def _add(config: Config, name: str, entry: dict[str, Any], operator: str, *, as_json: bool) -> None:
    if not name.isprintable() or not 0 < len(name) <= 64:
        raise click.UsageError("a name has 1 to 64 printable characters")
    if name in config.http.tokens:
        fail(f"there is a token {name} already; `carpool token revoke {name}` takes it out")
    if (profile := entry.get("profile")) and profile not in config.profiles:
        known = ", ".join(sorted(config.profiles)) or "none"
        fail(f"there is no profile {profile} in {config.file}; there are: {known}")
    fresh = secrets.token_urlsafe(TOKEN_BYTES)
    written = {"hash": hash_of(fresh), **entry} if entry else hash_of(fresh)
    edit_file(config.file, lambda text: set_member(text, (*_TOKENS, name), written))
    running, problems = reload_running()
    if as_json:
        facts = {"name": name, "token": fresh, "hash": hash_of(fresh), "profile": entry.get("profile", "")}
        facts |= {"operator": operator, "expires": entry.get("expires", "")}
        print_json({**facts, "file": config.file, "running": running, "problems": problems})
    else:
        holder = "operator" if operator else "agent"
        click.echo(f"token, for the {holder} (`Authorization: Bearer …`; shown only now):\n\n  {fresh}\n")
        click.echo(display.printable(f"{name} added to {config.file}"))
        for text in _first_token_effects(config):
            click.echo(f"carpool: {display.printable(text)}", err=True)
    _end_with(problems, as_json=as_json)


def _first_token_effects(config: Config) -> Iterator[str]:
    """Yield sentences about what the first token of a file changes. `config`: as it was before."""
    if not config.http_wanted:
        host, port = config.http.host, config.http.port
        yield f"the HTTP door is wanted from now on, on {host}:{port}; `carpool status` says if it is open"
    if not config.http.tokens:
        yield "this is the first token: from now on every request over HTTP needs one"


def _revoke(config: Config, name: str, *, last: bool, as_json: bool) -> None:
    if name not in config.http.tokens:
        known = ", ".join(sorted(config.http.tokens)) or "none"
        fail(f"there is no token {name} in {config.file}; there are: {known}")
    if len(config.http.tokens) == 1 and not last:
        fail(_LAST)
    edit_file(config.file, lambda text: remove_member(text, (*_TOKENS, name)))
    running, problems = reload_running()
    if as_json:
        print_json({"name": name, "file": config.file, "running": running, "problems": problems})
    else:
        click.echo(display.printable(f"{name} removed from {config.file}"))
    _end_with(problems, as_json=as_json)


def _end_with(problems: list[str], *, as_json: bool) -> None:
    """End the verb as failed if the running carpool could not read the file."""
    if problems and not as_json:
        click.echo("\n".join(map(display.printable, problems)), err=True)
    if problems:
        raise click.exceptions.Exit(EXIT_FAILED)


def _list(config: Config, *, as_json: bool) -> None:
    tokens = config.http.tokens
    if as_json:
        print_json([_facts(name, each) for name, each in tokens.items()])
        return
    now = unix_s()
    rows = [[name, _holder(each), each.profile or "-", _expiry(each, now)] for name, each in tokens.items()]
    click.echo(display.columns(["TOKEN", "FOR", "PROFILE", "EXPIRES"], rows) if rows else "no tokens")


def _facts(name: str, one: HttpToken) -> dict[str, str | bool]:
    return {
        "name": name,
        "profile": one.profile,
        "operator": one.operator,
        "expires": utc_text(one.expires) if one.expires else "",
        "expired": one.is_expired(unix_s()),
    }


def _holder(one: HttpToken) -> str:
    return {"": "agents", "read": "operators, read only", "full": "operators"}[one.operator]


def _expiry(one: HttpToken, now: float) -> str | Cell:
    if not one.expires:
        return "never"
    if one.is_expired(now):
        return Cell(f"expired {utc_text(one.expires)}", "red")
    return f"{utc_text(one.expires)} (in {display.duration(one.expires - now)})"
