"""Requests of verbs and of the HTTP door to the node's process of this machine: its socket and its files.

Knows nothing of: what the process does about requests.
"""

import socket
from collections.abc import Sequence
from typing import Final, Literal, TypeVar

import msgspec

from carpool.cluster.core.node_requests import NodeAnswer
from carpool.cluster.node_facts import NodeFacts, read_facts
from carpool.readings.call_steps import Crossing, NodeStory, StoryStep, node_story
from carpool_protocol.bootstrap import paths, peer_credentials

ANSWER_S: Final = 10.0
FACTS_S: Final = 3.0
"""Twice what the process waits for other nodes and for the broker."""
_NO_NODE: Final = (
    "this machine is in no cluster, or its node's process does not answer (`carpool logs --daemon`)"
)


class NodeProcessError(Exception):
    """The process refused, or is not there. The text says what to do."""


class _Answer(msgspec.Struct):
    said: str = ""
    refused: str = ""


def request(directory: str, act: Literal["drain", "undrain", "leave"], node: str) -> str:
    """Ask for one thing and return the answer, a sentence. `node`: empty for this one. Raises
    `NodeProcessError`.
    """
    answer = _ask(directory, {"act": act, "node": node}, _Answer)
    if answer.refused:
        raise NodeProcessError(answer.refused)
    return answer.said


def fresh_facts(directory: str) -> NodeFacts:
    """Return the facts about the cluster with figures that nodes tell now. Raises `NodeProcessError` if this
    machine's process does not answer soon; then those of the file are there.
    """
    return _ask(directory, {"act": "status"}, NodeFacts, FACTS_S)


def story_at_node(
    directory: str, node: str, session: int, call: int, answer_s: float = ANSWER_S
) -> NodeAnswer:
    """Return the steps of a call at another node. `session`: the number of this node's session there; `call`:
    the JSON-RPC id on it. Raises `NodeProcessError` if this machine's process does not answer in `answer_s`.
    """
    asked = {"act": "story", "node": node, "session": session, "call": call}
    return _ask(directory, asked, NodeAnswer, answer_s)


def stories_at_nodes(
    directory: str, crossings: Sequence[Crossing], answer_s: float = ANSWER_S
) -> list[NodeStory]:
    """Ask each node what happened there to a call that crossed to it. `answer_s`: for each answer."""
    found = []
    for each in crossings:
        try:
            answer = story_at_node(directory, each.node, each.session, each.wire, answer_s)
        except NodeProcessError as error:
            found.append(node_story(each, refused=str(error)))
        else:
            steps = [StoryStep(step.at, step.where, step.text) for step in answer.steps]
            found.append(node_story(each, answer.call, steps, answer.refused))
    return found


T = TypeVar("T")


def _ask(directory: str, asked: dict[str, object], kind: type[T], answer_s: float = ANSWER_S) -> T:
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(answer_s)
            sock.connect(paths.node_socket(directory))
            if not peer_credentials.is_ours(sock):
                raise NodeProcessError(f"nothing was said to the socket: {peer_credentials.NOT_OURS}")
            sock.sendall(msgspec.json.encode(asked) + b"\n")
            with sock.makefile("rb") as lines:
                return msgspec.json.decode(lines.readline(), type=kind)
    except (OSError, msgspec.MsgspecError):
        raise NodeProcessError(_NO_NODE) from None


def nodes_of_servers(directory: str) -> dict[str, list[str]]:
    """Return the servers of other nodes by their names here, each with the nodes that offer it."""
    facts = read_facts(directory)
    return {} if facts is None else facts.servers
