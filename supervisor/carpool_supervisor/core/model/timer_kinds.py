"""The kinds of timers in the supervisor's core.

Owns the kinds, the type of key of each, and the order in which timers that are due together fire. Knows
nothing of: durations, what a timer does when it fires (`supervisor`).
"""

from typing import Final, Literal, get_args

from carpool_protocol.machine.timers import Timers

TimerKind = Literal[
    "queued_call",  # call id: the call waits in its pool's queue
    "queue_notice",  # call id: its agent hears again that the call waits
    "idle_call",  # call id: the server has sent nothing about the call
    "running_call",  # call id: the call may not run longer in all
    "parked_calls",  # pool: calls wait, and agents of others are asked
    "ask",  # ask id: the agent must answer
    "retry_pause",  # (instance, wire id): the server wanted a pause before it gets the call again
    "held_task",  # (instance, task): the server no longer keeps the task
    "list_answer",  # instance: the answer to a list request must come
    "list_reread",  # instance: its lists may be read again
    "subscription_pause",  # instance: it may be told again that subscriptions have ended
    "idle_lease",  # instance: its session may not keep it longer without a call
    "lease_share",  # pool: a session has waited for an instance for so long that others share theirs
    "tainted_instance",  # pool: an instance still owes the answer to a call that is over
    "start_backoff",  # pool: the next instance may start
    "shortage",  # `ALL`: a start may be tried again
    "greeting_turn",  # instance: its greeting holds back fewer other starts, then none
    "silent_greeting",  # instance: it has answered nothing to its greeting
    "era_silence",  # instance: it has not answered `server/discover`
    "instance_phase",  # instance: it must greet, finish or end
    "instance_check",  # `ALL`: idle and silent instances are checked
    "recycling_check",  # `ALL`: ages of instances are checked
]

ORDER: Final[tuple[TimerKind, ...]] = get_args(TimerKind)
ALL: Final = "all"
"""The key of a timer that is not for one record."""

SupervisorTimers = Timers[TimerKind]


def supervisor_timers() -> SupervisorTimers:
    """Return the timers of a supervisor, none of them armed."""
    return Timers(ORDER)
