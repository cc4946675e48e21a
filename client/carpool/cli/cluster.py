"""The verb `cluster`: shows the nodes of the cluster, makes a node's key, and takes nodes out of use.

Owns the table of nodes and the sentences about it. The facts are those that the node's process of this
machine tells, or has written down if it does not answer (`carpool.cluster.process`), so that the verb answers
also while the broker does not.

Knows nothing of: links, channels, how a node is asked for something (`carpool.cluster.requests`).
"""

import contextlib
import os
import socket
from typing import Literal
from urllib.parse import urlsplit

import click
import msgspec

from carpool.cli.edit import config_in_force
from carpool.cli.main import json_option
from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.keys import make_key, public_key
from carpool.cluster.links.link import LinkError
from carpool.cluster.node_facts import NodeFacts, read_facts, state_of, written_ago_s
from carpool.cluster.requests import NodeProcessError, fresh_facts, request
from carpool.cluster.settings import key_file
from carpool.control.place import runtime_place
from carpool.http.core.access import is_loopback
from carpool.terminal import display
from carpool.terminal.table import Cell
from carpool.terminal.verb_output import fail, print_json
from carpool_protocol.config.reading.load import home_of
from carpool_protocol.config.schema.placement import node_name
from carpool_protocol.config.schema.settings_cluster import is_anywhere

_NO_NODE = (
    "this machine is in no cluster: `carpool up --cluster URL` joins one, or `cluster` in the "
    "configuration; if it should be in one, `carpool logs --daemon` says why it is not"
)
_ANY_URL = "tcp://0.0.0.0:7400"
_JOIN = "`carpool up --cluster {url}` {where} joins"
_ELSEWHERE = "on another machine, or in another runtime directory,"
_HERE = "in another runtime directory of this machine (the address is for this machine only)"


@click.command()
@click.argument("what", type=click.Choice(["status", "key", "drain", "undrain", "leave"]))
@click.argument("node", required=False)
@click.option("--config", "file", help="With key: this file, not your own carpool.json.")
@json_option
def cluster(
    what: Literal["status", "key", "drain", "undrain", "leave"],
    node: str | None,
    *,
    file: str | None,
    as_json: bool,
) -> None:
    """Show the nodes of the cluster, make this node's key, or take a node out of use.

    drain: NODE takes no further sessions of other nodes; those that are open go on. Without NODE it is this
    one. leave: this node ends the sessions of others and its own at others, until carpool is started again.
    """
    if node is not None and what not in {"drain", "undrain"}:
        raise click.UsageError(f"`cluster {what}` takes no NODE")
    if what == "key":
        _key(file, as_json=as_json)
    elif what == "status":
        _status(as_json=as_json)
    else:
        _ask(what, node or "", as_json=as_json)


def _key(file: str | None, *, as_json: bool) -> None:
    config = config_in_force(file)
    path = key_file(config, home_of(os.environ))
    try:
        public = public_key(make_key(path)).hex()
    except (LinkError, OSError) as error:
        fail(str(error))
    name = node_name(config.cluster.node, socket.gethostname())
    own = config.cluster.url if config.cluster.url.startswith("tcp://") else _ANY_URL
    url = f"tcp://HOST:{own.rpartition(':')[2]}" if is_anywhere(own) else own
    peer = f"{name} {url} {public}"
    if as_json:
        print_json({"node": name, "public_key": public, "peer": peer, "file": path})
        return
    click.echo(f"{public}\n")
    click.echo(display.printable(f"The secret key is in {path}. In `cluster.peers` of the other nodes:"))
    click.echo(display.printable(f'  "{peer}"'))
    if is_anywhere(own):
        click.echo("Write an address at which the others reach this machine in place of HOST.")
    elif is_loopback(urlsplit(own).hostname or ""):
        click.echo("The address is for this machine only: `cluster.url` needs another one to reach others.")


def _read_facts(directory: str) -> NodeFacts:
    facts = read_facts(directory)
    if facts is None:
        fail(_NO_NODE)
    if not facts.pid:
        fail(f"this machine is in no cluster: {facts.problem}")
    return facts


def _status(*, as_json: bool) -> None:
    directory = runtime_place().directory
    facts, ago_s = _read_facts(directory), written_ago_s(directory)
    with contextlib.suppress(NodeProcessError):
        facts, ago_s = fresh_facts(directory), 0.0
    if as_json:
        print_json(msgspec.to_builtins(facts))
        return
    own = facts.own
    state = "" if facts.is_up else f", not reached for {display.duration(facts.down_s)}"
    click.echo(display.printable(f"cluster {facts.cluster} at {facts.url}{state}"))
    if facts.problem:
        click.echo(display.printable(f"its link says: {facts.problem}"))
    click.echo()
    click.echo(nodes_table(facts, ago_s))
    if facts.has_namesake:
        click.echo(display.printable(f"another node is called {own.node}, too (`carpool doctor`)"))
    for name, why in sorted(own.kept_local.items()):
        click.echo(display.printable(f"{name} is not offered: {why}"))
    if facts.join:
        click.echo(display.printable(join_line(facts.join)))


def join_line(url: str) -> str:
    """Return how others join at this URL, and from where they can."""
    is_here = is_loopback(urlsplit(url).hostname or "")
    return _JOIN.format(url=url, where=_HERE if is_here else _ELSEWHERE)


def nodes_table(facts: NodeFacts, ago_s: float) -> str:
    """Return the table of this node and the others. `ago_s`: the facts were written this long ago."""
    rows = [_row(facts.own, "draining" if facts.own.is_draining else "this one", "-", None, ago_s)]
    rows += [
        _row(each.offer, state_of(each), each.sessions, each.latency_s, each.age_s + ago_s)
        for each in facts.nodes
    ]
    rows += [_silent_row(each.node, each.for_s + ago_s) for each in facts.silent]
    heads = ("NODE", "STATE", "SESSIONS", "LOAD", "CALLS", "AGE", "LATENCY", "LABELS", "RELEASE", "SERVERS")
    right = {"SESSIONS", "LOAD", "CALLS", "AGE", "LATENCY"}
    # So that STATE is never cut in 80 columns.
    return display.columns(heads, rows, right=right, spare=("LATENCY", "LOAD", "RELEASE", "LABELS", "AGE"))


def _row(
    offer: NodeOffer, state: str, sessions: int | str, latency_s: float | None, age_s: float
) -> list[object]:
    return [
        offer.node,
        Cell(state, "" if state in {"reached", "this one"} else "yellow"),
        sessions,
        offer.load,
        offer.open_calls,
        f"{age_s:.0f}s",
        "-" if latency_s is None else display.short_duration(latency_s),
        " ".join(offer.labels) or "-",
        offer.release,
        " ".join(server.name for server in offer.servers) or "-",
    ]


def _silent_row(node: str, for_s: float) -> list[object]:
    number, unit, *_ = display.duration(for_s).split(" ")
    return [node, Cell(f"silent {number} {unit}", "yellow"), *("-" * 8)]


def _ask(what: Literal["drain", "undrain", "leave"], node: str, *, as_json: bool) -> None:
    try:
        said = request(runtime_place().directory, what, node)
    except NodeProcessError as error:
        fail(str(error))
    if as_json:
        print_json({"said": said})
    else:
        click.echo(display.printable(said))
