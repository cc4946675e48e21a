"""The click command line: all verbs but `connect`, `run` and `up`, which `entry` handles before.

Owns only the list of verbs and what all verbs share (`--json`, the way to the broker). Each group of verbs
is a file, imported when one of them is used.
"""

import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from carpool import launcher_lock, named_places
from carpool.control.control_client import (
    ATTACH_S,
    AnsweredError,
    ControlClient,
    ControlClientError,
    text_for_people,
)
from carpool.control.place import runtime_place
from carpool.launcher.runtime_place import RuntimePlace
from carpool.terminal import display, screen
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_NO_BROKER, EXIT_USAGE, fail
from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.bootstrap.release import RELEASE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

RETURN_S = 15.0
"""Seconds that a verb waits for a broker that a launcher is about to start.

The launcher pauses 5 s at most between two brokers.
"""
_POLL_S = 0.05

VERB_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Start here": {
        "setup": ("carpool.cli.setup:setup", "Move the MCP servers of your programs into carpool, and back."),
        "add": ("carpool.cli.edit:add", "Add a server to your configuration."),
        "status": ("carpool.cli.status:status", "Show whether all is well, the servers and the sessions."),
        "doctor": ("carpool.cli.doctor:doctor", "Find out what is wrong, and say how to repair it."),
        "demo": ("carpool.demo.command:demo", "Show on real servers what sharing them buys."),
        "docs": ("carpool.cli.docs:docs", "Print a page of the documentation, or list the pages."),
        "help": ("", "Describe a verb, or list the verbs."),
    },
    "Look": {
        "ps": ("carpool.cli.status:ps", "Show every running process: instances and carpool's own."),
        "stats": ("carpool.cli.stats:stats", "Show calls, errors and times by server, tool or agent."),
        "top": ("carpool.cli.top:top", "Show servers, agents and calls live, with keys to act on them."),
        "web": ("carpool.cli.web:web", "Print the address of the web page, which shows all of it."),
        "calls": ("carpool.cli.calls:calls", "List the open calls of all agents."),
        "tools": ("carpool.cli.tools:tools", "List the tools agents see, or explain one name."),
        "resources": ("carpool.cli.resources_prompts:resources", "List the resources that servers offer."),
        "read": ("carpool.cli.resources_prompts:read", "Read a resource."),
        "prompts": ("carpool.cli.resources_prompts:prompts", "List the prompts that servers offer."),
        "prompt": ("carpool.cli.resources_prompts:prompt", "Get a prompt."),
        "why": ("carpool.cli.why:why", "Tell how a server is shared, why, and how to change that."),
        "logs": ("carpool.cli.logs:logs", "Show what a server or carpool itself has logged."),
        "story": ("carpool.cli.story:story", "Tell what happened to one call."),
        "audit": ("carpool.cli.audit:audit", "Show who called what, and what came of it."),
        "version": ("", "Print the version, and where carpool is installed."),
    },
    "Operate": {
        "up": ("", "Run carpool here; with --detach in the background."),
        "down": ("carpool.cli.daemon:down", "End carpool and every server it runs."),
        "start": ("carpool.cli.daemon:start", "Start servers."),
        "stop": ("carpool.cli.daemon:stop", "Stop servers until they are started again."),
        "pause": ("carpool.cli.daemon:pause", "Hold back new calls of servers for a while."),
        "resume": ("carpool.cli.daemon:resume", "Let calls of paused servers run again."),
        "restart": ("carpool.cli.daemon:restart", "Restart servers; with --all carpool itself, too."),
        "reload": ("carpool.cli.daemon:reload", "Read the configuration again, now."),
        "cancel": ("carpool.cli.calls:cancel", "Cancel an open call."),
        "disconnect": ("carpool.cli.calls:disconnect", "End the session of an agent."),
        "use": ("carpool.cli.use:use", "Take a session to another workspace, without its agent leaving."),
        "cluster": (
            "carpool.cli.cluster:cluster",
            "Show the nodes of the cluster; make keys, drain, leave.",
        ),
        "service": ("carpool.cli.service:service", "Have carpool run from your login on."),
        "uninstall": ("carpool.cli.uninstall:uninstall", "Undo setup, end carpool, and say what is left."),
    },
    "Configure": {
        "check": (
            "carpool.cli.check:check",
            "Check the configuration; with --probe, whether a server may be shared.",
        ),
        "remove": ("carpool.cli.edit:remove", "Take a server out of your configuration."),
        "enable": ("carpool.cli.enable:enable", "Switch servers on that are disabled."),
        "disable": ("carpool.cli.enable:disable", "Switch servers off, for all agents or for one."),
        "trust": ("carpool.cli.trust:trust", "Let a project's own file start its servers."),
        "login": ("carpool.cli.login:login", "Log in to a server that is reached over a URL."),
        "logout": ("carpool.cli.login:logout", "Forget the login to a server."),
        "pin": ("carpool.cli.pin:pin", "Show what has changed at pinned servers, and approve it."),
        "token": ("carpool.cli.token:token", "Add, list and revoke tokens of the HTTP door."),
        "completion": (
            "carpool.cli.completion:completion",
            "Print the script by which a shell completes verbs and names.",
        ),
        "schema": ("carpool.cli.schema:schema", "Print the JSON Schema of the configuration, for editors."),
    },
    "Agents": {
        "connect": ("", "Attach an agent on stdin and stdout. This is what agents run."),
        "run": ("", "Attach an agent to one command's server, shared from then on."),
        "call": ("carpool.cli.call:call", "Call a tool, as an agent would."),
    },
    "Measure": {
        "bench": (
            "carpool.bench.command:bench",
            "Measure a tool under load, or carpool against a direct pipe.",
        ),
    },
}
"""The verbs by purpose, as `--help` lists them. Each has the place of its command (empty: `entry` handles it
before click), and its line in the list.
"""
VERBS = {verb: row for group in VERB_GROUPS.values() for verb, row in group.items()}


def _verb(name: str) -> click.Command:
    """Import a verb. Ends the process if it is not installed."""
    place, text = VERBS[name]
    if not place:
        return click.Command(name, help=text, callback=lambda: None)
    module, _, attribute = place.partition(":")
    try:
        command = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise click.UsageError(f"`carpool {name}` is not part of this installation") from None
    assert isinstance(command, click.Command)
    return command


class _Verbs(click.Group):
    """The verbs, imported on use: `carpool status` must not pay for `carpool bench`."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        if not ctx.resilient_parsing:
            return _verb(cmd_name)
        from carpool.cli.completion import add_names, early_command  # late: a shell asks for completions

        place, text = VERBS[cmd_name]
        return add_names(cmd_name, _verb(cmd_name) if place else early_command(cmd_name, text, VERBS))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete a verb or an option. Click would import every verb for its line of help."""
        from click.shell_completion import CompletionItem

        verbs = [
            CompletionItem(verb, help=text)
            for verb, (_, text) in VERBS.items()
            if verb.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, VERBS))
        for title, group in VERB_GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{verb:{width}}", text) for verb, (_, text) in group.items()])

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say where the configuration is, and what to do if nothing is configured yet."""
        from carpool.cli.first_run import where_servers_are  # late: only the help needs it

        formatter.write(f"\n{where_servers_are(os.environ)}\n`carpool help VERB` describes a verb.\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command like click, with a "did you mean" in the error."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from carpool_protocol.config.text.problems import did_you_mean

            meant = did_you_mean(args[0], VERBS)
            hint = f"; did you mean `carpool {meant}`?" if meant else "; `carpool help` lists the verbs"
            raise click.UsageError(f"there is no verb {display.printable(args[0])!r}{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs, subcommand_metavar="VERB [ARGS]...", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(RELEASE, "-V", "--version", prog_name="carpool")
def verbs() -> None:
    """Agents share MCP servers: each server runs once, supervised, for all of them."""


def main() -> int:
    """Run the command line. Returns its exit code."""
    try:
        _refuse_untrusted_places(sys.argv[1:])
        forced = screen.colour_forced(os.environ)
        code = verbs.main(prog_name="carpool", standalone_mode=False, color=forced)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = 130
    return code if isinstance(code, int) else 0


def _refuse_untrusted_places(arguments: list[str]) -> None:
    """End the process if the environment names a place that no verb may use (`trusted_places`)."""
    verb = arguments[0] if arguments else ""
    if verb not in VERBS or verb == "trust" or {"-h", "--help"}.intersection(arguments):
        return  # `trust` looks for itself: it is the way out
    # A file that somebody has typed is his word; one that the environment names may be a project's.
    typed = arguments[: arguments.index("--")] if "--" in arguments else arguments
    is_typed = any(each == "--config" or each.startswith("--config=") for each in typed)
    # `down` reads no configuration: what runs is found by the runtime directory.
    needs_none = is_typed or verb == "down"
    refuse_places(trusted_places.VARIABLES[1:] if needs_none else trusted_places.VARIABLES)


def refuse_places(variables: Sequence[str] = trusted_places.VARIABLES) -> None:
    """End the verb if one of these variables names a place in a project that is not trusted."""
    try:
        named_places.refuse_untrusted(os.environ, variables)
    except trusted_places.UntrustedPlaceError as error:
        fail(str(error), EXIT_USAGE)
    # Nothing that this verb starts later goes through a link that may lead elsewhere by then.
    if paths.CONFIG_VARIABLE in variables and (file := named_places.file_in_force(os.environ)):
        os.environ[paths.CONFIG_VARIABLE] = file


# --- what verbs share -----------------------------------------------------------------------------------


json_option = click.option("--json", "as_json", is_flag=True, help="For programs: JSON with stable keys.")


def environment() -> dict[str, str]:
    """Return the environment of this verb, with the configuration file that is in force here."""
    from carpool.launcher.up import environment_in_force  # late: verbs that only look need none of it

    return environment_in_force(runtime_place().directory)


workspace_option = click.option(
    "--workspace",
    default="",
    metavar="NAME|DIRECTORY",
    callback=lambda _ctx, _param, value: as_workspace(value),
    help="Be in this workspace, not in the one of this directory.",
)


profile_option = click.option(
    "--profile", default="", metavar="NAME", help="See and call what this profile may."
)


def as_workspace(value: str) -> str:
    """Return a workspace for the broker: a name as it is, or the absolute path of an existing directory."""
    if "/" not in value and value not in {".", "..", "~"}:
        return value
    path = os.path.realpath(os.path.expanduser(value))
    if not os.path.isdir(path):
        raise click.UsageError(f"there is no directory {display.printable(path)}")
    return path


def open_session(
    *, control: bool, start: bool = False, profile: str = "", workspace: str = ""
) -> ControlClient:
    """Return a session with the broker. `start`: bring carpool up if it does not run."""
    place = runtime_place()
    try:
        return reach_broker(place, control=control, profile=profile, workspace=workspace)
    except ControlClientError as error:
        if not (start and error.no_broker):
            fail_at(error)
    from carpool.launcher.up import bring_up  # late: only where carpool does not run

    code, text = bring_up(place)
    if code:
        fail(text, code if code == EXIT_USAGE else EXIT_NO_BROKER)
    if sys.stderr.isatty():
        click.echo("carpool: started in the background; `carpool down` ends it", err=True)
    try:
        return ControlClient(place.directory, control=control, profile=profile, workspace=workspace)
    except ControlClientError as error:
        fail_at(error)


def reach_broker(
    place: RuntimePlace, *, control: bool, profile: str = "", workspace: str = "", attach_s: float = ATTACH_S
) -> ControlClient:
    """Return a session with the broker, or with the next one if it has just died.

    Raises `ControlClientError`.
    """
    deadline = time.monotonic() + RETURN_S
    while True:
        try:
            return ControlClient(
                place.directory, control=control, profile=profile, workspace=workspace, attach_s=attach_s
            )
        except ControlClientError as error:
            if not error.no_broker or launcher_lock.holder(place.directory) is None:
                raise
            if time.monotonic() >= deadline:
                raise ControlClientError(
                    "carpool runs here, but its broker does not come up; see `carpool logs --daemon`",
                    no_broker=True,
                ) from None
        time.sleep(_POLL_S)


def broker_request_or_fail(
    client: ControlClient, method: str, params: dict[str, Any], timeout_s: float = 30.0
) -> dict[str, Any]:
    """Call a `carpool/…` method and return its result object; a broker's error ends the verb."""
    try:
        return broker_request(client, method, params, timeout_s)
    except AnsweredError as error:
        refused(error)


def broker_request(
    client: ControlClient, method: str, params: dict[str, Any], timeout_s: float = 30.0
) -> dict[str, Any]:
    """Call a `carpool/…` method and return its result object.

    Raises `AnsweredError` if the broker refuses.
    """
    try:
        result = msgspec.json.decode(client.request(method, params, timeout_s))
    except ControlClientError as error:
        fail_at(error)
    if not isinstance(result, dict):
        fail("the broker's answer is not understood; run `carpool restart --all`")
    return result


def refused(error: AnsweredError, more: str = "", *, name: str = "", workspace: str = "") -> NoReturn:
    """End the verb with the broker's refusal, and a line of `more`. `name`: the name that was asked for."""
    said = with_file_faults(text_for_people(error, name) or _without_protocol(str(error)), error, workspace)
    fail(f"{said}\n{more}".rstrip("\n"))


def with_file_faults(text: str, error: AnsweredError, workspace: str = "") -> str:
    """Return the text, with what is wrong with the files that may name what was not found."""
    from carpool.check.file_faults import faults_behind  # late: what is found reads no configuration

    return "\n".join(filter(None, (text, faults_behind(error, workspace))))


def _without_protocol(text: str) -> str:
    """Return a refusal without its advice to authors of requests: a person has written none."""
    from carpool_protocol.faults.kinds import KINDS

    for kind in (KINDS["bad_params"], KINDS["not_found"]):
        text = text.removeprefix(kind.what).removesuffix(kind.advice).strip() or text
    return text


def with_server_name(server: str, text: str) -> str:
    """Return a sentence with its server in front, unless the sentence names the server itself."""
    is_named = f"{server!r}" in text
    return f"{text[:1].lower()}{text[1:]}" if is_named else f"{server}: {text}"


def fail_at(error: ControlClientError) -> NoReturn:
    """End the verb because the broker cannot be used."""
    fail(str(error), EXIT_NO_BROKER if error.no_broker else EXIT_FAILED)
