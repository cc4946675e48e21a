"""The verb `use`: moves a session to another workspace while its agent stays connected.

Owns its words. Refuses to know what moving means: the broker does it.
"""

import click

from carpool.cli.main import as_workspace, broker_request_or_fail, json_option, open_session
from carpool.terminal import display
from carpool.terminal.verb_output import print_json

MOVE_S = 40.0
"""Longer than the broker waits for variables of the session's agent."""


@click.command()
@click.argument("workspace")
@click.option("--session", required=True, metavar="ID", help="Which one, as `carpool status` shows it.")
@json_option
def use(workspace: str, session: str, as_json: bool) -> None:
    """Take a session to WORKSPACE, a name of your configuration or a directory. Its agent stays connected.

    Its tools change with that; calls that run are finished where they are.
    """
    params = {"workspace": as_workspace(workspace), "session": session}
    with open_session(control=True) as door:
        place = broker_request_or_fail(door, "carpool/use_workspace", params, MOVE_S)
    if as_json:
        print_json({"session": session, "workspace": place})
    else:
        where = place.get("name") or place.get("root") or "no workspace"
        click.echo(display.printable(f"{session}: {where}"))
