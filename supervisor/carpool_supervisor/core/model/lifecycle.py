"""The life of one instance: every state, every transition, nothing else.

`docs/states.md` is generated from `TABLE` and `MEANING`. A happening that a state does not
list is a bug of ours: `follow` raises `InvalidTransition`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from carpool_protocol.faults.faults import InvalidTransition


class State(StrEnum):
    """Where an instance is in its life."""

    SPAWNING = "spawning"
    GREETING = "greeting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    TERMINATING = "terminating"
    KILLED = "killed"
    GONE = "gone"


class Happening(StrEnum):
    """What moves an instance on."""

    SPAWNED = "spawned"
    GREETED = "greeted"
    DRAIN = "drain"
    STOP = "stop"
    CONDEMN = "condemn"
    GRACE_OVER = "grace over"
    EXITED = "exited"


MEANING: Final[Mapping[State, str]] = {
    State.SPAWNING: "the process is being started",
    State.GREETING: "the process runs; it has not yet said who it is and what it offers",
    State.SERVING: "fit: calls are placed on it",
    State.DRAINING: "takes no new call, except of the session that holds it, and finishes what is open",
    State.STOPPING: "its stdin is closed; a conforming server ends by itself",
    State.TERMINATING: "its process group got SIGTERM",
    State.KILLED: "its process group got SIGKILL",
    State.GONE: "the process has ended and is reaped",
}

TABLE: Final[Mapping[State, Mapping[Happening, State]]] = {
    State.SPAWNING: {
        Happening.SPAWNED: State.GREETING,
        Happening.STOP: State.STOPPING,
        Happening.CONDEMN: State.TERMINATING,
        Happening.EXITED: State.GONE,
    },
    State.GREETING: {
        Happening.GREETED: State.SERVING,
        Happening.STOP: State.STOPPING,
        Happening.CONDEMN: State.TERMINATING,
        Happening.EXITED: State.GONE,
    },
    State.SERVING: {
        Happening.DRAIN: State.DRAINING,
        Happening.STOP: State.STOPPING,
        Happening.CONDEMN: State.TERMINATING,
        Happening.EXITED: State.GONE,
    },
    State.DRAINING: {
        Happening.STOP: State.STOPPING,
        Happening.CONDEMN: State.TERMINATING,
        Happening.EXITED: State.GONE,
    },
    State.STOPPING: {
        Happening.GRACE_OVER: State.TERMINATING,
        Happening.CONDEMN: State.TERMINATING,
        Happening.EXITED: State.GONE,
    },
    State.TERMINATING: {
        Happening.GRACE_OVER: State.KILLED,
        Happening.EXITED: State.GONE,
    },
    State.KILLED: {
        Happening.GRACE_OVER: State.KILLED,
        Happening.EXITED: State.GONE,
    },
    State.GONE: {},
}

ACTIVE: Final = frozenset({State.SPAWNING, State.GREETING, State.SERVING})
"""States in which an instance counts towards the size of its pool."""

ENDING: Final = frozenset({State.STOPPING, State.TERMINATING, State.KILLED})
"""States in which we have asked the process to end."""


def follow(state: State, happening: Happening, who: str) -> State:
    """The state after `happening`. Raises `InvalidTransition` where the table has none."""
    after = TABLE[state].get(happening)
    if after is None:
        raise InvalidTransition(machine=who, state=state.value, event=happening.value, story=())
    return after
