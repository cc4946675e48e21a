"""The verb `token`: adds bearer tokens of the HTTP door to the user's file, lists them, and revokes them.

A fresh token is shown once and kept nowhere; the configuration holds only its SHA-256. The token that the
door makes by itself is shown and replaced here. Owns the entry that is written, the table, and the wait until
a running door has shut a revoked token out. A token is revoked also in a file that is broken elsewhere.

Knows nothing of: how a file is edited (`cli.edit`), how the door checks a token.
"""

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import click

from carpool.cli.edit import config_in_force, edit_file, reload_running
from carpool.cli.main import environment, json_option
from carpool.control.place import runtime_place
from carpool.http.core.access import hash_of
from carpool.http.generated_token import (
    keep_generated_token,
    read_generated_token,
    replace_generated_token,
)
from carpool.launcher.http_door import read_door_status, read_door_tokens, read_door_url
from carpool.logs.moment import parse_later_moment
from carpool.terminal import display
from carpool.terminal.table import Cell
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.edit.edit import remove_member, set_member
from carpool_protocol.config.reading.door_tokens import (
    AdmittedTokens,
    admitted_by,
    read_admitted_tokens,
)
from carpool_protocol.config.reading.load import find_config_file, load_config
from carpool_protocol.config.schema.model import Config, HttpToken
from carpool_protocol.runtime.wallclock import unix_s, utc_text
from carpool_protocol.wire.tool_name_resolver import check_server_name

TOKEN_BYTES: Final = 32
_TOKENS: Final = ("http", "tokens")
_OPERATOR: Final[dict[str, bool | str]] = {"full": True, "read": "read"}
_LAST: Final = (
    "it is the last token: without any, the token that the HTTP door makes by itself lets agents in "
    "(`carpool token show`); repeat with --last if that is meant"
)
GENERATED: Final = "generated"
"""The name of the token that the door makes, on the command line only."""
_CONFIRM_S: Final = 15.0
"""A running door has this long to shut a revoked token out. It looks at its file every 2 s, or when a client
comes after some time without any.
"""
_LOOK_S: Final = 0.05
_CONNECT_S: Final = 1.0


@click.command()
@click.argument("what", type=click.Choice(["add", "list", "revoke", "show"]))
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
@click.option(
    "--workspace",
    "workspaces",
    multiple=True,
    metavar="NAME",
    help="With add: its agents work in this workspace only. May be said again.",
)
@click.option("--last", is_flag=True, help="With revoke: also if it is the last token.")
@click.option("--config", "file", help="This file, not your own carpool.json.")
@json_option
def token(
    what: Literal["add", "list", "revoke", "show"],
    name: str | None,
    *,
    profile: str,
    operator: str | None,
    expires: str,
    workspaces: tuple[str, ...],
    last: bool,
    file: str | None,
    as_json: bool,
) -> None:
    """Add, list and revoke bearer tokens for agents that come over HTTP, or for operators.

    A token is shown once. The configuration holds its hash, and a running carpool knows of a change at once.
    Without any the HTTP door makes one: `token show` shows it, `token revoke generated` replaces it.
    """
    needs_name = what in {"add", "revoke"}
    if (name is not None) != needs_name:
        raise click.UsageError(f"`token {what}` {'takes no name' if name else 'needs the NAME of a token'}")
    if what != "add" and (profile or operator or expires or workspaces):
        raise click.UsageError("--profile, --operator, --expires and --workspace go with `token add`")
    if what == "revoke":
        _revoke(file, str(name), last=last, as_json=as_json)
    elif what == "show":
        _show(file, as_json=as_json)
    elif what == "list":
        _list(config_in_force(file), as_json=as_json)
    else:
        entry = _entry(profile, operator, expires, workspaces)
        _add(config_in_force(file), str(name), entry, operator or "", as_json=as_json)


def _entry(profile: str, operator: str | None, expires: str, workspaces: tuple[str, ...]) -> dict[str, Any]:
    """Return the members of a token beside its hash, from what was typed."""
    if profile and operator:
        raise click.UsageError("--profile is for agents, and a token with --operator is for none")
    if workspaces and operator:
        raise click.UsageError("--workspace is for agents, and a token with --operator is for none")
    if profile and (why := check_server_name(profile, "profile")) is not None:
        raise click.UsageError(why)
    entry: dict[str, Any] = {"profile": profile} if profile else {}
    if workspaces:
        entry["workspaces"] = list(dict.fromkeys(workspaces))
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
    for workspace in entry.get("workspaces", ()):
        if workspace not in config.workspaces:
            known = ", ".join(sorted(config.workspaces)) or "none"
            fail(f"there is no workspace {workspace} in {config.file}; there are: {known}")
    fresh = secrets.token_urlsafe(TOKEN_BYTES)
    written = {"hash": hash_of(fresh), **entry} if entry else hash_of(fresh)
    if config.http.needs_token:
        edit_file(config.file, lambda text: set_member(text, (*_TOKENS, name), written))
    else:  # `false` stands there
        edit_file(config.file, lambda text: set_member(text, _TOKENS, {name: written}))
    running, problems = reload_running()
    if as_json:
        facts: dict[str, Any] = {"name": name, "token": fresh, "hash": hash_of(fresh)}
        facts["profile"] = entry.get("profile", "")
        facts |= {"operator": operator, "expires": entry.get("expires", "")}
        facts["workspaces"] = entry.get("workspaces", [])
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
    if not config.http.needs_token:
        yield "this is the first token: from now on every request over HTTP needs one"
    elif not config.http.tokens:
        yield "this is the first token: from now on the one that the HTTP door has made lets nobody in"


def _revoke(file: str | None, name: str, *, last: bool, as_json: bool) -> None:
    path = find_config_file(environment(), file).path
    admitted = _admitted(file)
    token = admitted.named.get(name)
    problems: list[str] = []
    running = False
    if token is not None:
        if len(admitted.named) == 1 and not last:
            fail(_LAST)
        edit_file(path, lambda text: remove_member(text, (*_TOKENS, name)), keeps_broken=True)
        running, problems = reload_running()
        is_confirmed = _is_shut_out(name, token.hash)
    elif name == GENERATED and admitted.has_generated:
        path = _generated_file()
        before = read_generated_token(path)
        if not replace_generated_token(path):
            fail("the HTTP door has made no token yet")
        is_confirmed = _is_shut_out("", hash_of(before))
    else:
        known = ", ".join(sorted(admitted.named)) or "none"
        fail(f"there is no token {name} in {path}; there are: {known}")
    if as_json:
        facts = {"name": name, "file": path, "running": running, "problems": problems}
        print_json({**facts, "confirmed": is_confirmed})
    else:
        done = f"{name} removed from {path}" if token is not None else f"another token stands in {path} now"
        click.echo("\n".join(map(display.printable, [done, *problems])))
    if not is_confirmed:
        fail(
            f"the HTTP door that runs has not confirmed it within {_CONFIRM_S:.0f} s, so the token may still "
            "let somebody in: run `carpool restart --all`, or `carpool down`"
        )


def _is_shut_out(name: str, digest: str) -> bool:
    """Wait until no door that runs here admits this token any more. Returns False if one may still do."""
    directory = runtime_place().directory
    _connect_once(read_door_url(directory))
    deadline = time.monotonic() + _CONFIRM_S
    while (there := read_door_tokens(directory)) is None or there.get(name) == digest:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _connect_once(url: str) -> None:
    """Have the door at this URL look at its file now, as it does for the first client."""
    where = urlsplit(url)
    with (
        contextlib.suppress(OSError, ValueError),
        socket.create_connection((where.hostname or "", where.port or 0), timeout=_CONNECT_S),
    ):
        pass


def _admitted(file: str | None) -> AdmittedTokens:
    """Return the tokens of a file, which may be broken elsewhere."""
    where = find_config_file(environment(), file)
    loaded = load_config(where)
    if loaded.config is not None:
        return admitted_by(loaded.config.http)
    found = read_admitted_tokens(where)
    if found is None:
        fail("\n".join(each.render() for each in loaded.problems), EXIT_USAGE)
    return found


def _show(file: str | None, *, as_json: bool) -> None:
    admitted = _admitted(file)
    if admitted.is_open:
        fail('no token is needed: `http` has "tokens": false')
    if not admitted.has_generated:
        fail("the configuration has tokens, and their values are kept nowhere; `carpool token add` makes one")
    path = _generated_file()
    try:
        value = keep_generated_token(path)
    except OSError as error:
        fail(f"the token cannot be kept in {path} ({error.strerror})")
    if as_json:
        print_json({"token": value, "file": path})
    else:
        click.echo(value)


def _generated_file() -> str:
    """Return the file of the generated token: that of the door which runs here, else of one to come."""
    directory = runtime_place().directory
    door = read_door_status(directory)
    if door is not None and door.token_file:
        return door.token_file
    return paths.generated_token_file(paths.state_dir(environment(), directory))


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
    rows = [
        [name, _holder(each), each.profile or "-", ", ".join(each.workspaces) or "-", _expiry(each, now)]
        for name, each in tokens.items()
    ]
    if rows:
        click.echo(display.columns(["TOKEN", "FOR", "PROFILE", "WORKSPACES", "EXPIRES"], rows))
    else:
        makes = "; the HTTP door makes one by itself: `carpool token show`" if config.http.needs_token else ""
        click.echo(f"no tokens{makes}")


def _facts(name: str, one: HttpToken) -> dict[str, Any]:
    return {
        "name": name,
        "profile": one.profile,
        "operator": one.operator,
        "workspaces": list(one.workspaces),
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
