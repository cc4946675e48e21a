"""Page `docs/states.md`: the states of calls, sessions, instances and circuit breakers, as tables.

Owns the shape of the page and the tables of calls and sessions, whose collections a test looks up in the
code. The tables of instances and circuit breakers come from `lifecycle` and `breaker_policy`. Write the page
with `python -m carpool_supervisor.states_page > docs/states.md`.
"""

import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, get_args

from carpool_protocol.link.messages import Breaker, Policy
from carpool_supervisor.core.model.breaker_policy import (
    BREAKER_MEANING,
    RestartState,
    after_failure,
    after_operator,
    after_pause,
    after_success,
)
from carpool_supervisor.core.model.lifecycle import (
    ACTIVE,
    ENDING,
    MEANING,
    TABLE,
    InstanceState,
    LifecycleEvent,
)
from carpool_supervisor.core.pools.instances import STDIN_GRACE_S, TERM_GRACE_S
from carpool_supervisor.spawn.spawner_process import GRACE_S

_WHEN = {
    LifecycleEvent.SPAWNED: "the process was started",
    LifecycleEvent.GREETED: "the server answered the greeting",
    LifecycleEvent.DRAIN: "the instance is no longer wanted, and it has open calls",
    LifecycleEvent.STOP: "the instance is no longer wanted; no call is open, or the drain took too long",
    LifecycleEvent.CONDEMN: "the instance failed: no greeting in time, silence, a closed stdin or stdout",
    LifecycleEvent.GRACE_OVER: "the process did not end in the time it was given",
    LifecycleEvent.EXITED: "the process has ended and everything it wrote is read",
}


class LifeRow(NamedTuple):
    """One state of a call or a session."""

    state: str
    held_in: str
    """The collection or field that holds it: module, class and attribute."""
    moved_on_by: str
    to: str


BROKER_CALLS: Final = (
    LifeRow(
        "returning: its session resumed, the supervisor's record is not complete",
        "carpool_broker.core.model.session.Session.open_calls",
        "the record is complete (`Recovery._settle_session`), or `return_s` is over",
        "sent, if the record has the call; dispatched anew, if no server saw it; else ended as lost",
    ),
    LifeRow(
        "unresolved: the server that is meant has not sent its catalog",
        "carpool_broker.core.requests.deferred.DeferredRequests.by_session",
        "catalogs or roots change (`RequestDispatch.catalogs_changed`), or `list_wait_s` is over",
        "waiting, hooked, sent or ended",
    ),
    LifeRow(
        "waiting: in the queue of its session",
        "carpool_broker.core.model.session.Session.waiting",
        "the session may send again (`Admission.send_queued`), or `Admission.why_expired` ends it",
        "hooked, sent or ended",
    ),
    LifeRow(
        "hooked: hooks look at it before it is sent",
        "carpool_broker.core.hooks.hook_points.CallHooks._held",
        "the last hook allows it (`Admission.admit_again`), a hook denies it, or hooks run out of time",
        "sent, waiting (first in the queue) or ended",
    ),
    LifeRow(
        "sent: on the link or beyond",
        "carpool_broker.core.calls.call_table.CallTable.calls",
        "`CallAnswered` or `CallFailed`, a question to its agent, a cancel, or the backstop",
        "told, gathering or ended; once waiting or sent again, if its pool was replaced"
        " (`CallRecheck.send_again`)",
    ),
    LifeRow(
        "gathering: questions of one burst are gathered (stateless era, stage `sent`)",
        "carpool_broker.core.calls.input_required.ParkedCalls._rounds",
        "`GATHER_ASKS_S` is over (`ParkedCalls.require_gathered`), or the server withdraws all its questions",
        "parked or sent",
    ),
    LifeRow(
        "parked: its request is answered with `input_required`, and the retry has not come",
        "carpool_broker.core.calls.input_required.ParkedCalls._rounds",
        "the retry (`ParkedCalls.retry_received`), the call's end, or `park_s` is over",
        "sent or parked again; ended while parked; dropped",
    ),
    LifeRow(
        "ended while parked: its answer waits for the retry; it is in `CallTable.calls` no longer",
        "carpool_broker.core.calls.input_required.InputRequiredRound.outcome",
        "the retry, or `park_s` is over",
        "answered or dropped",
    ),
    LifeRow(
        "told: its server has answered, and hooks look at the answer",
        "carpool_broker.core.hooks.hook_points.CallHooks._held",
        "the last hook lets it pass, denies it, or runs out of time",
        "ended",
    ),
    LifeRow(
        "recorded: a call of an earlier broker, in the supervisor's record",
        "carpool_broker.core.recovery.supervisor_record.RecordedCalls._calls",
        "its session resumes with its request (`Recovery._adopt_call`), or does not",
        "sent; or released, and the supervisor forgets it",
    ),
    LifeRow(
        "recorded and parked: its retry may still come",
        "carpool_broker.core.recovery.supervisor_record.RecordedCalls._parked",
        "the retry (`Recovery.retry_received`), or `park_s` is over",
        "sent or released",
    ),
    LifeRow(
        "ended: its answer is on the way to the agent's socket",
        "carpool_broker.transport.socket_io.AgentIo._marks",
        "the operating system takes the last byte of the answer",
        "written",
    ),
    LifeRow(
        "written: the carrier has the answer, and the supervisor is not told",
        "carpool_broker.transport.connections.Connections.written",
        "the end of a burst or a period (`BrokerShell._report_written`)",
        "gone",
    ),
)
SUPERVISOR_CALLS: Final = (
    LifeRow(
        "recorded: known and not ended, in every state below until its end",
        "carpool_supervisor.core.calls.call_record.CallRecord._open",
        "`CallAnswered` or `CallFailed` is sent (`CallRecord.call_ended`), or nobody waits for it",
        "answer kept, answer dropped or gone",
    ),
    LifeRow(
        "queued: in the fair queue of its pool",
        "carpool_supervisor.core.model.pool.Pool.queue",
        "an instance can take it (`Dispatcher.place_waiting`), `wait_s` is over, or its pool ends",
        "in flight or ended",
    ),
    LifeRow(
        "queued for a lease: its session waits for an instance of its own as well",
        "carpool_supervisor.core.calls.leases.Leases._waiting",
        "an instance is free to be leased (`Leases.acquire`)",
        "in flight",
    ),
    LifeRow(
        "in flight: placed on one instance, under a wire id",
        "carpool_supervisor.core.model.pool.Instance.in_flight",
        "the answer, a timeout, a cancel, a question of the server, or the loss of the instance",
        "ended, abandoned, asked, paused; queued again if it was never written",
    ),
    LifeRow(
        "asked: in flight, and its agent is asked; its idle timeout is paused",
        "carpool_supervisor.core.calls.server_requests.ServerAsks._open",
        "the agent's answer (`ServerAsks.agent_answered`), the ask's timeout, or the end of the call "
        "(a parked one may give way: `ParkedCallWatch.due`)",
        "in flight; in the stateless era sent again or waiting for a slot",
    ),
    LifeRow(
        "paused between two rounds: the server wants a pause before the retry (stateless era)",
        "carpool_supervisor.core.calls.between_rounds.PendingRetries._pauses",
        "the pause is over (`PendingRetries.end_pauses`)",
        "in flight or waiting for a slot",
    ),
    LifeRow(
        "between two rounds, waiting for a slot: another call has the slot of its instance",
        "carpool_supervisor.core.calls.between_rounds.PendingRetries._line",
        "the slot is free (`PendingRetries.retry_waiting`)",
        "in flight",
    ),
    LifeRow(
        "abandoned: ended for its agent, and it may still run in the server (rule 5)",
        "carpool_supervisor.core.model.pool.Instance.abandoned",
        "the server answers late, or the instance ends",
        "gone",
    ),
    LifeRow(
        "answer kept: ended, and a later broker may ask for the answer",
        "carpool_supervisor.core.calls.call_record.CallRecord._ended",
        "the broker reports it as written (`CallRecord.forget_calls`), kept answers take too many bytes, "
        "or two brokers did not pass a long one on",
        "gone or answer dropped",
    ),
    LifeRow(
        "answer dropped: ended, and a later broker would be told that it is lost",
        "carpool_supervisor.core.calls.call_record.CallRecord._bare",
        "the broker or the session lets go of it",
        "gone",
    ),
    LifeRow(
        "task: the call has ended, and its instance is kept for the task that it became",
        "carpool_supervisor.core.model.pool.Instance.held_tasks",
        "the task ends, is cancelled or expires, or the instance ends",
        "gone",
    ),
)
SESSIONS: Final = (
    LifeRow(
        "connected: a connection was accepted; its first line has not come",
        "carpool_broker.transport.connections.Connections.agents",
        "the first line (`AttachDialogue.lines_received`)",
        "attaching, refused, or a multiplexed connection",
    ),
    LifeRow(
        "attaching: its workspace is scanned",
        "carpool_broker.config.watcher.ConfigWatcher._waiting",
        "the scan ends or takes too long",
        "asked for its environment, admitted or refused",
    ),
    LifeRow(
        "attaching, on a multiplexed connection: lines of the stream are held",
        "carpool_broker.transport.multiplexed.PendingStreams._streams",
        "the scan ends or takes too long (`MultiplexedConnection._scanned`)",
        "admitted, resuming or refused",
    ),
    LifeRow(
        "asked for its environment: the carrier has not sent the variables",
        "carpool_broker.transport.connections.AgentConnection.environment_requests",
        "the carrier's line, or the time for it is over (`AttachDialogue.admit_without_environment`)",
        "admitted or resuming",
    ),
    LifeRow(
        "resuming: lines that the carrier kept are still to come",
        "carpool_broker.transport.connections.AgentConnection.returning",
        "the last kept line (`AgentServer._lines_received`)",
        "returned",
    ),
    LifeRow(
        "resuming, on a multiplexed connection",
        "carpool_broker.transport.streams.SessionStream.returning",
        "the last kept message (`MultiplexedConnection._check_resumed`)",
        "returned",
    ),
    LifeRow(
        "admitted: open, not greeted; it may not use servers",
        "carpool_broker.core.broker.BrokerCore.sessions",
        "`initialize`, or the first request of the stateless era",
        "live",
    ),
    LifeRow(
        "live: greeted, or stateless",
        "carpool_broker.core.model.session.Session.greeted",
        "another workspace, the end of the connection, or the broker's death",
        "moving, detached, awaited or ended",
    ),
    LifeRow(
        "moving: live, and the scan or the environment of its next workspace is awaited",
        "carpool_broker.config.workspace_moves.WorkspaceMoves._moves",
        "both are known, or take too long",
        "live, with another source",
    ),
    LifeRow(
        "detached: its HTTP door died",
        "carpool_broker.transport.detached_sessions.DetachedSessions._sessions",
        "the next HTTP door claims it (`DetachedSessions.claim`), or `DETACHED_TIMEOUT_S` is over",
        "live or ended",
    ),
    LifeRow(
        "awaited: a session of an earlier broker that may resume",
        "carpool_broker.core.recovery.supervisor_record.RecordedCalls.awaited",
        "it resumes (`Recovery.session_resumed`), or the return window closes (`Recovery.close_window`)",
        "returned or given up",
    ),
    LifeRow(
        "returned: it resumed here; its requests are settled once the record is complete",
        "carpool_broker.core.recovery.recovery.Recovery._back",
        "as for a live session",
        "as for a live session",
    ),
    LifeRow(
        "given up: awaited, and it did not resume in time",
        "carpool_broker.core.recovery.supervisor_record.RecordedCalls.gone",
        "it comes after all, and nothing is known of its calls",
        "live, with its open calls lost",
    ),
    LifeRow(
        "between two brokers: its shim keeps the lines that are not settled",
        "carpool.shim.kept_lines.KeptLines.open",
        "the next broker accepts the connection (`connect_to_next_broker`)",
        "attaching",
    ),
    LifeRow(
        "ended: the supervisor remembers that it was given up",
        "carpool_supervisor.core.calls.call_record.CallRecord._gone",
        "`MAX_GONE` other sessions have ended since",
        "forgotten",
    ),
)


def page() -> str:
    """Return the whole page."""
    return "\n".join(
        [
            "# States",
            "",
            "Made from the code by `python -m carpool_supervisor.states_page`; do not edit.",
            "The terms stand in [vocabulary.md](vocabulary.md).",
            "",
            "## The life of a call in the broker",
            "",
            "`CallTable.calls` holds each open call from `CallTable.open` to `CallTable.close`."
            " `OpenCall.stage` says its stage. The table names what holds the call besides, or instead.",
            "",
            *_life(BROKER_CALLS),
            "",
            "## The life of a call in the supervisor",
            "",
            "`Dispatcher.calls` holds each open call from `Dispatcher.admit` to its end."
            " `CallRecord` holds the call from its arrival until the broker or the session lets go of it"
            " (rule 4).",
            "",
            *_life(SUPERVISOR_CALLS),
            "",
            "## The life of a session",
            "",
            "A session begins and ends in the broker. The supervisor knows only its calls, its leases and its"
            " subscriptions.",
            "",
            *_life(SESSIONS),
            "",
            *_instance(),
            *_breaker(),
            "",
        ]
    )


def _instance() -> list[str]:
    return [
        "## The life of an instance",
        "",
        "Made from `supervisor/carpool_supervisor/core/model/lifecycle.py`.",
        "",
        "### States of an instance",
        "",
        "| state | meaning | counts for the size of its pool | was asked to end |",
        "|---|---|---|---|",
        *(f"| {s} | {MEANING[s]} | {_mark(s in ACTIVE)} | {_mark(s in ENDING)} |" for s in InstanceState),
        "",
        "### Events of an instance",
        "",
        "| event | when |",
        "|---|---|",
        *(f"| {event} | {_WHEN[event]} |" for event in LifecycleEvent),
        "",
        f"A stop closes stdin. The process group gets SIGTERM {STDIN_GRACE_S:g} s later and SIGKILL"
        f" {TERM_GRACE_S:g} s after that. A failure begins with SIGTERM. Processes that a server leaves"
        f" behind get SIGTERM at once and SIGKILL {GRACE_S:g} s later. These times cannot be set.",
        "",
        "### Transitions of an instance",
        "",
        "Where a field is empty, the event cannot occur in that state. If it does, carpool has a bug.",
        "",
        f"| from | {' | '.join(LifecycleEvent)} |",
        f"|---|{'---|' * len(LifecycleEvent)}",
        *(f"| {s} | {' | '.join(TABLE[s].get(e, '') for e in LifecycleEvent)} |" for s in InstanceState),
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {InstanceState.SPAWNING}",
        *(f"    {s} --> {after}: {e}" for s in InstanceState for e, after in TABLE[s].items()),
        f"    {InstanceState.GONE} --> [*]",
        "```",
        "",
    ]


def _breaker() -> list[str]:
    return [
        "## The circuit breaker of a pool",
        "",
        "A failure is a transport failure: the process ended by itself, could not be started, did not greet"
        " in time or fell silent. A call that times out is no failure, however many do so in a row."
        " Made from `core/model/breaker_policy.py`.",
        "",
        "| breaker | meaning | a failure | `restart.give_up_after` in a row | after `restart.open_s`"
        " | a success | `carpool start` |",
        "|---|---|---|---|---|---|---|",
        *(_breaker_row(breaker) for breaker in get_args(Breaker)),
    ]


def _life(rows: Sequence[LifeRow]) -> list[str]:
    head = ["| state | held in | moved on by | to |", "|---|---|---|---|"]
    return head + [f"| {row.state} | `{row.held_in}` | {row.moved_on_by} | {row.to} |" for row in rows]


def _breaker_row(breaker: Breaker) -> str:
    policy, first = Policy(), RestartState(0, breaker)
    last = RestartState(policy.give_up_after - 1, breaker)
    moves = (
        after_failure(policy, first, lived_s=0.0, jitter=0.0)[0],
        after_failure(policy, last, lived_s=0.0, jitter=0.0)[0],
        after_pause(first),
        after_success(policy, first) if breaker == "half_open" else first,
        after_operator(first),
    )
    told = (each.breaker if each.breaker != breaker else "" for each in moves)
    return f"| {breaker} | {BREAKER_MEANING[breaker]} | {' | '.join(told)} |"


def _mark(holds: bool) -> str:
    return "yes" if holds else ""


if __name__ == "__main__":
    sys.stdout.write(page())
