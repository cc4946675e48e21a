"""The sharing mode of a server and its reasons: `concurrent`, `serial` or `session` (docs/sharing.md).

Owns the decision as one pure function, the tool names that suggest state, and the text of `carpool why`. In
this order: the configuration, else the well-known list, else tool names, else `concurrent`, shown as
unverified. For the last three, evidence can make the mode stricter, never looser. A verdict holds for new
placements only: calls that run end where they run. When the mode becomes `session`, the next call of each
agent is a new placement, on an instance without the state of the shared one.

Invariants: more evidence never gives a looser mode; only the configuration does. Knows nothing of: disks
(`sharing_evidence`), placement, how a probe is made.
"""

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.carrier.remote import REMOTE_URL, host_of
from carpool_protocol.link.messages import Mode, Policy, PoolSpec
from carpool_protocol.link.messages import Sharing as Configured
from carpool_supervisor.core.model.well_known import WellKnownServer, program_of

SharingSource = Literal["config", "list", "tool names", "evidence", "assumed"]
EvidenceKind = Literal["asked_ambiguously", "probe_diverged", "probe_agreed", "asks"]

STRICTNESS: Final[dict[Mode, int]] = {"concurrent": 0, "serial": 1, "session": 2}

MOST_INSTANCES: Final[dict[Mode, int]] = {"concurrent": 1, "serial": 4, "session": 32}
"""The default of `pool.max`, by mode."""

MODE_OF_EVIDENCE: Final[dict[EvidenceKind, Mode]] = {
    "asked_ambiguously": "serial",
    "probe_diverged": "session",
    "probe_agreed": "concurrent",
    "asks": "concurrent",
}

_SEEN: Final[dict[EvidenceKind, str]] = {
    "asked_ambiguously": "It asked while several agents had calls open, and did not say for which call",
    "probe_diverged": "In a probe two sessions saw each other's state",
    "probe_agreed": "In a probe two sessions did not see each other's state",
    "asks": "It asks agents (sampling or elicitation)",
}

MODES: Final[dict[Mode, str]] = {
    "concurrent": "agents share an instance, many calls at once",
    "serial": "agents share an instance, one call that can ask at a time",
    "session": "each agent has an instance of its own, ended when the agent leaves",
}

CHANGE: Final = "A change holds for new placements: calls that run end where they run."
STATE_AFTER_CHANGE: Final[dict[bool, str]] = {
    False: "If it becomes session, each agent's next call begins on an instance of its own, without the "
    "state of the shared one.",
    True: "If it becomes shared, each agent's next call runs on an instance that others use too, without the "
    "state of its own one.",
}
"""By "each agent has an instance of its own": what becomes of state when that changes."""


class Evidence(Struct, frozen=True, kw_only=True):
    """An observation that counts for the sharing mode, kept on disk. Wall times as `wallclock` writes
    them.
    """

    kind: EvidenceKind
    first: str
    last: str
    times: int = 1
    detail: str = ""
    """For people: methods, tools and counts; never argument values."""


class SharingVerdict(Struct, frozen=True, kw_only=True):
    """The sharing mode and the reasons for it."""

    mode: Mode
    verified: bool
    """False: an assumption, chosen because it costs least."""
    source: SharingSource
    reasons: tuple[str, ...]
    since: str = ""
    """The first time of the deciding evidence; empty for other sources."""


class StatefulNameHint(Struct, frozen=True):
    """A pattern of tool names that suggest state kept for one user."""

    pattern: str
    """For a whole name in lower case, with `_` for `-` and between the words of camelCase."""
    reason: str


HINTS: Final = (
    # A match costs a process for each agent, a miss lets agents see each other's state. So the patterns name
    # things that exist once per process and that calls change; not `page_` or `session_` alone, which wikis
    # and analytics use too.
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
    """The most instances that a pool of this policy may have in this mode.

    The number of the well-known list holds in every shared mode, even if the configuration sets the mode,
    because it concerns processes and not sessions. Only a number in the configuration overrides it. In
    `session` it would leave all agents but the first without an instance.
    """
    usual = MOST_INSTANCES[mode]
    if entry is not None and entry.most and mode != "session":
        usual = min(usual, entry.most)
    return max(policy.max_instances or usual, policy.min_instances)


def state_in_names(tools: Iterable[str]) -> tuple[str, str] | None:
    """The first tool (in the given order) whose name suggests state, and the reason."""
    for tool in tools:
        plain = _other.sub("_", _camel.sub("_", tool).lower())
        if _any_hint(plain):
            return tool, next(reason for matches, reason in _hints if matches(plain))
    return None


def decide_sharing(
    configured: Configured, entry: WellKnownServer | None, tools: Iterable[str], evidence: Sequence[Evidence]
) -> SharingVerdict:
    """The mode of new placements.

    `entry`: the program's entry in the well-known list. `tools`: the server's own names; empty while the
    catalog is unknown, so decide again once it is read.
    """
    if configured != "auto":
        return SharingVerdict(
            mode=configured, verified=True, source="config", reasons=("The config says so.",)
        )
    base = _without_evidence(entry, tools)
    # Asks speak neither for nor against sharing: `explain_sharing` shows them, no verdict uses them.
    weight = max((each for each in evidence if each.kind != "asks"), key=_weight, default=None)
    if weight is None:
        return base
    mode = MODE_OF_EVIDENCE[weight.kind]
    reason = evidence_text(weight)
    if STRICTNESS[mode] > STRICTNESS[base.mode]:
        # "Nothing is known" is no reason beside evidence.
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
        text = f"Its tool {tool} suggests state: by its name it {reason}."
        return SharingVerdict(mode="session", verified=False, source="tool names", reasons=(text,))
    text = "Carpool's list does not have this server, and nothing that was seen of it forbids sharing."
    return SharingVerdict(mode="concurrent", verified=False, source="assumed", reasons=(text,))


def evidence_text(evidence: Evidence) -> str:
    """One piece of evidence as a sentence for people."""
    when = (
        evidence.first
        if evidence.times == 1
        else f"{evidence.times} times, {evidence.first} to {evidence.last}"
    )
    detail = f" ({evidence.detail})" if evidence.detail else ""
    return f"{_SEEN[evidence.kind]}{detail}: {when}."


def may_take_call(mode: Mode, *, can_ask: bool, asking_in_flight: int) -> bool:
    """True if an instance in this mode may take one more call. `asking_in_flight`: its calls in flight that
    can ask, in rule 5's sense, so cancelled and unanswered ones too (a tainted `serial` instance takes none).
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
    """The output of `carpool why SERVER`: mode, since when, evidence, how to change it."""
    state = "verified" if verdict.verified else "unverified"
    lines = [f"{server} is shared as {verdict.mode} ({state}): {MODES[verdict.mode]}."]
    if verdict.since:
        lines.append(f"Since {verdict.since}.")
    lines.append(f"Decided by: {_SOURCES[verdict.source]}")
    lines += [f"  {reason}" for reason in verdict.reasons]
    more = [text for each in evidence if (text := evidence_text(each)) not in verdict.reasons]
    if more:
        lines.append("Also seen:" if verdict.source == "evidence" else "Evidence so far:")
        lines += [f"  {text}" for text in more]
    if configured != "auto" and entry is not None and entry.mode != configured:
        lines.append(f"The shipped list would make it {entry.mode}: {entry.why}")
    if configured not in {"auto", "session"} and entry is not None and entry.most:
        lines.append(f"The shipped list adds: {entry.note}")
    if configured == "auto":
        others = " or ".join(f'"{mode}"' for mode in STRICTNESS if mode != verdict.mode)
        lines.append(f'To change it: set "sharing" to {others} for {server} in the config; that always wins.')
        if not verdict.verified:
            lines.append(f"To find out: `carpool check --probe {server}`.")
    else:
        lines.append(f'To let carpool decide: set "sharing" to "auto" for {server} in the config.')
    return [*lines, CHANGE, STATE_AFTER_CHANGE[verdict.mode == "session"]]


_SOURCES: Final[dict[SharingSource, str]] = {
    "config": "your config.",
    "list": "carpool's list of well-known servers.",
    "tool names": "the names of its tools.",
    "evidence": "observations of it.",
    "assumed": "nobody yet.",
}


def launch_identity(spec: PoolSpec) -> str:
    """The key of verdicts on disk: the server's name and its program, without arguments.

    The name is included because programs such as mcp-remote run a different server for different arguments,
    and arguments may hold secrets. So is the directory, where another one may have another program under the
    same words: two projects may each have a `python server.py`. Of a URL only the host is included.
    """
    if spec.bridge and (host := host_of(spec.env.get(REMOTE_URL, ""))):
        return f"{spec.server} url:{host}"
    program = program_of(spec.argv)
    if program is None:
        return f"{spec.server} unknown:{posixpath.basename(spec.argv[0]) if spec.argv else ''} in {spec.cwd}"
    if not program.is_local:
        return f"{spec.server} {program}"
    if program.path:
        return f"{spec.server} {program.kind}:{posixpath.normpath(posixpath.join(spec.cwd, program.path))}"
    return f"{spec.server} {program} in {spec.cwd}"
