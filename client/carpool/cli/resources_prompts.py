"""The verbs for everything that servers offer beside tools: `resources`, `read`, `prompts`, `prompt`.

Owns the display of lists and contents for people; programs get the broker's answers as they are. Each verb
is an agent's request, made as an agent would make it: with a profile it sees what that profile may. Refuses
to know how a URI is routed.
"""

import base64
import binascii
import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec

from carpool.adapters import flatten
from carpool.cli.arguments import arg_option, read_arguments, words_argument
from carpool.cli.main import (
    broker_request_or_fail,
    fail_at,
    json_option,
    open_session,
    profile_option,
    with_file_faults,
    workspace_option,
)
from carpool.control.control_client import (
    AnsweredError,
    ControlClient,
    ControlClientError,
    text_for_people,
)
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.wire.json_scan import read_despite_half_pairs

READ_S = 1900.0
"""The same as for `carpool call`: the daemon's own answer says more."""
PAGES = 1000
"""A bound on the pages of one list, higher than any broker needs."""

Facts = dict[str, Any]


@click.command()
@profile_option
@workspace_option
@json_option
def resources(profile: str, workspace: str, as_json: bool) -> None:
    """List the resources that servers offer, and templates of their URIs."""
    with open_session(control=True, start=True, profile=profile, workspace=workspace) as door:
        found = broker_request_or_fail(door, "carpool/resources", {}, timeout_s=60)
    if as_json:
        print_json(found)
        return
    rows = [
        [it.get(key), it.get("server"), it.get("name"), it.get("mimeType") or "-", _line(it)]
        for key, listed in (("uri", found.get("resources")), ("uriTemplate", found.get("templates")))
        for it in (listed if isinstance(listed, list) else [])
        if isinstance(it, dict)
    ]
    table = display.columns(["URI", "SERVER", "NAME", "TYPE", "DESCRIPTION"], rows)
    click.echo(table or _none("resources", workspace))


@click.command()
@click.argument("uri")
@profile_option
@workspace_option
@json_option
def read(uri: str, profile: str, workspace: str, as_json: bool) -> None:
    """Read the resource URI. Text is shown, anything else is written as it is where stdout is no terminal."""
    result = _asked("resources/read", {"uri": uri}, profile, workspace, as_json=as_json)
    if result is None:
        return
    contents = result.get("contents")
    for it in contents if isinstance(contents, list) else []:
        _show_contents(it if isinstance(it, dict) else {})


@click.command()
@profile_option
@workspace_option
@json_option
def prompts(profile: str, workspace: str, as_json: bool) -> None:
    """List the prompts that servers offer."""
    with open_session(control=False, start=True, profile=profile, workspace=workspace) as door:
        found = [*_listed(door, "prompts/list", "prompts")]
    if as_json:
        print_json(found)
        return
    rows = [[it.get("name"), ", ".join(_arguments(it)) or "-", _line(it)] for it in found]
    table = display.columns(["NAME", "ARGUMENTS", "DESCRIPTION"], rows)
    click.echo(table or _none("prompts", workspace))


@click.command()
@click.argument("name")
@words_argument
@click.option(
    "--args", "whole", default="", help="The prompt's arguments, a JSON object of texts; `-` reads stdin."
)
@arg_option
@profile_option
@workspace_option
@json_option
def prompt(
    name: str,
    words: tuple[str, ...],
    *,
    whole: str,
    pairs: tuple[str, ...],
    profile: str,
    workspace: str,
    as_json: bool,
) -> None:
    """Get the prompt NAME, in any spelling. Its arguments are typed as KEY=TEXT."""
    arguments = msgspec.json.decode(read_arguments(whole, (*words, *pairs)))
    if not all(isinstance(value, str) for value in arguments.values()):
        fail("every argument of a prompt is text: write KEY=TEXT, not KEY:=JSON", EXIT_USAGE)
    params: Facts = {"name": name, **({"arguments": arguments} if arguments else {})}
    result = _asked("prompts/get", params, profile, workspace, as_json=as_json)
    if result is None:
        return
    messages = result.get("messages")
    for it in messages if isinstance(messages, list) else []:
        content = it.get("content") if isinstance(it, dict) else None
        if isinstance(content, dict):
            text = flatten({"content": [content]})
            click.echo(display.printable(f"[{it.get('role', '?')}] {text}", lines=True))


# --- asking ----------------------------------------------------------------------------------------------


def _listed(client: ControlClient, method: str, key: str) -> Iterator[Facts]:
    """Yield the entries of all pages of a list."""
    try:
        client.initialize()
        cursor = ""
        for _ in range(PAGES):
            page = _decoded(client.request(method, {"cursor": cursor} if cursor else {}, READ_S))
            found = page.get(key)
            yield from (it for it in (found if isinstance(found, list) else []) if isinstance(it, dict))
            cursor = page.get("nextCursor") or ""
            if not cursor:
                return
    except ControlClientError as error:
        fail_at(error)
    except AnsweredError as error:
        fail(str(error))


def _asked(method: str, params: Facts, profile: str, workspace: str, *, as_json: bool) -> Facts | None:
    """Return the result; None if it was printed for programs. An error ends the verb."""
    with open_session(control=False, start=True, profile=profile, workspace=workspace) as door:
        try:
            door.initialize()
            raw = door.request(method, params, READ_S)
        except AnsweredError as error:
            if as_json:
                click.echo(f'{{"error": {display.ascii_json(bytes(error.error))}}}')
                raise click.exceptions.Exit(EXIT_FAILED) from None
            name = str(params.get("name") or "")
            said = text_for_people(error, name) or str(error) or "it was answered with an error"
            fail(with_file_faults(said, error, workspace))
        except ControlClientError as error:
            fail_at(error)
    if as_json:
        click.echo(display.ascii_json(bytes(raw)))
        return None
    return _decoded(raw)


def _decoded(raw: msgspec.Raw) -> Facts:
    try:
        found = read_despite_half_pairs(msgspec.json.decode, bytes(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fail("the answer cannot be read here; --json gives it as it is")
    return found if isinstance(found, dict) else {}


# --- showing ---------------------------------------------------------------------------------------------


def is_shown() -> bool:
    """True if stdout is a terminal, and not a file or a program."""
    return sys.stdout.isatty()


def _show_contents(contents: Facts) -> None:
    text, blob = contents.get("text"), contents.get("blob")
    if isinstance(text, str):
        if not is_shown():
            click.echo(_encodable(text), nl=False)
            return
        click.echo(display.printable(text, lines=True), nl=not text.endswith("\n"))
        return
    try:
        data = base64.b64decode(blob, validate=True) if isinstance(blob, str) else b""
    except (binascii.Error, ValueError):
        fail("its data is not base64; --json gives it as it is")
    if is_shown():
        kind = contents.get("mimeType") or "data"
        click.echo(display.printable(f"[{kind}, {display.size(len(data))}; write it into a file to have it]"))
    else:
        sys.stdout.buffer.write(data)


def _none(what: str, workspace: str) -> str:
    """Return why a list is empty. `what`: what it would hold."""
    from carpool.check.file_faults import (
        file_faults_here,  # late: a list that is found reads no configuration
    )

    why = file_faults_here(workspace) or "no server offers any, or none has told; see `carpool status`"
    return display.wrapped(f"no {what}: {why}")


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _arguments(found: Facts) -> list[str]:
    """Return the names of a prompt's arguments, optional ones with a `?`."""
    said = found.get("arguments")
    return [
        f"{it.get('name')}{'' if it.get('required') else '?'}"
        for it in (said if isinstance(said, list) else [])
        if isinstance(it, dict)
    ]


def _line(found: Facts) -> str:
    return display.one_line(str(found.get("description") or found.get("title") or ""))
