"""The sentence that says whether all is well, for the broker's `reason`.

Owns the words. Refuses to know: when all is well (`control.verdict`), where the sentence is shown.
"""

from collections.abc import Mapping
from typing import Any, Final

from carpool.control.verdict import broken_projects, is_cluster_away, is_door_closed
from carpool.terminal import display

Facts = Mapping[str, Any]

MANY_DENIALS: Final = 3
"""A hook that has denied this many calls in a row is named: it may deny everything by a fault of its own."""


def _unwell_servers(facts: Facts) -> str:
    servers: Facts = facts.get("servers") or {}
    names = [
        f"{name} (it has not greeted yet)" if server["state"] == "starting" else name
        for name, server in servers.items()
        if not server["well"]
    ]
    return display.printable(", ".join(names))


def health_line(facts: Facts) -> str:
    """Return the sentence for the broker's `reason`."""
    match facts.get("reason"):
        case "ok":
            return _beside_the_broker(facts) or "all is well"
        case "servers_failing":
            return f"serving; not well: {_unwell_servers(facts)}"
        case "hooks_failing":
            hooks = [hook for hook in facts.get("hooks") or () if hook.get("problem")]
            return f"serving; {'; '.join(map(hook_fault, hooks))}"
        case "calls_failing":
            failing = _failing_calls(facts["counters"]["recent"])
            return f"serving; most calls fail: {failing}; see `carpool stats`"
        case "descriptors_used_up":
            return (
                f"serving; no new agent is let in: all {facts['descriptors']['limit']} descriptors of the "
                "broker are in use but those for operators; see `carpool doctor`"
            )
        case "no_room_to_start":
            short = {name: each["shortage"] for name, each in facts["servers"].items() if each["shortage"]}
            names, why = display.printable(", ".join(short)), next(iter(short.values()), "")
            return f"serving; calls wait for a process of {names}. {why}"
        case "config_broken":
            problem = (facts.get("config") or {}).get("problem", "")
            text = display.printable(problem, lines=True)
            return f"serving with the last good configuration; the file is broken:\n{text}"
        case "supervisor_silent" if silent := facts.get("silent"):
            return (
                f"the supervisor has not answered for {display.duration(silent['for_s'])}, so the servers "
                "are shown as last known; see `carpool logs --daemon`, and if it stays so run "
                "`carpool restart --all`"
            )
        case "supervisor_away" if facts.get("supervisors"):
            return f"serving in part: {'; '.join(map(_away, facts.get('supervisors_away') or ()))}"
        case "supervisor_away" | "supervisor_silent":
            return "no server can be reached: the supervisor is away and is started again by itself"
        case reason:
            return f"not well: {display.printable(str(reason or '?'))}"


def _beside_the_broker(facts: Facts) -> str:
    """Return the sentence for what is wrong although the broker's own reason is `ok`; empty: nothing is."""
    if is_door_closed(facts):
        return "serving agents on the socket; the HTTP door is not open"
    if is_cluster_away(facts):
        return "serving; this node does not reach its cluster"
    if broken := broken_projects(facts):
        return f"serving; a project's file is broken: {display.one_line(broken[0], 200)}"
    return ""


def _away(supervisor: Facts) -> str:
    """Return the clause about one supervisor that is away while another one serves."""
    servers = ", ".join(supervisor["servers"])
    waiting = f", and until then calls to {servers} wait" if servers else ", and it has no server"
    return display.printable(
        f"the supervisor {supervisor['id']} is away and is started again by itself{waiting}"
    )


def hook_fault(hook: Facts) -> str:
    """Return why a hook fails, and what that does to the calls that it must check."""
    effect = "refused" if hook.get("on_failure") == "deny" else "let through"
    return display.one_line(f"hook {hook['name']} fails, its calls are {effect}: {hook['problem']}", 400)


def _failing_calls(recent: Facts) -> str:
    """Return the servers whose calls have mostly failed lately, with their numbers."""
    failing = [
        f"{display.printable(name)} ({each['failed']} of {each['ended']})"
        for name, each in recent["servers"].items()
        if each["mostly_failed"]
    ]
    return f"{', '.join(failing)} in the last {display.duration(recent['window_s'])}"
