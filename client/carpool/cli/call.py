"""The verb `call`: one tool call, made as an agent would make it.

Owns the input of the call and the display of its result; the check of arguments without a call is
`dry_run`'s. Starts carpool if it does not run. Argument values are never repeated in an error.
"""

import json
import sys
from typing import Any

import click
import msgspec

from carpool.adapters import as_success
from carpool.cli import dry_run
from carpool.cli.arguments import arg_option, read_arguments, words_argument
from carpool.cli.main import (
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
from carpool.terminal.verb_output import EXIT_FAILED, fail, print_json

CALL_S = 1900.0
"""Longer than a call's total timeout in the daemon (1800 s by default), whose answer says more."""
_PROGRESS = "carpool-call"


class _Progress(msgspec.Struct):
    progress: float = 0
    total: float | None = None
    message: str = ""


@click.command()
@click.argument("name")
@words_argument
@click.option("--args", "arguments", default="", help="The tool's arguments, a JSON object; `-` reads stdin.")
@arg_option
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), default=CALL_S, help="Seconds."
)
@profile_option
@workspace_option
@click.option(
    "--dry-run",
    "only_check",
    is_flag=True,
    help="Only check the arguments against the tool's schema, as it is listed; no server is started.",
)
@click.option(
    "--flat", is_flag=True, help="With --json: {success, output}. The text is as models read it either way."
)
@json_option
def call(
    name: str,
    *,
    words: tuple[str, ...],
    arguments: str,
    pairs: tuple[str, ...],
    timeout_s: float,
    profile: str,
    workspace: str,
    only_check: bool,
    flat: bool,
    as_json: bool,
) -> None:
    """Call the tool NAME (any spelling `carpool tools NAME` knows). Exit code 1: its answer is an error.

    Its arguments are typed as KEY=TEXT, or KEY:=JSON for all that is no text: path=/tmp count:=3
    """
    given = read_arguments(arguments, (*words, *pairs))
    if only_check:
        _check_arguments(name, given, (profile, workspace), as_json)
        return
    params = {"name": name, "arguments": given, "_meta": {"progressToken": _PROGRESS}}
    with open_session(control=False, start=True, profile=profile, workspace=workspace) as door:
        try:
            result = _called(door, params, timeout_s)
        except AnsweredError as error:
            if as_json and flat:
                print_json({"success": False, "output": str(error)})
                raise click.exceptions.Exit(EXIT_FAILED) from None
            if as_json:
                click.echo(f'{{"error": {display.ascii_json(bytes(error.error))}}}')
                raise click.exceptions.Exit(EXIT_FAILED) from None
            fail(_refusal(error, name, workspace) or f"{name}: {error}")
        except ControlClientError as error:
            fail_at(error)
    if show_result(result, as_json=as_json, flat=flat):
        raise click.exceptions.Exit(EXIT_FAILED)


def _called(client: ControlClient, params: dict[str, Any], timeout_s: float) -> msgspec.Raw:
    client.initialize()
    try:
        return client.request("tools/call", params, timeout_s, _on_notice if sys.stderr.isatty() else None)
    except ControlClientError as error:
        text = f"{error}. The call may have been executed. Look at what it has changed before you repeat it."
        raise ControlClientError(text) from None


def _refusal(error: AnsweredError, name: str, workspace: str) -> str:
    """Return the refusal for people. An unknown tool may be one of a file that cannot be read."""
    return with_file_faults(text_for_people(error, name), error, workspace)


def _check_arguments(name: str, arguments: msgspec.Raw, where: tuple[str, str], as_json: bool) -> None:
    """Print the faults of the arguments; exit code 1 if there are any. `where`: profile and workspace."""
    tool = _listed(name, *where)
    schema = (tool.get("definition") or {}).get("inputSchema")
    try:
        wrong = dry_run.problems(schema, json.loads(bytes(arguments)))
    except dry_run.BadSchemaError as error:
        fail(
            f"the server {tool['server']} lists a schema for this tool that cannot be checked ({error}); "
            "without --dry-run the tool can be called all the same"
        )
    if as_json:
        print_json(
            {
                "name": tool["name"],
                "server": tool["server"],
                "tool": tool["tool"],
                "valid": not wrong,
                "problems": [{"path": it.path, "rule": it.rule, "text": it.text} for it in wrong],
            }
        )
    elif wrong:
        click.echo(f"{tool['name']}: the arguments do not fit; nothing was called", err=True)
        for it in wrong:
            click.echo(display.printable(f"{it.path}: {it.text}" if it.path else it.text), err=True)
    else:
        click.echo(f"{tool['name']}: the arguments fit; nothing was called")
    if wrong:
        raise click.exceptions.Exit(EXIT_FAILED)


def _listed(name: str, profile: str, workspace: str) -> dict[str, Any]:
    """Return the tool as it is listed; ends the verb if no known list has it."""
    with open_session(control=True, start=True, profile=profile, workspace=workspace) as door:
        try:
            answer = msgspec.json.decode(door.request("carpool/tools", {"name": name, "offline": True}))
        except ControlClientError as error:
            fail_at(error)
        except AnsweredError as error:
            if error.slug() != "unknown_tool":
                fail(str(error))
            why = "--dry-run starts no server and knows only lists that were read before"
            said = f"{text_for_people(error, name)}; {why}"
            fail(with_file_faults(said, error, workspace))
    if not answer["tools"]:
        from carpool.check.file_faults import file_faults_here  # late: what is found reads no configuration

        fail("\n".join(filter(None, (f"there is no tool {name[:80]!r} here", file_faults_here(workspace)))))
    tool: dict[str, Any] = answer["tools"][0]
    return tool


def show_result(result: msgspec.Raw, *, as_json: bool, flat: bool) -> bool:
    """Print the result as text, as it came (`as_json`), or as `{success, output}` (both).

    Returns True for an error.
    """
    try:
        whole = json.loads(bytes(result))
    except (ValueError, RecursionError):  # legal JSON that Python does not read: digits, depth
        whole = bytes(result).decode("utf-8", "replace")
    said = as_success(whole)
    if as_json and not flat:
        click.echo(display.ascii_json(bytes(result)))
    elif as_json:
        print_json(said)
    else:
        click.echo(display.printable(said["output"], lines=True), err=not said["success"])
    return not said["success"]


def _on_notice(method: str, params: msgspec.Raw) -> None:
    """Print the progress of a long call."""
    if method != "notifications/progress":
        return
    try:
        told = msgspec.json.decode(params, type=_Progress)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    total = f"/{told.total:g}" if told.total else ""
    click.echo(f"… {told.progress:g}{total} {display.one_line(told.message)}".rstrip(), err=True)
