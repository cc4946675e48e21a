"""Which sharing mode a server has, and why: `concurrent`, `serial` or `session` (docs/sharing.md).

Owns the judgement as one pure function, the tool names that speak of state, and the words `carpool why`
prints. In this order: what the config says stands. Else the shipped list, else tool names, else
`concurrent`, shown as unverified; on top of these three, evidence can only make it stricter. A verdict
holds for new placements only: calls that run end where they run. In mode `session` the next call of every
agent is a new placement, on an instance that has nothing of the shared one's state.

Invariants: more evidence never gives a looser mode; only the config does.
Knows nothing of: disks (`verdicts`), where calls run, how a probe is made.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.link.messages import Mode, Policy
from carpool_protocol.link.messages import Sharing as Configured
from carpool_supervisor.core.model.well_known import WellKnownServer, program_of

SharingSource = Literal["config", "list", "tool names", "evidence", "assumed"]
EvidenceKind = Literal["asked_ambiguously", "probe_diverged", "probe_agreed", "asks"]

STRICTNESS: Final[dict[Mode, int]] = {"concurrent": 0, "serial": 1, "session": 2}

MOST_INSTANCES: Final[dict[Mode, int]] = {"concurrent": 1, "serial": 4, "session": 32}
"""`pool.max` by mode, where the configuration does not say it."""

MODE_OF_EVIDENCE: Final[dict[EvidenceKind, Mode]] = {
    "asked_ambiguously": "serial",
    "probe_diverged": "session",
    "probe_agreed": "concurrent",
    "asks": "concurrent",
}

_SEEN: Final[dict[EvidenceKind, str]] = {
    "asked_ambiguously": "It asked while several agents had calls open, without a sign whose question it was",
    "probe_diverged": "In a probe two sessions saw each other's state",
    "probe_agreed": "In a probe two sessions did not see each other's state",
    "asks": "It asks agents (sampling or elicitation)",
}

MODES: Final[dict[Mode, str]] = {
    "concurrent": "agents share an instance, many calls at once",
    "serial": "agents share an instance, one call that can ask at a time",
    "session": "each agent has an instance of its own, ended when the agent leaves",
}

CHANGES: Final = (
    "A change holds for new placements: calls that run end where they run.",
    "If it becomes session, each agent's next call begins on an instance of its own, without the state of "
    "the shared one.",
)


class Evidence(Struct, frozen=True, kw_only=True):
    """Something that was seen, kept on disk. Wall times as `wallclock` writes them."""

    kind: EvidenceKind
    first: str
    last: str
    times: int = 1
    detail: str = ""
    """For people: methods, tools and counts; never argument values."""


class SharingVerdict(Struct, frozen=True, kw_only=True):
    """The mode and what speaks for it."""

    mode: Mode
    verified: bool
    """False: nobody has looked; it is the assumption that costs least."""
    source: SharingSource
    reasons: tuple[str, ...]
    since: str = ""
    """When the deciding evidence was first seen; empty for the other sources."""


class StatefulNameHint(Struct, frozen=True):
    """Tool names that speak of state kept for one user."""

    pattern: str
    """For a whole name in lower case with `_` for `-` and between words of camelCase."""
    reason: str


HINTS: Final = (
    # A hit costs a process per agent, a miss lets agents see each other's state. So: names of what exists
    # once per process and is moved about by calls; not `page_` or `session_` alone, which wikis and
    # analytics use too.
    StatefulNameHint(r"browser_.+", "drives a browser, which shows one page at a time"),
    StatefulNameHint(
        r"(puppeteer|playwright|selenium|webdriver|stagehand|browserbase)_.+", "drives a browser"
    ),
    StatefulNameHint(
        r"page_(navigate|goto|click|type|fill|press|hover|scroll|screenshot|evaluate|reload|wait).*",
        "drives one open page",
    ),
    StatefulNameHint(
        r"(new|select|close|switch|navigate)_(page|tab)", "keeps pages open and one of them selected"
    ),
    StatefulNameHint(
        r"(navigate|navigate_(to|back|forward)|take_snapshot|handle_dialog)", "moves one current page about"
    ),
    StatefulNameHint(r"session_(start|open|create|new|begin|end|close|resume|switch)", "keeps sessions open"),
    StatefulNameHint(r"(start|open|begin|end|close|resume|switch)_session", "keeps sessions open"),
    StatefulNameHint(r"(\w+_)?set_(working_dir|working_directory|workdir|cwd)", "keeps a working directory"),
    StatefulNameHint(
        r"(activate|switch|set_active|set_current|open|close)_(project|workspace|solution|presentation)",
        "keeps one project or document open",
    ),
    StatefulNameHint(
        r"(switch|select|use|set_active)_(database|connection|database_connection|context|device)",
        "keeps one connection or device selected",
    ),
    StatefulNameHint(
        r"(set_breakpoint|step_(over|into|out)|continue_execution|debug_(start|step|continue).*)",
        "holds a program in a debugger",
    ),
    StatefulNameHint(
        r"(interact_with_process|read_process_output|send_keys|write_to_terminal|read_terminal.*"
        r"|terminal_(open|create|write|send|read).*)",
        "keeps terminals open",
    ),
    StatefulNameHint(
        r"((execute|run|insert)_cell|restart_kernel|(python_)?repl(_.+)?)",
        "keeps an interpreter with variables",
    ),
    StatefulNameHint(r"sequential_?thinking(_tools)?", "keeps a line of thought"),
)

_hints = [(re.compile(hint.pattern).fullmatch, hint.reason) for hint in HINTS]
_any_hint = re.compile("|".join(f"(?:{hint.pattern})" for hint in HINTS)).fullmatch
_camel = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_other = re.compile(r"[^a-z0-9]+")


def most_instances(policy: Policy, mode: Mode, entry: WellKnownServer | None) -> int:
    """How many instances a pool of this policy may have in this mode.

    What the shipped list says of the number stands in every shared mode, also one from the config: it is
    about processes, not about whose calls they get. Only a number in the config overrides it. In `session` it
    would leave all agents but the first without an instance.
    """
    usual = MOST_INSTANCES[mode]
    if entry is not None and entry.most and mode != "session":
        usual = min(usual, entry.most)
    return max(policy.max_instances or usual, policy.min_instances)


def state_in_names(tools: Iterable[str]) -> tuple[str, str] | None:
    """The first tool (in the given order) whose name speaks of state, and what of."""
    for tool in tools:
        plain = _other.sub("_", _camel.sub("_", tool).lower())
        if _any_hint(plain):
            return tool, next(reason for matches, reason in _hints if matches(plain))
    return None


def decide_sharing(
    configured: Configured, entry: WellKnownServer | None, tools: Iterable[str], evidence: Sequence[Evidence]
) -> SharingVerdict:
    """The mode for new placements.

    `entry`: what the shipped list says about this program. `tools`: the server's own names; empty while the
    catalog is unknown, so decide again when it is read.
    """
    if configured != "auto":
        return SharingVerdict(
            mode=configured, verified=True, source="config", reasons=("The config says so.",)
        )
    base = _without_evidence(entry, tools)
    # That it asks speaks neither for nor against sharing: `explain_sharing` tells it, no verdict rests on it.
    weight = max((each for each in evidence if each.kind != "asks"), key=_weight, default=None)
    if weight is None:
        return base
    mode = MODE_OF_EVIDENCE[weight.kind]
    reason = evidence_text(weight)
    if STRICTNESS[mode] > STRICTNESS[base.mode]:
        # "Nothing is known" is no reason where something is.
        besides = () if base.source == "assumed" else base.reasons
        return SharingVerdict(
            mode=mode, verified=True, source="evidence", reasons=(reason, *besides), since=weight.first
        )
    if weight.kind == "probe_agreed" and base.source == "assumed":
        return SharingVerdict(
            mode=mode, verified=True, source="evidence", reasons=(reason,), since=weight.first
        )
    return base


def _weight(evidence: Evidence) -> int:
    return STRICTNESS[MODE_OF_EVIDENCE[evidence.kind]]


def _without_evidence(entry: WellKnownServer | None, tools: Iterable[str]) -> SharingVerdict:
    if entry is not None:
        reasons = (entry.why, *([entry.note] if entry.note else []), f"Source: {entry.source}")
        return SharingVerdict(mode=entry.mode, verified=True, source="list", reasons=reasons)
    speaks = state_in_names(tools)
    if speaks is not None:
        tool, reason = speaks
        text = f"Its tool {tool} speaks of state: by its name it {reason}."
        return SharingVerdict(mode="session", verified=False, source="tool names", reasons=(text,))
    text = "Nothing is known about this server: nothing has spoken against sharing so far."
    return SharingVerdict(mode="concurrent", verified=False, source="assumed", reasons=(text,))


def evidence_text(evidence: Evidence) -> str:
    """One piece of evidence for people."""
    when = (
        evidence.first
        if evidence.times == 1
        else f"{evidence.times} times, {evidence.first} to {evidence.last}"
    )
    detail = f" ({evidence.detail})" if evidence.detail else ""
    return f"{_SEEN[evidence.kind]}{detail}: {when}."


def may_take_call(mode: Mode, *, can_ask: bool, asking_in_flight: int) -> bool:
    """Whether an instance in this mode may be given one more call. `asking_in_flight`: its calls that can
    ask, in rule 5's sense, so those that were cancelled and are not answered too (a tainted `serial`
    instance takes none).
    """
    return mode != "serial" or not can_ask or asking_in_flight == 0


def explain_sharing(
    server: str,
    verdict: SharingVerdict,
    *,
    configured: Configured,
    entry: WellKnownServer | None,
    evidence: Sequence[Evidence],
) -> list[str]:
    """What `carpool why SERVER` prints: mode, since when, evidence, how to change it."""
    state = "verified" if verdict.verified else "unverified"
    lines = [f"{server} is shared as {verdict.mode} ({state}): {MODES[verdict.mode]}."]
    if verdict.since:
        lines.append(f"Since {verdict.since}.")
    lines.append(f"Decided by: {_SOURCES[verdict.source]}")
    lines += [f"  {reason}" for reason in verdict.reasons]
    more = [text for each in evidence if (text := evidence_text(each)) not in verdict.reasons]
    if more:
        lines.append("Seen besides:" if verdict.source == "evidence" else "Evidence so far:")
        lines += [f"  {text}" for text in more]
    if configured != "auto" and entry is not None and entry.mode != configured:
        lines.append(f"The shipped list would make it {entry.mode}: {entry.why}")
    if configured not in {"auto", "session"} and entry is not None and entry.most:
        lines.append(f"The shipped list says besides: {entry.note}")
    if configured == "auto":
        others = " or ".join(f'"{mode}"' for mode in STRICTNESS if mode != verdict.mode)
        lines.append(f'To change it: set "sharing" to {others} for {server} in the config; that always wins.')
        if not verdict.verified:
            lines.append(f"To find out: `carpool check --probe {server}`.")
    else:
        lines.append(f'To let carpool decide: set "sharing" to "auto" for {server} in the config.')
    lines += CHANGES
    return lines


_SOURCES: Final[dict[SharingSource, str]] = {
    "config": "your config.",
    "list": "carpool's list of well-known servers.",
    "tool names": "the names of its tools.",
    "evidence": "what was seen of it.",
    "assumed": "nobody yet.",
}


def launch_identity(server: str, argv: Sequence[str]) -> str:
    """What verdicts on disk are keyed by: the server's name and its program, no argument of it.

    The name is part of it because programs such as mcp-remote run another server for other arguments, and
    those may hold secrets.
    """
    program = program_of(argv)
    if program is None:
        return f"{server} unknown:{argv[0].rpartition('/')[2] if argv else ''}"
    return f"{server} {program}"
