"""The verb `why`: the sharing mode of a server, its start, its evidence, and the way to change it.

Owns the layout of the supervisor's lines, also for servers with several pools. Knows nothing of: how a mode
is decided.
"""

from typing import Any

import click
import msgspec

from carpool.cli.main import broker_request_or_fail, fail_at, json_option, open_session
from carpool.cluster.requests import nodes_of_servers
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.control.place import runtime_place
from carpool.terminal import display
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.config.text.problems import no_such_server


@click.command()
@click.argument("server")
@json_option
def why(server: str, as_json: bool) -> None:
    """Tell how SERVER is shared, why, and how to change that."""
    with open_session(control=True) as door:
        answer = _explained(door, server)
    if as_json:
        print_json(answer)
    else:
        click.echo(why_page(answer.get("pools") or []))
        if nodes := nodes_of_servers(runtime_place().directory).get(server):
            click.echo(display.printable(f"Offered now by: {', '.join(nodes)} (`carpool cluster status`)."))


def why_page(pools: list[dict[str, Any]]) -> str:
    """Return the lines of each pool for people.

    Pools with the same lines (for example of several workspaces) are shown once.
    """
    texts: dict[str, list[str]] = {}
    for pool in pools:
        text = "\n".join(map(_line, pool.get("lines") or []))
        texts.setdefault(text, []).append(display.printable(str(pool.get("key", ""))))
    if len(texts) < 2:
        return "".join(texts)
    return "\n\n".join(f"pool {', '.join(keys)}:\n{text}" for text, keys in texts.items())


def _line(text: object) -> str:
    """Return a line in the width of the terminal, with the indent that it has."""
    line = display.printable(str(text))
    indent = " " * (len(line) - len(line.lstrip(" ")))
    return display.wrapped(line.lstrip(" "), indent, f"{indent}  ")


def _explained(client: ControlClient, server: str) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(client.request("carpool/why", {"server": server}))
    except ControlClientError as error:
        fail_at(error)
    except AnsweredError as error:
        known = broker_request_or_fail(client, "carpool/status", {}).get("servers") or {}
        fail(str(error) if server in known else no_such_server(server, known))
    if not isinstance(answer, dict):
        fail("the broker's answer is not understood; run `carpool restart --all`")
    return answer
