"""The problems of a node and its cluster that `carpool doctor` shows.

Owns which fact about the cluster is which problem, its sentence and its repair. Pure; `cli.doctor_facts`
collects the facts. Knows nothing of: files, links, how facts are found.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import Struct

from carpool.cluster.node_facts import NodeFacts
from carpool_protocol.config.schema.settings_cluster import ANY_NODE

DOWN_S: Final = 5.0
"""A link may take this long to work after the start, or after a loss."""
SILENT_S: Final = 10.0
"""A node may take this long to be heard."""
CLOCK_S: Final = 5.0
"""Clocks that are further apart are told."""


class MissingFile(Struct, frozen=True):
    """A file that the settings of the cluster name, and that is not there or cannot be read."""

    setting: str
    path: str


class ClusterProblem(NamedTuple):
    """One problem: the id of its kind, its sentence and its repair."""

    kind: str
    text: str
    repair: str


def cluster_problems(
    facts: NodeFacts | None, missing: tuple[MissingFile, ...], installed: str
) -> Iterator[ClusterProblem]:
    """Yield the problems. `facts`: None if no node's process runs. `installed`: the version of this
    command.
    """
    for file in missing:
        yield _missing(file)
    if facts is None or facts.has_left or (missing and not facts.is_up):  # the missing file is the cause
        return
    if not facts.pid:
        repair = (
            "Mend the settings of `cluster`: a change of the file is tried at once. If nothing was "
            "wrong with them, run `carpool restart --all`."
        )
        yield ClusterProblem(
            "cluster-unreachable", f"This machine is in no cluster: {facts.problem}.", repair
        )
        return
    if not facts.is_up and missing:
        return  # that is why
    if not facts.is_up and facts.down_s >= DOWN_S:
        why = f" ({facts.problem})" if facts.problem else ""
        text = f"The cluster at {facts.url} has not been reached for {facts.down_s:.0f} s{why}."
        yield ClusterProblem("cluster-unreachable", text, _reach(facts.url))
    elif facts.is_up and facts.problem:
        text = f"The cluster at {facts.url} says: {facts.problem}."
        yield ClusterProblem("cluster-unreachable", text, _reach(facts.url))
    if facts.is_up:
        yield from _of_nodes(facts, installed)


def server_at_node(server: str, node: str, error: str, facts: NodeFacts | None) -> tuple[str, str]:
    """Return the sentence and the repair of a server that runs at another node and is not reached there.
    `node`: as in the configuration, `*` for any that offers it. `error`: of the last session.
    """
    if facts is None:
        text = f"{server} runs at another node of the cluster, and this machine is in none: {error}"
        return text, "Run `carpool up --cluster URL`, or see `carpool logs --daemon`."
    nodes = [node] if node != ANY_NODE else facts.servers.get(server, [])
    where = f"node {' or '.join(nodes)}" if nodes else "another node of the cluster"
    text = f"{server} runs at {where}, where agents of this node get no session now: {error}"
    offers = {each.offer.node: each.offer for each in facts.nodes}
    if draining := [each for each in nodes if each in offers and offers[each].is_draining]:
        return text, f"Run `carpool cluster undrain {draining[0]}` when it may take sessions again."
    if away := [each for each in nodes if each not in offers]:
        return (
            text,
            f"Look whether carpool runs at {away[0]} and reaches the cluster (`carpool cluster status`).",
        )
    there = nodes[0] if nodes else "its node"
    return (
        text,
        f"Run `carpool doctor` and `carpool logs {server}` at {there}; `carpool start` here does nothing.",
    )


_AGAIN: Final = "carpool tries again by itself; `carpool logs --daemon` has what it tried."


def _reach(url: str) -> str:
    if url.startswith(("nats://", "tls://")):
        return (
            "Look whether the NATS server runs and takes this node's user (`cluster.url`, "
            f"`cluster.credentials`). {_AGAIN}"
        )
    return (
        "Compare the addresses and keys in `cluster.peers` with what `carpool cluster key` says at each "
        f"node. {_AGAIN}"
    )


def _missing(file: MissingFile) -> ClusterProblem:
    text = f"{file.path}, which `{file.setting}` names, cannot be read."
    if file.setting == "cluster.key":
        text = f"There is no key of this node in {file.path}, and `tcp://` needs one."
        repair = "Run `carpool cluster key`, and put its line into `cluster.peers` of the other nodes, then "
        repair += "`carpool restart --all` here."
    else:
        repair = f"Put the file there, or correct `{file.setting}`."
    return ClusterProblem("cluster-file-missing", text, repair)


def _of_nodes(facts: NodeFacts, installed: str) -> Iterator[ClusterProblem]:
    if facts.has_namesake:
        yield ClusterProblem(
            "node-name-twice",
            f"Another node of the cluster is called {facts.own.node}, too: sessions reach one or the other.",
            "Give one of them another name: `cluster.node`, or `carpool up --node NAME`.",
        )
    for silent in facts.silent:
        if silent.for_s >= SILENT_S:
            yield ClusterProblem(
                "node-silent",
                f"Node {silent.node} has not been heard for {silent.for_s:.0f} s: its servers are not there.",
                f"Look whether carpool runs at {silent.node} and reaches the cluster (`carpool cluster "
                "status` there). If that node is gone for good, take it out of `cluster.peers`, or run "
                "`carpool restart --all` here.",
            )
    for each in facts.nodes:
        node, version = each.offer.node, each.offer.release
        if version != installed:
            yield ClusterProblem(
                "node-version",
                f"Node {node} runs carpool {version}, and {installed} is installed here.",
                "Install one version at all nodes, and run `carpool restart --all` where it was changed.",
            )
        ahead_s = each.clock_ahead_s or 0.0
        if abs(ahead_s) - (each.latency_s or 0.0) / 2 > CLOCK_S:
            where = "ahead of" if ahead_s > 0 else "behind"
            yield ClusterProblem(
                "clocks-differ",
                f"The clock of node {node} is {abs(ahead_s):.0f} s {where} the one of this machine.",
                "Set the clocks of both machines by the network (NTP).",
            )
