"""The story of a call of another node's agent, as this node's broker and supervisor hold it.

Owns what of a story leaves this node: the steps in words, and nothing else of the journals.

Knows nothing of: which node asks, and whether the session is its own (`local_sessions`).
"""

import asyncio
from typing import Final

import msgspec

from carpool.cluster.core.node_requests import NodeAnswer, NodeStep
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.readings.call_steps import story_steps
from carpool_protocol.ids import call_named

ATTACH_S: Final = 1.0
ANSWER_S: Final = 1.5

NO_SESSION: Final = NodeAnswer(
    refused="the node does not know this session: its process may have been started again"
)
_FORGOTTEN: Final = NodeAnswer()


async def tell_story(directory: str, session: str, call: int) -> NodeAnswer:
    """Return the steps of a call. `session`: the broker's id of its session; empty: there was none. `call`:
    the JSON-RPC id on that session.
    """
    if not session:
        return NO_SESSION
    return await asyncio.to_thread(_ask_broker, directory, session, call)


def _ask_broker(directory: str, session: str, call: int) -> NodeAnswer:
    try:
        with ControlClient(directory, control=True, attach_s=ATTACH_S) as client:
            params = {"session": session, "request": call}
            live = msgspec.json.decode(client.request("carpool/story", params, ANSWER_S))
    except ControlClientError:
        return NodeAnswer(refused="its broker does not answer")
    except AnsweredError as error:
        return NodeAnswer(refused=f"its broker refuses the question ({error})")
    found = story_steps(live, call_named(live["call"]) or 0)
    steps = sorted(found, key=lambda step: step.at)
    if not steps:
        return _FORGOTTEN
    return NodeAnswer(call=live["call"], steps=[NodeStep(*each) for each in steps])
