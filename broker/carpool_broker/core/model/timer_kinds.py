"""The kinds of timers in the broker's core.

Owns the kinds, the type of key of each, and the order in which timers that are due together fire. Knows
nothing of: durations, what a timer does when it fires (`broker`).
"""

from typing import Final, Literal, get_args

from carpool_protocol.machine.timers import Timers

TimerKind = Literal[
    "queued_call",  # call id: the call waits in its session's queue
    "sent_call",  # call id: the call is at the supervisor, whose own timeouts are shorter
    "task",  # carpool's task id: the server no longer keeps the task
    "deferred_request",  # (session, request id): the request waits for catalogs or roots
    "gathered_round",  # call id: more asks of the same call may still arrive
    "parked_call",  # call id: the agent must retry with the answers
    "recorded_call",  # call id: the same for a call of an earlier broker
    "earlier_asks",  # session: its server may repeat asks that an earlier broker had sent
    "returning_session",  # session: it resumes, and waits for the supervisor's record
    "return_window",  # "grace" or "return": sessions may still resume
    "hook_run",  # hook run id: the run must begin or end
    "catalogs",  # `catalog_queue.NEXT_SLICE`: the next slice of catalogs; `notifications.GATHERED`
    "resource_updates",  # `resource_updates.NEXT_SLICE`: the next slice of changes of resources that wait
    "first_roots",  # owner, or `roots_turns.ALL`: one more session's first roots may be applied
    "changed_roots",  # the same for changed roots
    "unused_source",  # source: no session has used it for long enough
    "subscription_ends",  # `subscription_table.ENDS`: subscriptions that have ended may be told
    "drain",  # `drain.BOUND`: open calls must end
]

ORDER: Final[tuple[TimerKind, ...]] = get_args(TimerKind)

BrokerTimers = Timers[TimerKind]
