"""What the broker's core waits for with a deadline.

Owns the kinds of its timers, what the keys of each are, and the order in which what is due at one time is
decided. Knows nothing of: durations, what follows when one is due (`broker`).
"""

from typing import Final, Literal, get_args

from carpool_protocol.machine.timers import Timers

TimerKind = Literal[
    "queued_call",  # a call, by number: in its session's line
    "sent_call",  # a call, by number: at the supervisor, which answers earlier
    "task",  # a task, by our id: its server keeps it no longer
    "deferred_request",  # (session, request id): waits for catalogs or roots
    "gathered_round",  # a call, by number: what else it wants may come still
    "parked_call",  # a call, by number: its agent is to bring what it wants
    "recorded_call",  # the same, of a call of an earlier broker
    "earlier_asks",  # a session: questions of an earlier broker may be said again
    "returning_session",  # a session: waits for the supervisor's record
    "return_window",  # "grace" or "return": sessions may come back
    "hook_run",  # a run of a hook, by number: is to begin, or to end
    "catalog_slice",  # `updates.NEXT`: a long catalog is being learned
    "drain",  # `drain.BOUND`: calls that are under way are to end
]

ORDER: Final[tuple[TimerKind, ...]] = get_args(TimerKind)

BrokerTimers = Timers[TimerKind]
