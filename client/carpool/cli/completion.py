"""The verb `completion`, and which parameters of other verbs name something that carpool knows.

Owns the table of these parameters, and the parameters of the verbs that click does not run (`up`, `connect`,
`run`). The protocol with the shells is click's. Refuses to know where names come from (`completion_values`).
"""

from collections.abc import Iterable
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from carpool.cli.completion_values import Kind, known_names

VARIABLE: Final = "_CARPOOL_COMPLETE"
"""The variable by which a shell's script asks for completions, as click names it."""
SHELLS: Final = ("bash", "zsh", "fish")

OF_ALL_VERBS: Final[dict[str, Kind]] = {
    "server": "server",
    "servers": "server",
    "session": "session",
    "sessions": "session",
    "profile": "profile",
    "workspace": "workspace",
}
"""The parameters that mean the same in every verb."""
OF_A_VERB: Final[dict[tuple[str, str], Kind]] = {
    ("tools", "name"): "tool",
    ("call", "name"): "tool",
    ("bench", "tool"): "tool",
    ("check", "calls"): "tool",
    ("audit", "agent"): "session",
    ("check", "probed"): "server",
    ("remove", "name"): "server",
    ("login", "name"): "server",
    ("logout", "name"): "server",
    ("cancel", "call"): "call",
    ("story", "call"): "past call",
}
"""The parameters that mean it in one verb."""
FILES: Final = frozenset({"file", "directory", "cwd"})
"""The parameters that name a file or a directory."""

_PLACES: Final = (["--workspace"], ["--profile"], ["--tool-name-length"])
_EARLY: Final[dict[str, tuple[list[str], ...]]] = {
    "up": (["--detach"], ["--config", "file"], ["--http"], ["--cluster"], ["--node"]),
    "connect": _PLACES,
    "run": (["--name"], *_PLACES[1:]),
}
"""The options of the verbs that `entry` handles before click (docs: their `--help`)."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which SHELL completes verbs, options and names for `carpool`.

    \b
    bash  echo 'eval "$(carpool completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(carpool completion zsh)"' >> ~/.zshrc      (below compinit)
    fish  echo 'carpool completion fish | source' >> ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "carpool", VARIABLE).source())


def early_command(verb: str, text: str, verbs: Iterable[str]) -> click.Command:
    """Return a verb that click does not run, with its options, for completion alone. `verbs`: all verbs."""
    options: list[click.Parameter] = [
        click.Option(names, is_flag=names == ["--detach"]) for names in _EARLY.get(verb, ())
    ]
    if verb == "run":
        options.append(click.Argument(["command"], nargs=-1, type=click.Path()))
    if verb == "help":
        options.append(click.Argument(["verb"], required=False, type=click.Choice(list(verbs))))
    return click.Command(verb, help=text, params=options, callback=lambda **_: None)


def add_names(verb: str, command: click.Command) -> click.Command:
    """Make the parameters of a verb complete to the names that carpool knows."""
    for parameter in command.params:
        name = parameter.name or ""
        kind = OF_A_VERB.get((verb, name)) or OF_ALL_VERBS.get(name)
        if kind is not None:
            _complete_by(parameter, kind)
        elif name in FILES:
            parameter.type = click.Path()
    return command


def _complete_by(parameter: click.Parameter, kind: Kind) -> None:
    def shell_complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if kind == "workspace" and ("/" in incomplete or incomplete.startswith((".", "~"))):
            return [CompletionItem(incomplete, type="dir")]
        profile, workspace = (str(ctx.params.get(each) or "") for each in ("profile", "workspace"))
        return [
            CompletionItem(name, help=text or None)
            for name, text in known_names(kind, profile=profile, workspace=workspace)
            if name.startswith(incomplete)
        ]

    setattr(parameter, "shell_complete", shell_complete)  # noqa: B010 - a method, which mypy keeps from us
