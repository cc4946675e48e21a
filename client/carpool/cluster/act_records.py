"""Acts on nodes in the audit of this machine's carpool: drains and leaves, asked for here or by another node.

The broker writes the audit, so the node's process tells it, also a broker that comes within `KEEP_S`. Owns
the acts that wait for that, and the sentence in the log if it fails.

Knows nothing of: the form of the audit, what an act does.
"""

import asyncio
from collections import deque
from typing import Final, Literal

from msgspec import Struct, structs

from carpool.cluster.log import log
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError

Verb = Literal["drain", "undrain", "leave"]
Outcome = Literal["done", "refused", "unknown"]
"""`unknown`: the other node has not answered."""
ATTACH_S: Final = 2.0
ANSWER_S: Final = 2.0
KEEP_S: Final = 30.0
"""An act waits this long for a broker that is being replaced."""
RETRY_S: Final = 0.5
MAX_WAITING: Final = 500
"""The most acts that wait. In a minute other nodes add at most `MAX_ALL_DRAINS`, and for each node that was
refused one with the number of its requests.
"""


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
    times: int = 1
    """Greater than 1: it stands for this number of refused requests of `by` within a minute."""


class ActRecords:
    """The acts of one node's process that wait to be written, one after the other."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._waiting: deque[tuple[NodeAct, float]] = deque()
        """The acts, each with the time at which it is given up."""
        self._writer: asyncio.Task[None] | None = None

    def add(self, act: NodeAct) -> None:
        """Have the broker write the act down, as soon as it can. A failure is logged."""
        if len(self._waiting) >= MAX_WAITING:
            _not_written(act, "too many acts wait for the broker")
            return
        self._waiting.append((act, asyncio.get_running_loop().time() + KEEP_S))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def wait_written(self, most_s: float) -> None:
        """Wait until all acts are written, or given up; at most for this time."""
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=most_s)

    async def _write(self) -> None:
        while self._waiting:
            act, until = self._waiting[0]
            problem = await asyncio.to_thread(_send, self._directory, act)
            if problem and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(RETRY_S)
                continue
            self._waiting.popleft()
            if problem:
                _not_written(act, problem)


def _send(directory: str, act: NodeAct) -> str:
    """Send the act to the broker. Returns why it was not sent, and may be tried again; empty: it was."""
    try:
        client = ControlClient(directory, control=True, attach_s=ATTACH_S)
    except ControlClientError as error:
        return str(error)
    with client:
        try:
            client.request("carpool/node_act", structs.asdict(act), ANSWER_S)
        except (ControlClientError, AnsweredError) as error:
            _not_written(act, str(error))
    return ""


def _not_written(act: NodeAct, why: str) -> None:
    log(f"the audit has no line of `{act.act}` of node {act.node}: {why}", "warning")
