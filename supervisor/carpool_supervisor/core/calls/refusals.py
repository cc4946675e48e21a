"""The reasons for refused calls and calls that ended without an answer, for people and agents.

Owns the details that follow the sentences of `faults/kinds.py`. Pure functions of a pool.

Knows nothing of: recipients and times (`dispatcher`, `instances`).
"""

import re
from typing import Final, Literal

from carpool_protocol.ids import CallId
from carpool_protocol.link.messages import CallFailed
from carpool_supervisor.core.model.breaker_policy import NODE_OPEN_S
from carpool_supervisor.core.model.loss_causes import LOSS_CAUSES, LossCause
from carpool_supervisor.core.model.pool import Instance, Pool, PoolCall, away_limit_s

POOL_REPLACED = ("draining", "Its configuration has just changed.", 0.5)


LAST_WORDS_CHARS: Final = 400

PROBE_S: Final = 5.0
"""The time until a repeated call may help, while one start shows if the server is healthy again."""


def refusal_now(pool: Pool | None, now: float) -> tuple[str, str, float | None] | None:
    """The reason why no call may enter this pool now: (fault, detail, retry_after_s), or None."""
    if pool is None or not pool.wanted:
        return POOL_REPLACED
    if pool.stopped:
        return ("offline" if pool.offline else "stopped", "", None)
    if not pool.serving:
        match pool.restart.breaker:
            case "open":
                return start_refusal(pool, now)
            case "half_open" if pool.queue:
                return (start_refusal(pool, now)[0], last_error(pool), PROBE_S)
            case _:
                pass
    return None


def refused_call(call: CallId, pool: Pool | None, now: float) -> CallFailed | None:
    """The refusal of a call that may not enter this pool now; None if it may."""
    refusal = refusal_now(pool, now)
    if refusal is None:
        return None
    slug, text, retry_after_s = refusal
    return CallFailed(call, slug, "no", text, retry_after_s)


def start_refusal(pool: Pool, now: float) -> tuple[str, str, float | None]:
    """The reason why nothing starts now: (fault, detail, retry_after_s). A model is not told to wait for a
    program that is not installed.
    """
    if pool.is_remote and pool.restart.hopeless:
        return ("not_offered", last_error(pool), None)
    if pool.is_remote:
        return ("node_away", last_error(pool), pool.retry_after_s(now))
    if pool.restart.hopeless:
        return ("cannot_start", last_error(pool), None)
    if not pool.policy.open_s:
        return ("given_up", last_error(pool), None)
    return ("breaker_open", last_error(pool), pool.retry_after_s(now))


def last_error(pool: Pool) -> str:
    """The last error as a sentence; empty if there is none."""
    return f"Its last error: {public_error(pool)}." if pool.last_error else ""


def greeting_silence(pool: Pool, now: float) -> str:
    """For how long the server has not answered its greeting, as a clause; empty: that is not long."""
    silent = [each for each in pool.instances.values() if each.is_silent_greeting]
    if pool.serving or not silent:
        return ""
    return instance_silence(min(silent, key=lambda each: each.spawned_at), now)


def instance_silence(instance: Instance, now: float) -> str:
    """The same clause of one instance; empty: it has written something, or was greeted lately."""
    if not instance.is_silent_greeting:
        return ""
    if instance.list_request:
        return f"has not answered {instance.list_request} for {now - instance.list_requested_at:.0f} s"
    is_asked_both = "stateless" in instance.refusals
    asked = "initialize" if instance.era == "handshake" or is_asked_both else "server/discover"
    return f"has answered nothing to {asked} for {now - instance.spawned_at:.0f} s"


def public_error(pool: Pool) -> str:
    """The last error, with the server's own words if it never served (rule 7) and they say something else."""
    told = pool.telling_stderr_line and pool.last_error not in pool.telling_stderr_line
    return f"{pool.last_error}: {pool.telling_stderr_line}" if told else pool.last_error


def left_out_text(pool: Pool) -> str:
    """The sentence on offers of its server that are over a limit and left out."""
    return "" if pool.catalog is None else pool.catalog.left_out


_NO_CARPOOL: Final = (
    "; install carpool and 'mcp>=2.3,<3' for that Python, or let `interpreter` name one that has them"
)
"""Advice for a server that is a Python module, because Python's own message gives none."""


_NOT_TELLING: Final = re.compile(
    r"Node\.js v|.*A complete log of this run|.*--help' for more information"
    r"|npm (?:error|ERR!)(?: \w+)?$|.*Note that you can also install from a"
    r"|.*tarball, folder, http url, or git url"
)
"""Lines with which node, npm and docker end after they have told the cause."""


def telling_stderr_line(stderr: str) -> str:
    """The line of a failed program's stderr that explains most: the last line that is not indented.

    Python, node and most other programs end with it; lines of a stack trace and advice do not count.
    """
    told = [
        line.strip()
        for line in stderr.splitlines()
        if (line[:1].isalnum() or line[:1] in tuple("/.<[('\"`*!"))
        and " " in line.strip()
        and not _NOT_TELLING.match(line)
    ]
    words = told[-1][:LAST_WORDS_CHARS].rstrip(".") if told else ""
    return words + (_NO_CARPOOL if "No module named 'carpool'" in words else "")


SELF_BLOCKED = (
    "unavailable",
    "Another call of this session waits for an answer of its agent, and so do the calls on all other"
    " instances. Answer that request first.",
    1.0,
)
"""(fault, detail, retry_after_s) for an agent that would wait for itself (rule 14)."""


def cannot_start_text(pool: Pool) -> str:
    """For operators: why nothing starts now, and until when."""
    failures = "a failure" if pool.restart.failures == 1 else f"{pool.restart.failures} failures in a row"
    open_s = min(pool.policy.open_s, NODE_OPEN_S) if pool.is_remote else pool.policy.open_s
    left = f"not started for {open_s:g} s" if pool.policy.open_s else "not restarted by itself"
    again = " at once" if pool.policy.open_s else ""
    if pool.is_remote:
        return f"{left} after {failures}. {last_error(pool)} See `carpool cluster status`."
    return (
        f"{left} after {failures}. {last_error(pool)}"
        f" See `carpool logs {pool.server}`; `carpool start {pool.server}` tries again{again}."
    )


def wait_expired_text(pool: Pool, now: float) -> str:
    """The limit that was reached, and why no instance was free."""
    text = f"The limit is {pool.policy.wait_s:g} s."
    if pool.paused:
        return text
    if pool.is_remote and pool.last_error:
        return f"{text} {last_error(pool)}"
    if pool.shortage:
        return f"{text} {pool.shortage}"
    if _lacks_room(pool, now):
        return (
            f"{text} It may have up to {pool.max_instances} instances and has {pool.active_count()}: the"
            " limit of all servers together (max_instances), or starts of others, left no room for one more."
        )
    if silence := greeting_silence(pool, now):
        return f"{text} It {silence}."
    if not pool.serving:
        return f"{text} {last_error(pool)}".rstrip()
    if pool.mode == "session" and len(pool.serving) >= pool.max_instances:
        return f"{text} Each agent has an instance of its own, and all {pool.max_instances} are taken."
    return text


def _lacks_room(pool: Pool, now: float) -> bool:
    """True if the pool should have one more instance and no reason of its own prevents it."""
    active = pool.active_count()
    if (pool.stop_first and active < len(pool.instances)) or (pool.start_after and not pool.instances):
        return False  # it waits for the end of older instances
    return active < min(pool.target, pool.max_instances) and pool.not_before <= now


def state_lost_text(cause: LossCause) -> str:
    """Why the state that the session had there is lost."""
    return f"It ended because {LOSS_CAUSES[cause]}."


TimeoutFault = Literal["timed_out", "ran_too_long", "agent_away"]
"""The limits at which a call in flight ends."""


def timeout_text(slug: TimeoutFault, pool: Pool, pool_call: PoolCall) -> str:
    """The limit that was reached."""
    limits_s = {
        "timed_out": pool_call.timeout_s,
        "ran_too_long": pool.policy.max_total_s,
        "agent_away": away_limit_s(pool.policy),
    }
    return f"The limit is {limits_s[slug]:g} s."


def ended_text(pool: Pool, *, closing: bool, reason: str = "") -> str:
    """Why carpool ended the instance while a call was open, and the time that the call had to finish.
    `reason`: see `Instance.end_reason`.
    """
    if closing:
        return "It was ended by carpool, because carpool itself was stopped."
    why = reason or "it was no longer needed"
    limit = f"{pool.policy.drain_s:g} s (drain_s)"
    return f"It was ended by carpool, because {why}; it was given {limit} to finish its open calls."


def loss_fault(pool: Pool) -> str:
    """The fault of calls that were open on an instance which has ended by itself."""
    return "node_lost" if pool.is_remote else "instance_died"


def died_text(pool: Pool, how: str, stderr: str) -> str:
    """How the instance died (its stderr is not for everybody, rule 7)."""
    if stderr:
        return f"It {how}. Its last words:\n{stderr}"
    return f"It {how}; `carpool logs {pool.server}` may tell why."
