"""The life of one instance: every state and every transition.

`docs/states.md` is generated from `TABLE` and `MEANING`. An event that a state does not list is a bug of
ours: `next_state` raises `InvalidTransition`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from carpool_protocol.faults.fault_answers import InvalidTransition


class InstanceState(StrEnum):
    """The states of an instance."""

    SPAWNING = "spawning"
    GREETING = "greeting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    TERMINATING = "terminating"
    KILLED = "killed"
    GONE = "gone"


class LifecycleEvent(StrEnum):
    """The events that change the state of an instance."""

    SPAWNED = "spawned"
    GREETED = "greeted"
    DRAIN = "drain"
    STOP = "stop"
    CONDEMN = "condemn"
    GRACE_OVER = "grace over"
    EXITED = "exited"


MEANING: Final[Mapping[InstanceState, str]] = {
    InstanceState.SPAWNING: "the process is being started",
    InstanceState.GREETING: "the process runs; the greeting is not answered or the lists are not read yet",
    InstanceState.SERVING: "fit: calls are placed on it",
    InstanceState.DRAINING: "takes no new call, except of the session that holds it; finishes open calls",
    InstanceState.STOPPING: "its stdin is closed; a conforming server ends by itself",
    InstanceState.TERMINATING: "its process group got SIGTERM",
    InstanceState.KILLED: "its process group got SIGKILL",
    InstanceState.GONE: "the process has ended and is reaped",
}

TABLE: Final[Mapping[InstanceState, Mapping[LifecycleEvent, InstanceState]]] = {
    InstanceState.SPAWNING: {
        LifecycleEvent.SPAWNED: InstanceState.GREETING,
        LifecycleEvent.STOP: InstanceState.STOPPING,
        LifecycleEvent.CONDEMN: InstanceState.TERMINATING,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.GREETING: {
        LifecycleEvent.GREETED: InstanceState.SERVING,
        LifecycleEvent.STOP: InstanceState.STOPPING,
        LifecycleEvent.CONDEMN: InstanceState.TERMINATING,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.SERVING: {
        LifecycleEvent.DRAIN: InstanceState.DRAINING,
        LifecycleEvent.STOP: InstanceState.STOPPING,
        LifecycleEvent.CONDEMN: InstanceState.TERMINATING,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.DRAINING: {
        LifecycleEvent.STOP: InstanceState.STOPPING,
        LifecycleEvent.CONDEMN: InstanceState.TERMINATING,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.STOPPING: {
        LifecycleEvent.GRACE_OVER: InstanceState.TERMINATING,
        LifecycleEvent.CONDEMN: InstanceState.TERMINATING,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.TERMINATING: {
        LifecycleEvent.GRACE_OVER: InstanceState.KILLED,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.KILLED: {
        LifecycleEvent.GRACE_OVER: InstanceState.KILLED,
        LifecycleEvent.EXITED: InstanceState.GONE,
    },
    InstanceState.GONE: {},
}

ACTIVE: Final = frozenset({InstanceState.SPAWNING, InstanceState.GREETING, InstanceState.SERVING})
"""States in which an instance counts towards the size of its pool."""

ENDING: Final = frozenset({InstanceState.STOPPING, InstanceState.TERMINATING, InstanceState.KILLED})
"""States in which we have asked the process to end."""


def next_state(state: InstanceState, happening: LifecycleEvent, who: str) -> InstanceState:
    """The state after this event. Raises `InvalidTransition` if the table has none."""
    after = TABLE[state].get(happening)
    if after is None:
        raise InvalidTransition(machine=who, state=state.value, event=happening.value, story=())
    return after
