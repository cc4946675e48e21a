"""Requests of verbs to this node's process: drain a node, leave, tell the present facts or a story elsewhere.

Owns the sentences of the answers, and which act goes into the audit with which outcome.

Knows nothing of: the socket, channels, who may drain another node, the form of the audit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Literal

from msgspec import structs, to_builtins

from carpool.cluster.act_records import ActRecords, NodeAct, Outcome, Verb
from carpool.cluster.core.node import DrainingAsked, NodeAnswered
from carpool.cluster.core.node_requests import NodeAnswer
from carpool.cluster.node_facts import NodeFacts
from carpool.cluster.other_nodes import OtherNodes
from carpool.cluster.supervisor_socket import SessionRequest, SupervisorConnection

LEAVE_S: Final = 4.0
"""A node that leaves waits this long until the audit has a line about it."""
_NO_FACTS: Final = "the node's process has just started"
_DONE: Final = {
    "drain": "takes no further sessions of other nodes; those that are open go on",
    "undrain": "takes sessions of other nodes again",
}


class VerbRequests:
    """Answers requests of verbs on this machine, and notes acts of other nodes in the audit."""

    def __init__(
        self,
        directory: str,
        node: str,
        others: OtherNodes,
        *,
        set_draining: Callable[[bool], None],
        leave: Callable[[], None],
        fresh_facts: Callable[[], Awaitable[NodeFacts | None]],
    ) -> None:
        """`node`: this one's name. `leave`: ends the process for good. `fresh_facts`: those of this moment;
        None: there are none yet.
        """
        self._node = node
        self._others = others
        self._set_draining = set_draining
        self._leave = leave
        self.acts = ActRecords(directory)
        self._fresh_facts = fresh_facts
        self._tasks: set[asyncio.Task[None]] = set()

    def requested(self, asker: SupervisorConnection, request: SessionRequest) -> None:
        """A verb asks for `request.act`."""
        node = request.node or self._node
        match request.act:
            case "leave":
                text = f"{self._node} leaves the cluster; `carpool restart --all` joins again"
                asker.tell({"said": text})
                self.acts.add(_act(asker, "leave", self._node, "done"))
                self._begin(self._leave_when_written())
            case "drain" | "undrain":
                self._drain(asker, request.act, node)
            case "story":
                self._others.request(
                    node,
                    "story",
                    lambda effect: asker.tell(structs.asdict(effect.answer)),
                    session=request.session,
                    call=request.call,
                )
            case "status":
                self._begin(self._tell_facts(asker))
            case "":
                pass

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_facts(self, asker: SupervisorConnection) -> None:
        facts = await self._fresh_facts()
        asker.tell({"refused": _NO_FACTS} if facts is None else to_builtins(facts))

    def _drain(self, asker: SupervisorConnection, verb: Literal["drain", "undrain"], node: str) -> None:
        def answered(effect: NodeAnswered) -> None:
            refused = effect.answer.refused
            asker.tell({"refused": refused} if refused else {"said": said})
            outcome: Outcome = "done"
            if refused:
                outcome = "refused" if effect.is_received else "unknown"
            self.acts.add(_act(asker, verb, node, outcome))

        said = f"{node} {_DONE[verb]}"
        if node == self._node:
            self._set_draining(verb == "drain")
            answered(NodeAnswered(0, NodeAnswer(), is_received=True))
        else:
            self._others.request(node, verb, answered)

    def draining_asked(self, effect: DrainingAsked) -> None:
        """Another node has asked this one to drain, or to take sessions again."""
        self.acts.add(
            NodeAct(
                act="drain" if effect.is_on else "undrain",
                node=self._node,
                outcome="done" if effect.is_allowed else "refused",
                by=effect.node,
                times=effect.times,
            )
        )

    async def _leave_when_written(self) -> None:
        await self.acts.wait_written(LEAVE_S)
        self._leave()


def _act(asker: SupervisorConnection, verb: Verb, node: str, outcome: Outcome) -> NodeAct:
    pid = asker.peer[0] if asker.peer else 0
    return NodeAct(act=verb, node=node, outcome=outcome, pid=pid)
