"""Acts on nodes in the audit of this machine's carpool: drains and leaves, asked for here or by another node.

The broker writes the audit, so the node's process tells it. Owns the sentence in the log if that fails.

Knows nothing of: the form of the audit, what an act does.
"""

import asyncio
from typing import Literal

from msgspec import Struct, structs

from carpool.cluster.log import log
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError

Verb = Literal["drain", "undrain", "leave"]
Outcome = Literal["done", "refused", "unknown"]
"""`unknown`: the other node has not answered."""
ATTACH_S = 2.0
ANSWER_S = 2.0


class NodeAct(Struct, frozen=True, kw_only=True):
    """One act, as the broker is told of it (`carpool/node_act`)."""

    act: Verb
    node: str
    """The node that it is about."""
    outcome: Outcome
    by: str = ""
    """The other node that asked for it; empty: a command on this machine."""
    pid: int = 0
    """The process that asked for it on this machine; 0: not known."""


async def record(directory: str, act: NodeAct) -> None:
    """Have the broker write the act down. A failure is logged."""
    await asyncio.to_thread(_record, directory, act)


def _record(directory: str, act: NodeAct) -> None:
    try:
        with ControlClient(directory, control=True, attach_s=ATTACH_S) as client:
            client.request("carpool/node_act", structs.asdict(act), ANSWER_S)
    except (ControlClientError, AnsweredError) as error:
        log(f"the audit has no line of `{act.act}` of node {act.node}: {error}", "warning")
