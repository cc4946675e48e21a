"""What carpool promises: one sentence each, where it comes from, and the mark for tests that hold it.

Owns the list that an owner can read. `tests/test_behaviours.py` holds both directions: no promise without a
test, no test for a promise that is not here. Sources: `rule N` is in docs/rules.md; `docs/...` is the page
that tells of the promise to users or maintainers; a date is a version of the MCP specification with the
page; an owner with a name and `#N` is an issue of another project.

Knows nothing of: how a promise is kept or tested.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")


class Behaviour(NamedTuple):
    """One promise."""

    source: str
    sentence: str


def behaviour(*ids: str) -> Callable[[T], T]:
    """Mark a test (a function, a class, a state machine's `TestCase`) as holding these promises."""
    unknown = [each for each in ids if each not in BEHAVIOURS]
    if unknown or not ids:
        raise KeyError(f"no such behaviour: {unknown}")
    return lambda test: test


_PROFILES: Final = {
    "profiles:written": Behaviour("docs/profiles.md", "Only the user's own file says what a profile is."),
    "profiles:patterns": Behaviour("docs/profiles.md", "A profile permits what it allows and does not deny."),
    "profiles:lists": Behaviour(
        "docs/profiles.md", "A list holds what its agent's profile permits, and nothing else."
    ),
    "profiles:call": Behaviour(
        "docs/profiles.md", "A call is judged by what its name or URI leads to, however that is spelled."
    ),
    "profiles:uris": Behaviour(
        "docs/profiles.md",
        "A right to resources holds however a URI is spelled, and none is left by climbing.",
    ),
    "profiles:listed": Behaviour(
        "docs/profiles.md",
        "Of a server with a resource that is kept back, agents read, watch and complete only what is listed.",
    ),
    "profiles:completions": Behaviour(
        "docs/profiles.md",
        "No completion of a template that is permitted names a resource that is kept back.",
    ),
    "profiles:leak": Behaviour(
        "docs/profiles.md", "Nothing that a profile keeps back is listed or suggested."
    ),
    "profiles:servers": Behaviour(
        "docs/profiles.md",
        "A server of which a profile permits nothing is neither started for it nor named to it.",
    ),
    "profiles:reload": Behaviour(
        "docs/profiles.md", "A profile that changes counts at once, and one that is gone grants nothing."
    ),
    "profiles:tokens": Behaviour(
        "docs/profiles.md", "A token's profile counts whatever the URL says, from the moment it is written."
    ),
    "profiles:bounds": Behaviour(
        "docs/profiles.md",
        "What a profile bounds is bounded for a session, and for all sessions of one token together.",
    ),
    "profiles:strangers": Behaviour(
        "rule 19", "A project's server takes no rights over with a name of the user's, unless he was told."
    ),
    "profiles:checked": Behaviour(
        "docs/profiles.md",
        "`carpool check` says what profiles let through, and which patterns cover nothing.",
    ),
    "profiles:max-tools": Behaviour(
        "docs/profiles.md",
        "Tools past max_tools leave the list, can be called, and are counted where people look.",
    ),
    "profiles:chosen": Behaviour(
        "docs/profiles.md", "A profile is chosen by flag, URL or token; an unknown one is refused."
    ),
}

_AUDIT: Final = {
    "audit:every-call": Behaviour(
        "docs/audit.md",
        "Each call has one line in the audit: who, what, when, how long, how large, what came of it.",
    ),
    "audit:refusals": Behaviour(
        "docs/audit.md", "A call that is refused is in the audit with the fault it got."
    ),
    "audit:no-values": Behaviour(
        "docs/audit.md", "The audit never holds the value of an argument, of a result or of a URI's query."
    ),
    "audit:broker-death": Behaviour(
        "docs/audit.md",
        "Calls that were open when a broker died are in the audit, under the same ids, with agent and tool.",
    ),
    "audit:one-id": Behaviour(
        "docs/audit.md",
        "A call has one id in errors, the audit, its story, and in the request that its server gets.",
    ),
    "audit:story": Behaviour(
        "docs/audit.md", "What happened to one call is told by its id, over all processes."
    ),
    "audit:summary": Behaviour(
        "docs/audit.md",
        "The audit is summed by agent, tool or outcome: calls, errors, refusals, times and sizes.",
    ),
    "audit:broken-disk": Behaviour(
        "docs/audit.md",
        "An audit that cannot be written holds up no call; what it misses is counted and said.",
    ),
}

_COUNTERS: Final = {
    "counters:every-call": Behaviour(
        "docs/counters.md",
        "Each call counts once for its agent, server and tool, and once for how it ended.",
    ),
    "counters:bounded": Behaviour(
        "docs/counters.md",
        "However many names agents and servers make up, the number of counters is bounded, and no call is "
        "left out.",
    ),
    "counters:broker-death": Behaviour(
        "docs/counters.md",
        "The next broker counts from nothing under another run id; calls that go on there count as resumed.",
    ),
    "counters:off": Behaviour(
        "docs/counters.md", "`counters` turns counting off and on while carpool runs; it begins anew then."
    ),
    "counters:stats": Behaviour(
        "docs/counters.md",
        "`carpool stats` shows counts and percentiles since counting began, and with --watch the rates of "
        "each interval.",
    ),
    "counters:failing": Behaviour(
        "docs/counters.md",
        "A server whose last calls have mostly failed or been refused is named by status, for some minutes.",
    ),
    "counters:servers": Behaviour(
        "docs/counters.md",
        "Starts, deaths, restarts, asks and waits for leases are counted for each server, also after its "
        "pools are gone.",
    ),
}

_TRACES: Final = {
    "traces:one": Behaviour(
        "docs/traces.md", "A traced call is one trace, from its agent through carpool to a server on an SDK."
    ),
    "traces:errors": Behaviour(
        "docs/traces.md", "A call that fails has its code in its spans, also one that reached no server."
    ),
    "traces:sampling": Behaviour(
        "docs/traces.md",
        "Calls without a context are sampled; an agent decides for a trace of its own.",
    ),
    "traces:no-values": Behaviour("docs/traces.md", "No span holds the value of an argument or of a result."),
    "traces:variables": Behaviour(
        "docs/traces.md", "Only an explicit `carpool up` gives variables to OpenTelemetry, no agent does."
    ),
    "traces:no-harm": Behaviour(
        "docs/traces.md",
        "A collector that is slow or gone, or refuses, costs spans, which are counted, and no call.",
    ),
    "traces:header": Behaviour(
        "docs/traces.md", "Over HTTP the header `traceparent` counts where the request's `_meta` has none."
    ),
    "traces:off": Behaviour("docs/traces.md", "Without traces nothing of OpenTelemetry is imported."),
}

_PINS: Final = {
    "pins:first-use": Behaviour(
        "docs/decisions/0036", "What a pinned server lists first is approved, as a whole."
    ),
    "pins:held": Behaviour(
        "docs/decisions/0036",
        "A tool of a pinned server that is new or has changed is neither listed nor called, by any spelling.",
    ),
    "pins:approved": Behaviour(
        "docs/decisions/0036", "What the user approves is there again at once, and agents hear so."
    ),
    "pins:everything": Behaviour(
        "docs/security.md", "A pin covers every member of a tool, and the instructions of the server."
    ),
    "pins:seen": Behaviour(
        "docs/security.md", "What is approved was shown: on a terminal just before, else by its digest."
    ),
    "pins:unverified": Behaviour(
        "docs/decisions/0036",
        "A pinned server is called only once it has said itself, in this run, what it offers.",
    ),
    "pins:damaged": Behaviour(
        "docs/decisions/0036",
        "Where what was approved cannot be read nothing of that server is served, and that is said.",
    ),
    "pins:launch": Behaviour("docs/decisions/0036", "A server with another command inherits no approval."),
    "pins:kept": Behaviour(
        "docs/decisions/0036", "What is approved outlives carpool and any death of the broker."
    ),
}

_SEARCH: Final = {
    "search:list": Behaviour(
        "docs/search.md", "A profile may show three tools that find, describe and call tools in place of all."
    ),
    "search:long-lists": Behaviour(
        "docs/search.md",
        "A search in a list of thousands is prepared in pieces, and nobody else waits for it.",
    ),
    "search:turns": Behaviour(
        "docs/search.md",
        "Answers of carpool's own tools are made one at a time, in turns by token, and nobody else waits for "
        "hundreds of them.",
    ),
    "search:find": Behaviour(
        "docs/search.md", "Tools are found by what they do, and what fits best comes first."
    ),
    "search:one-line": Behaviour(
        "docs/search.md",
        "A found tool is one line of bounded length, whatever its server calls its parameters.",
    ),
    "search:call": Behaviour(
        "docs/search.md", "To call a tool through call_tool is to call it, in every respect."
    ),
    "search:rights": Behaviour(
        "docs/search.md",
        "What a session may not call is not found, not described and not called through call_tool.",
    ),
    "search:eras": Behaviour(
        "docs/search.md", "Agents of both eras find, read and call by carpool's own tools."
    ),
    "search:news": Behaviour(
        "docs/search.md", "What is found is what servers offer now; the list itself does not change with it."
    ),
    "search:names": Behaviour(
        "docs/search.md", "No name of carpool's own tools is taken from a server's tool: ours gets a hash."
    ),
    "people:offers": Behaviour(
        "docs/profiles.md", "People list and read resources and prompts from a shell."
    ),
    "people:tokens": Behaviour(
        "docs/profiles.md", "People see which tools cost a model how much, as an estimate."
    ),
    "search:resources": Behaviour(
        "docs/search.md",
        "Agents that know only tools list and read resources and prompts, with the same rights.",
    ),
}

_NAMES: Final = {
    "names:owner": Behaviour(
        "docs/names.md",
        "What reads as a name of one server is never a tool of another, whatever state that server is in.",
    ),
    "names:length": Behaviour(
        "docs/names.md",
        "No name is longer than its agent's bound, and a name for a higher bound means the same tool.",
    ),
    "names:prefix": Behaviour(
        "docs/names.md", "A `tools_prefix` is understood in every spelling in which a server's name is."
    ),
    "names:guesses": Behaviour(
        "docs/names.md",
        "Names that nobody has are refused; similar names are searched for a few of them in a second.",
    ),
    "names:reference": Behaviour(
        "docs/names.md",
        "A completion is for the prompt or resource that was checked, however keys are written.",
    ),
}

_REMOTE: Final = {
    "remote:handshake": Behaviour(
        "docs/remote.md", "A server over Streamable HTTP or HTTP+SSE is used like one that is a command."
    ),
    "remote:stateless": Behaviour(
        "2026-07-28 basic/transports", "Each request of the stateless era goes with its headers over HTTP."
    ),
    "remote:untouched": Behaviour(
        "docs/remote.md",
        "What passes through the bridge keeps every field, both ways, and every digit of a number.",
    ),
    "remote:failures": Behaviour(
        "rule 17", "Whatever a server over a URL does instead of answering, the call ends honestly."
    ),
    "remote:statuses": Behaviour(
        "docs/remote.md",
        "A status without a message means that a call was not run only where HTTP or MCP guarantees it.",
    ),
    "remote:redirects": Behaviour(
        "rule 17", "What is sent to a server goes to its own host only, wherever that redirects to."
    ),
    "remote:beside": Behaviour(
        "docs/remote.md", "A server over a URL that is slow to accept one message holds up no other."
    ),
    "remote:listening": Behaviour(
        "docs/remote.md",
        "The stream on which a server over a URL speaks by itself is opened again until the end.",
    ),
    "remote:proxy": Behaviour(
        "docs/remote.md",
        "A proxy of the environment that cannot be used, or refuses, is named as what is wrong.",
    ),
    "remote:cancelled": Behaviour(
        "docs/remote.md",
        "A cancelled call that a server over a URL never answers holds no connection for ever.",
    ),
    "remote:its-word": Behaviour(
        "docs/remote.md",
        "What a bridge says became of a call reaches the agent, and no server can say it for it.",
    ),
    "remote:killed": Behaviour(
        "docs/remote.md",
        "A server over a URL that is killed in a call costs that call; when it is back, it is greeted anew.",
    ),
    "remote:plain-http": Behaviour(
        "rule 13",
        "`carpool check` warns of a URL that takes a secret to another machine unencrypted.",
    ),
    "remote:secrets": Behaviour(
        "docs/remote.md",
        "URL and headers of a server reach its bridge by its environment, and are told nowhere else.",
    ),
    "remote:login": Behaviour(
        "docs/remote.md",
        "A login is a verb's; its tokens are one file of the user's own, renewed once for all bridges.",
    ),
    "remote:found": Behaviour(
        "docs/remote.md",
        "A server is found by its host's well-known document.",
    ),
    "remote:origin": Behaviour(
        "docs/remote.md",
        "A well-known document leads to no other origin: the user writes its URL into the configuration.",
    ),
    "remote:own-door": Behaviour(
        "docs/remote.md",
        "carpool's own HTTP door refuses carpool's own bridges, so no server's list grows by itself.",
    ),
}
_SETUP: Final = {
    "setup:moved": Behaviour(
        "docs/setup.md",
        "`carpool setup` moves the servers of every program into carpool, each definition once.",
    ),
    "setup:stays": Behaviour(
        "docs/setup.md",
        "What carpool cannot run as the program does stays there, and is said with the reason.",
    ),
    "setup:secrets": Behaviour(
        "docs/setup.md",
        "A secret of a program's file ends in the `env_file` and the backup, both private; it is not shown.",
    ),
    "setup:undone": Behaviour(
        "docs/setup.md",
        "`carpool setup --undo` leaves every file as it was, byte for byte, or says which it kept.",
    ),
    "setup:undone.since": Behaviour(
        "docs/setup.md",
        "`carpool setup --undo`, forced or not, takes away nothing that was written since setup, touches no "
        "file twice, and can be said for one program.",
    ),
    "setup:project": Behaviour(
        "docs/setup.md",
        "`carpool setup` changes files that git tracks in a project only when it is told to, and says what "
        "git will show.",
    ),
    "setup:profiles": Behaviour(
        "docs/setup.md",
        "After `carpool setup` each program sees the servers it had, unless all of them are to be shared.",
    ),
    "setup:environment": Behaviour(
        "docs/setup.md",
        "The entry that `carpool setup` writes has the variables that lead to carpool's files where they are "
        "not the usual ones, and names those that its servers use where the program passes few on.",
    ),
    "setup:left_behind": Behaviour(
        "docs/setup.md", "`carpool setup` names each key of an entry that carpool does not take over."
    ),
    "setup:rules": Behaviour(
        "docs/setup.md",
        "`carpool setup` shows rules of the programs that name tools of servers which move before it asks, "
        "those that keep something back first.",
    ),
    "setup:killed": Behaviour(
        "docs/setup.md", "A setup that is killed at any moment can be undone, and can be said again."
    ),
    "setup:works": Behaviour(
        "docs/setup.md",
        "After `carpool setup` the entry in each program's file reaches the server they now share.",
    ),
    "top:view": Behaviour(
        "docs/top.md", "`carpool top` shows servers, agents, calls and tools live, and fits 80 columns."
    ),
    "top:keys": Behaviour(
        "docs/top.md", "Keys of `carpool top` sort, filter, show a log, and act after a question."
    ),
    "service:ready": Behaviour(
        "docs/setup.md",
        "A service manager is told when carpool is ready and that it is alive; a restart is its task.",
    ),
    "service:unit": Behaviour(
        "README.md",
        "`carpool service` writes a unit of systemd or an agent of launchd, with no secret in it.",
    ),
}
_RUNS: Final = {
    "lines:no-control-bytes": Behaviour(
        "rule 1",
        "Bytes that cross undecoded hold nothing below 0x20, so one line is one line for every reader.",
    ),
    "lines:no-smuggling": Behaviour(
        "rule 1", "A request hidden between carriage returns is not run by a shared server of a real SDK."
    ),
    "lines:arguments": Behaviour(
        "MCP 2025-11-25, CallToolRequestParams",
        "Arguments that are no object are refused: a shared server that does not check them might end.",
    ),
    "lines:lone-surrogates": Behaviour(
        "rule 16", "Half a surrogate pair, which real servers write, passes or is answered; it is never lost."
    ),
    "secrets:literal-values": Behaviour(
        "docs/security.md",
        "A literal value of `env` counts as a secret if its name or its text is one.",
    ),
    "config:broken-is-named": Behaviour(
        "docs/files.md", "Where a configuration that cannot be read matters, its file and line are named."
    ),
    "doctor:lists": Behaviour(
        "docs/problems.md", "What carpool leaves out of a server's lists is named by `carpool doctor`."
    ),
    "lines:log-lines": Behaviour(
        "rule 16", "A line of a server that is JSON and no JSON-RPC message ends no call and gets no answer."
    ),
    "lines:bad-bytes": Behaviour(
        "rule 16", "A byte that is not UTF-8 in a greeting or a list does not make the server unusable."
    ),
    "lines:over-the-cap": Behaviour(
        "rule 16", "A line too long to be read still ends the call it answers, and harms no other."
    ),
    "lines:no-result-no-room": Behaviour(
        "docs/security.md",
        "A line of a server that is no result is not read above 8 MiB, a notification above 1 MiB, however "
        "it begins; if it is a request or an error, its sender or its call is told.",
    ),
    "agents:refusal-told": Behaviour(
        "docs/errors.md",
        "An agent that cannot be served because the configuration or its own options are wrong hears the "
        "reason as the answer to its requests, in either era and over every way in.",
    ),
    "lines:long-ids": Behaviour(
        "docs/security.md",
        "A request with an id or a progress token of more than 1024 bytes is refused, over every way in, and "
        "what stays of an answered request does not grow with its id.",
    ),
    "lines:bounded-scan": Behaviour(
        "rule 16",
        "The work for a line that is refused, however long, is bounded; its id is sought at its ends.",
    ),
    "lines:depth-bombs": Behaviour("rule 16", "A line nested too deep is refused, and its call is known."),
    "answers:repaired": Behaviour(
        "rule 17", "An answer that breaks the protocol ends its call at once, as text where it was text."
    ),
    "answers:own-mark": Behaviour(
        "rule 17", "What only carpool can know of a call no server says in its name: that is put elsewhere."
    ),
    "answers:bounded-rewrite": Behaviour(
        "rule 17",
        "An answer or a question that would take too long to adapt for its agent ends with an error at once.",
    ),
    "rounds:bounded-state": Behaviour(
        "docs/decisions/0012",
        "What a call keeps of an answer that requires input is bounded; a call that would keep more ends.",
    ),
    "answers:valid-untouched": Behaviour("rule 17", "A valid answer passes byte for byte."),
    "children:outlive-threads": Behaviour("rule 2", "A server does not die with a thread of the supervisor."),
    "children:end-with-us": Behaviour(
        "rule 2", "Every process of a server ends with the supervisor, however it dies, grandchildren too."
    ),
    "children:escaped": Behaviour(
        "docs/architecture.md",
        "A process that has left session, group and environment of its server ends with its instance, and is "
        "found after a death of supervisor and spawner.",
    ),
    "children:bounded-look": Behaviour(
        "docs/security.md",
        "A process that makes its own environment long does not make the search for leftovers long.",
    ),
    "reattach:carrier-keeps": Behaviour(
        "rule 4",
        "After a death of the broker a carrier says again what is open, and nothing that is answered.",
    ),
    "reattach:one-line-more": Behaviour(
        "rule 4",
        "Where the broker takes a line for the agent's that the carrier did not, no answered call is run "
        "again: what is in no record ends as lost.",
    ),
    "reattach:late-environment": Behaviour(
        "rule 4",
        "What a carrier says of its environment is taken whenever it comes, counts as no line of its agent, "
        "and the session has its variables from then on.",
    ),
    "reattach:used-again": Behaviour(
        "rule 4",
        "Of an id that an agent uses again each use has its own answer, also where the broker dies between "
        "them; where nobody can tell the uses apart the later one ends as lost, maybe.",
    ),
    "reattach:calls": Behaviour(
        "rule 4", "A call in flight when the broker is killed is run once and answered once."
    ),
    "reattach:session": Behaviour(
        "rule 4",
        "Level, subscriptions, lists and leases of an agent behind a carrier outlive the broker.",
    ),
    "reattach:listens": Behaviour(
        "docs/decisions/0019",
        "What an agent was granted holds at the next broker, also while the server that it is about is away.",
    ),
    "reattach:asks": Behaviour(
        "rule 4", "A question that was asked before the broker died is shown once, and its answer arrives."
    ),
    "reattach:everything-died": Behaviour(
        "rule 4", "Where the supervisor died as well open calls are lost, maybe, and the session goes on."
    ),
    "reattach:meant": Behaviour(
        "docs/decisions/0019",
        "`carpool restart --all` is a pause for agents behind a carrier, `carpool down` their end.",
    ),
    "restart:drains": Behaviour(
        "docs/architecture.md",
        "`carpool restart --all` waits for calls that run; what comes meanwhile the next daemon runs, once.",
    ),
    "upgrade:in-place": Behaviour(
        "docs/architecture.md",
        "Installed files may be replaced under running agents: they notice a pause, each call runs once.",
    ),
    "restart:down-wins": Behaviour(
        "docs/operating.md",
        "`carpool down` ends also a restart that runs: when it returns, carpool is down and stays down.",
    ),
    "restart:one-at-a-time": Behaviour(
        "docs/operating.md",
        "A `carpool restart --all` beside another one waits for it; open calls keep their time.",
    ),
    "restart:one-half-newer": Behaviour(
        "docs/architecture.md",
        "A half that comes up in another version after an update has the other one follow by itself.",
    ),
    "reattach:secret": Behaviour(
        "rule 4", "A session comes back only with its secret, once, and not at the broker that gave it."
    ),
    "children:sweep": Behaviour(
        "rule 2", "What survived is found by its mark, never by a pid alone, and ended before new ones serve."
    ),
    "children:cold-starts-staggered": Behaviour("rule 2", "At most so many servers greet at the same time."),
    "children:starts-in-turn": Behaviour(
        "docs/decisions/0004",
        "A server of which many instances are wanted and do not greet holds up the start of another one for "
        "one greeting turn at most, and once that is known for no time.",
    ),
    "children:layers-start-in-turn": Behaviour(
        "docs/decisions/0004",
        "However many servers of a project, a named workspace or the user's file do not greet, they hold up "
        "the start of a server that is configured elsewhere for one second at most.",
    ),
    "children:agents-start-in-turn": Behaviour(
        "docs/decisions/0004",
        "An agent or token that calls many servers that do not greet holds up the first call of another one "
        "for one greeting turn at most, also where all these servers are in one file.",
    ),
    "supervisor:many": Behaviour(
        "docs/architecture.md", "The supervisor's work for all servers grows with their number alone."
    ),
    "children:daemon-outlives-agent": Behaviour(
        "rule 2", "A daemon that an agent started outlives that agent's process group."
    ),
    "pressure:bounded-calls": Behaviour(
        "rule 3", "Calls over the session's bound wait in a line that is bounded; past that each is refused."
    ),
    "pressure:unblocking-lines-are-read": Behaviour(
        "rule 3", "However many calls an agent has open, its cancels, pings and answers are read."
    ),
    "pressure:slow-reader": Behaviour(
        "rule 3", "An agent that does not read is dropped; nobody else notices."
    ),
    "pressure:receive-budget": Behaviour(
        "rule 3",
        "When the budget for unfinished lines is spent, owners with more than their share are held and the "
        "slow ones of them dropped; nobody else is held up.",
    ),
    "pressure:arguments": Behaviour(
        "rule 3",
        "Arguments of all open calls stay within a budget; who floods is refused, small calls get in.",
    ),
    "pressure:asks": Behaviour(
        "rule 3",
        "What servers ask of agents, and tell them of tasks, has a bounded part of memory, whoever reads.",
    ),
    "pressure:unread-answers": Behaviour(
        "rule 3",
        "What agents leave unread stays within a budget; each call is answered all the same, if by an error.",
    ),
    "pressure:server-lines": Behaviour(
        "rule 3",
        "Unfinished lines of all servers stay within a budget; of those above their share one goes on.",
    ),
    "pressure:long-lines": Behaviour(
        "rule 10", "A long line is cut, parsed and passed on in turns of its own, without copies of the rest."
    ),
    "pressure:short-lines": Behaviour(
        "docs/settings.md",
        "Of a flood of short lines each turn takes a few, and all others have theirs between.",
    ),
    "pressure:updates": Behaviour(
        "docs/operating.md",
        "Of many notifications of one resource the last of each read is passed on, of a long one its URI.",
    ),
    "pressure:last-lines": Behaviour(
        "docs/operating.md",
        "What an ended process has written is read in turns before its end is told; of a flood, the answers.",
    ),
    "pressure:fair-share": Behaviour(
        "docs/settings.md",
        "Beside a swarm a lone agent's call starts after at most one call of each session.",
    ),
    "backstop:broker": Behaviour(
        "rule 8", "A call that the supervisor forgot ends as maybe executed, and its late answer is dropped."
    ),
    "silence:probed-then-replaced": Behaviour(
        "rule 8",
        "A silent instance is probed, then given nothing, then ended; one that answers is not silent.",
    ),
    "silence:only-while-read": Behaviour(
        "rule 8",
        "While carpool does not read from a server, neither its silence nor that of its calls counts.",
    ),
    "silence:not-while-asked": Behaviour(
        "rule 8", "A server that waits for an agent's answer lives until `ask_timeout_s`, however silent."
    ),
    "lists:lost-answers": Behaviour(
        "docs/names.md",
        "An unreadable answer to a list request ends the greeting or is asked for again; so is one that "
        "never comes.",
    ),
    "failure:broken-stdin": Behaviour(
        "docs/architecture.md",
        "An instance that closes its stdin is replaced; calls that never reached it run elsewhere.",
    ),
    "silence:timeouts-kill-nobody": Behaviour(
        "rule 8", "A call that times out is cancelled; its process lives on."
    ),
    "start:told": Behaviour(
        "docs/errors.md",
        "Why a server cannot start or does not greet is told at once, in errors, `status` and its log.",
    ),
    "silence:breaker": Behaviour(
        "rule 8", "Transport failures in a row end restarting; then calls are refused at once, and say when."
    ),
    "silence:breaker-siblings": Behaviour(
        "rule 8", "Instances that ran beside each other and end together are one failure of their server."
    ),
    "silence:breaker-probes": Behaviour(
        "rule 8", "After the open time one start and then one call show whether the server is well again."
    ),
    "silence:breaker-on-demand": Behaviour(
        "docs/settings.md", "A server that broke is tried again when somebody misses it, and not for nobody."
    ),
    "recycling:helpers": Behaviour(
        "docs/settings.md",
        "`limits.rss_mb` counts all that an instance has started, also where a parent or first thread ended.",
    ),
    "recycling:limits": Behaviour(
        "docs/settings.md",
        "An instance past its limit of memory, calls or age is replaced, and `ps` says why.",
    ),
    "recycling:costs-no-call": Behaviour(
        "docs/settings.md", "Recycling ends no call, refuses none and leaves nobody waiting who need not."
    ),
    "recycling:one-by-one": Behaviour(
        "docs/settings.md",
        "Instances of one pool do not go together, and none goes before another can serve.",
    ),
    "recycling:leases": Behaviour(
        "rule 15", "A limit of calls or age ends no lease; one of memory does after drain_s, and says so."
    ),
    "stop:bounded": Behaviour(
        "docs/architecture.md",
        "Stopping is bounded, whatever instances are doing and whatever they refuse to do.",
    ),
    "faults:full-disk": Behaviour(
        "docs/architecture.md",
        "A full disk costs lines of logs and evidence, and no call; who starts on one reads why.",
    ),
    "faults:descriptors": Behaviour(
        "docs/architecture.md",
        "Out of descriptors nothing spins and nothing dies; who waits is served when some are free.",
    ),
    "faults:descriptors-for-operators": Behaviour(
        "docs/operating.md",
        "When agents have taken all other descriptors, operators see and end them; new agents are told why.",
    ),
    "faults:own-shortage": Behaviour(
        "README.md",
        "Where carpool lacks descriptors, processes or memory, no server is blamed: a start waits, and an "
        "idle server makes room.",
    ),
    "idle:wakeups": Behaviour(
        "docs/benchmarks.md",
        "A carpool with nothing to do wakes at most twice a second in all its processes together.",
    ),
    "faults:runtime-directory": Behaviour(
        "docs/architecture.md",
        "A runtime directory that vanishes is put back, and nobody who is connected notices.",
    ),
    "stop:answers": Behaviour(
        "docs/architecture.md",
        "When carpool is stopped every open call is answered, and says whether it may have run.",
    ),
    "faults:frozen": Behaviour(
        "docs/architecture.md", "A part that is stopped for a while is waited for, and goes on where it was."
    ),
    "silence:clock-jump": Behaviour(
        "rule 8", "After a jump of the clock every instance is probed before use."
    ),
    "silence:daemons-replaced": Behaviour(
        "rule 8", "A silent broker or supervisor is replaced; a stopped one is not a dead one."
    ),
    "link:free-messages": Behaviour("rule 10", "Cancels and answers to asks need no credit."),
    "link:big-payloads-alone": Behaviour("rule 10", "A big payload travels in a frame of its own."),
    "pipes:raised-for-few": Behaviour(
        "rule 11", "Only senders of long lines get larger pipes, and only a few."
    ),
    "stderr:not-for-everybody": Behaviour(
        "rule 7", "An answer carries stderr only of an instance that served nobody else."
    ),
    "numbers:stop-ladder": Behaviour("rule 20", "Stopping is: close stdin, then TERM the group, then KILL."),
    "numbers:back-off": Behaviour("rule 20", "Restarts back off, doubling to a cap, with jitter."),
    "numbers:healthy": Behaviour("rule 20", "A healthy life makes the next failure the first again."),
    "numbers:call-limits": Behaviour(
        "rule 20", "Progress restarts the idle limit of a call, not its total one."
    ),
    "numbers:socket-path": Behaviour(
        "rule 20", "A runtime directory too long for a socket is replaced by a short one, and says so."
    ),
}
"""Starting, stopping and serving at all."""

_CALLS: Final = {
    "calls:one-answer": Behaviour(
        "docs/architecture.md",
        "Every request gets exactly one answer, and none after a cancel; nothing runs twice.",
    ),
    "calls:honest-delivery": Behaviour(
        "docs/architecture.md",
        "A call that cannot be answered ends once, as not delivered or as maybe executed.",
    ),
    "calls:own-ids": Behaviour(
        "docs/architecture.md",
        "Ids and progress tokens come back byte for byte; equal ones of two agents never meet.",
    ),
    "calls:isolation": Behaviour(
        "docs/architecture.md", "No message of one agent ever reaches another, whatever ids all of them use."
    ),
    "progress:by-token": Behaviour(
        "2025-11-25 basic/utilities/progress", "Progress reaches the one call whose token it carries."
    ),
    "progress:asked-for": Behaviour(
        "docs/settings.md",
        "A server's progress restarts `timeout_s` of a call whether or not its agent asked for it.",
    ),
    "cancel:reaches-server": Behaviour(
        "2025-11-25 basic/utilities/cancellation",
        "A cancel goes on to the server; a late answer is nobody's.",
    ),
    "ping:answered-here": Behaviour(
        "2025-11-25 basic/utilities/ping", "Pings are answered at each end, not passed on."
    ),
    "versions:negotiated-apart": Behaviour(
        "2025-11-25 basic/lifecycle, docs/architecture.md",
        "Each agent and each server agrees to its own version of the handshake era.",
    ),
    "batches:of-servers": Behaviour(
        "2025-03-26 basic", "An array of messages of a server that speaks 2025-03-26 is read."
    ),
    "batches:split": Behaviour(
        "2025-03-26 basic",
        "A batch of an agent of 2025-03-26 is split; others are refused; servers see none.",
    ),
    "failure:death-ends-calls": Behaviour(
        "docs/architecture.md", "When a process dies its calls end once, and the next call finds another one."
    ),
    "death:broker-pause": Behaviour(
        "rule 4", "A broker that dies is a pause: its sessions go on at the next, and nothing runs twice."
    ),
    "failure:agent-gone": Behaviour(
        "docs/architecture.md",
        "When an agent goes its calls are cancelled at the servers and its subscriptions end.",
    ),
}

_FEATURES: Final = {
    "features:as-direct": Behaviour(
        "docs/sharing.md", "Every feature of a server answers through carpool as it does directly."
    ),
    "features:announced": Behaviour(
        "docs/sharing.md", "A capability is announced where a visible server serves it or is not known yet."
    ),
    "features:instructions-merged": Behaviour(
        "2025-11-25 basic/lifecycle", "Instructions of several servers are told under their names."
    ),
    "resources:routed-by-table": Behaviour(
        "docs/names.md",
        "URIs go to the server that lists them, else to the only one that has their scheme.",
    ),
    "resources:not-taken-over": Behaviour(
        "docs/names.md",
        "No list of one server decides which URIs of another one lead to it, in whatever order.",
    ),
    "resources:owner-told": Behaviour(
        "docs/names.md", "People and programs that list resources are told which server each is of."
    ),
    "resources:rewritten-on-collision": Behaviour(
        "docs/names.md",
        "A URI is rewritten only where two servers have it or its scheme, in all places, and back.",
    ),
    "prompts:own-names": Behaviour(
        "2025-11-25 server/prompts", "Prompts are named like tools, in a name space of their own."
    ),
    "completion:routed": Behaviour(
        "2025-11-25 server/utilities/completion",
        "A completion goes to the server of its reference, in that server's words.",
    ),
    "catalogs:bounded": Behaviour(
        "docs/security.md",
        "One entry, one catalog and instructions are bounded in bytes; what is over is left out and told.",
    ),
    "catalogs:pages-refused": Behaviour(
        "docs/security.md",
        "A page of a list with more than a million commas is refused before anything of it is read.",
    ),
    "lists:changes-without-end": Behaviour(
        "docs/operating.md",
        "A server that announces changes all the time is asked for each list once a second.",
    ),
    "lists:in-slices": Behaviour(
        "docs/decisions/0039",
        "A long list is taken in by slices: calls pass between two of them, and nobody sees a part of it.",
    ),
    "catalogs:terminal": Behaviour(
        "docs/security.md", "No name and no text of a hostile catalog is obeyed by a terminal."
    ),
    "catalogs:own-section": Behaviour(
        "docs/security.md", "No server's instructions read as a section of another server, or hide one."
    ),
    "pages:servers-drained": Behaviour(
        "2025-11-25 server/utilities/pagination",
        "All pages of a server's list are read; pages without end are cut off.",
    ),
    "pages:long-lists": Behaviour(
        "rule 18",
        "Of a long list that keeps changing fewer earlier versions are kept, and always the last one.",
    ),
    "pages:own-cursors": Behaviour(
        "rule 18", "Pages are cut from an immutable view; an old or foreign cursor is -32602."
    ),
    "piped:answered": Behaviour(
        "rule 4",
        "An agent that closes its input gets the answers to all that it has sent; then the broker closes.",
    ),
    "piped:killed-cancels": Behaviour(
        "rule 4", "The calls of an agent whose connection is closed in both directions are cancelled."
    ),
    "lists:undeclared": Behaviour(
        "docs/names.md",
        "A server that does not declare tools is asked for them; one that declares nothing at all and lists "
        "none is told by doctor.",
    ),
    "versions:refused": Behaviour(
        "2025-11-25 basic/lifecycle",
        "A server that refuses a version is offered one that its error names, or else the next older one.",
    ),
    "versions:exit": Behaviour(
        "docs/decisions/0013-initialize-comes-first.md",
        "The next process of a server that ends while it is greeted is offered the next older version.",
    ),
    "lists:optional-late": Behaviour(
        "docs/names.md",
        "A server serves its tools although it never answers another list, which comes later or stays out.",
    ),
    "lists:changes-told": Behaviour(
        "docs/names.md",
        "list_changed of all four families reaches who had read the list, if it changed for them.",
    ),
    "lists:compared-once": Behaviour(
        "docs/benchmarks.md", "A changed list costs one comparison, however many agents hold it."
    ),
    "lists:start-told-together": Behaviour(
        "rule 18", "Servers that start together are told as one change, ten seconds late at most."
    ),
    "lists:bounded-wait": Behaviour(
        "rule 18", "A list waits a bounded time for unknown catalogs; a bad server never blocks the others."
    ),
    "lists:away-and-back": Behaviour(
        "rule 18", "A server that has given up or is stopped leaves every list and returns when fit."
    ),
    "lists:reason-at-once": Behaviour(
        "rule 18", "A call by name to a server that is away is told the reason at once."
    ),
    "lists:stable-order": Behaviour(
        "docs/names.md", "Lists come in one order, whatever order servers answered in."
    ),
    "subscriptions:counted": Behaviour(
        "2025-11-25 server/resources",
        "Subscriptions of all agents are one towards the server, until the last.",
    ),
    "subscriptions:renewed": Behaviour(
        "docs/architecture.md", "After a restart the server watches again, and subscribers hear of a change."
    ),
    "subscriptions:subscribers-only": Behaviour(
        "2025-11-25 server/resources", "resources/updated reaches subscribers only, of sub-resources too."
    ),
    "subscriptions:told-in-slices": Behaviour(
        "docs/security.md",
        "Changes that many agents hear of are told in slices, and the last one of each resource always.",
    ),
    "subscriptions:price-of-a-change": Behaviour(
        "docs/security.md",
        "A change of one subscription costs the same, however many others there are.",
    ),
    "subscriptions:bounded": Behaviour(
        "docs/security.md",
        "What the agents of one token are subscribed to takes no more memory than is left for all others.",
    ),
    "subscriptions:slow-server": Behaviour(
        "docs/security.md",
        "A server that is slow to read is told of subscriptions once it reads, however often they changed.",
    ),
    "subscriptions:loops": Behaviour(
        "docs/security.md",
        "An agent that changes subscriptions or its log level in a loop slows down no shared server.",
    ),
    "subscriptions:long-uris": Behaviour(
        "docs/security.md", "A URI of more than 4096 characters is subscribed to by nobody."
    ),
    "logging:level-per-session": Behaviour(
        "2025-11-25 server/utilities/logging",
        "Each session has its level; the server is told the most verbose; each gets its own and above.",
    ),
    "logging:one-session": Behaviour(
        "rule 5", "A log message reaches an agent only if all that may have caused it is that agent's own."
    ),
    "downgrade:content": Behaviour(
        "docs/conformance.md",
        "Content that an older agent cannot know becomes text; the rest stays byte for byte.",
    ),
    "downgrade:structured": Behaviour(
        "docs/conformance.md",
        "Structured content and output schemas that are no objects go in the handshake era.",
    ),
    "downgrade:asks": Behaviour(
        "docs/conformance.md",
        "What an older agent cannot be asked is reworded where that is lossless, else refused.",
    ),
}

_ASKS: Final = {
    "asks:attribution:task": Behaviour(
        "docs/sharing.md", "A question that names a task belongs to that task's call."
    ),
    "asks:attribution:traceparent": Behaviour(
        "docs/sharing.md", "The trace context of a call coming back is certain among many."
    ),
    "asks:attribution:only-call": Behaviour(
        "docs/sharing.md", "The only call in flight that can ask is the one that asks."
    ),
    "asks:attribution:only-session": Behaviour(
        "docs/sharing.md", "Where all calls that can ask are one session's, that session is asked."
    ),
    "asks:attribution:refused": Behaviour(
        "docs/sharing.md",
        "Where it may be several agents' question nobody is asked and the server gets an error.",
    ),
    "asks:attribution:outside-calls": Behaviour(
        "rule 6", "A question outside any call is answered with an error and is no evidence."
    ),
    "asks:evidence": Behaviour(
        "docs/sharing.md",
        "An ambiguous question is recorded; the server is serial for new placements from then on.",
    ),
    "asks:trace:fresh": Behaviour(
        "docs/sharing.md", "Every call that may be asked about has a trace context of its own."
    ),
    "asks:trace:agents-own": Behaviour(
        "docs/sharing.md", "An agent's own trace id is kept: carpool is one hop."
    ),
    "asks:trace:unforgeable": Behaviour(
        "docs/sharing.md", "No agent can name the trace context of another agent's call."
    ),
    "asks:in-flight:after-cancel": Behaviour(
        "rule 5", "A call counts as in flight until it is answered, also after a cancel, timeout or loss."
    ),
    "asks:in-flight:tainted-replaced": Behaviour(
        "rule 5", "A shared instance on which an ended call still asks is drained and replaced."
    ),
    "asks:in-flight:serial-waits": Behaviour(
        "rule 5", "A serial instance with an ended call that may still run takes no new one that can ask."
    ),
    "asks:in-flight:stopped": Behaviour(
        "rule 5",
        "A server that answers a ping after a cancel keeps its process, and soon the call no longer counts.",
    ),
    "asks:in-flight:serial-replaced": Behaviour(
        "rule 5", "It is drained and replaced if the answer has not come 5 s after the cancel."
    ),
    "eras:old-agent-new-server": Behaviour(
        "docs/conformance.md",
        "An agent of the handshake era uses everything of a stateless server and notices nothing.",
    ),
    "eras:every-mix": Behaviour(
        "docs/conformance.md",
        "Agents of both eras share one process of a server of either, and see what its own agent sees.",
    ),
    "eras:conformance": Behaviour(
        "docs/conformance.md",
        "The official conformance suite finds no fault through the door, in either of its requirement sets.",
    ),
    "eras:tokens": Behaviour(
        "rule 9",
        "The token of a round is good once, for its own agent and its own request; else it is refused.",
    ),
    "eras:rounds": Behaviour(
        "2026-07-28 basic/utilities/mrtr",
        "What a stateless server wants first is asked of the agent behind the call; its state stays here.",
    ),
    "eras:rounds:in-advance": Behaviour(
        "2026-07-28 basic/utilities/mrtr",
        "Answers that come without a token are for what the call wants first under their names, each once.",
    ),
    "eras:rounds:lane": Behaviour(
        "rules 5 and 14",
        "Between two rounds a call of a stateless server holds no serial lane: it goes on when none runs.",
    ),
    "eras:one-listen": Behaviour(
        "2026-07-28 basic/utilities/subscriptions",
        "A stateless server has one listen for all agents, replaced without a gap and renewed when it ends.",
    ),
    "eras:parked-ends": Behaviour(
        "docs/conformance.md",
        "A call that waits for its agent ends cleanly, whoever stays away or dies meanwhile.",
    ),
    "eras:listens": Behaviour(
        "2026-07-28 basic/utilities/subscriptions",
        "Whoever listens hears what it was granted, on its own listen, from its acknowledgement to its end.",
    ),
    "eras:hop-by-hop": Behaviour(
        "2026-07-28 basic/index", "What each hop says for itself no agent can say through us."
    ),
    "eras:own-capabilities": Behaviour(
        "2026-07-28 basic/index",
        "A stateless server hears with each call what the agent behind that call can be asked, and no more.",
    ),
    "eras:own-log-level": Behaviour(
        "2026-07-28 server/utilities/logging",
        "A stateless server logs for a call from the level on that its own agent said, and never unasked.",
    ),
    "eras:own-roots": Behaviour(
        "2026-07-28 client/roots", "An agent that declares roots with a call is asked for them itself."
    ),
    "eras:missing-capability": Behaviour(
        "2026-07-28 basic/index",
        "A stateless agent reads which capability a server misses; others read an error they know.",
    ),
    "eras:hints": Behaviour(
        "2026-07-28 server/utilities/caching",
        "How long a stateless server's lists and resources are current comes along, and is kept to.",
    ),
    "eras:found-out": Behaviour(
        "docs/conformance.md",
        "Which era a server speaks is found out without harm to it, kept with its date and asked anew.",
    ),
    "eras:match": Behaviour(
        "docs/conformance.md",
        "A server that speaks both eras is spoken to in that of each agent, where it may run twice.",
    ),
    "eras:asked-once": Behaviour(
        "docs/conformance.md",
        "That a server speaks one era only is found out by one process and remembered; no other is started.",
    ),
    "asks:named": Behaviour(
        "2025-11-25 client/elicitation",
        "An elicitation, also one in an error, names its server wherever its agent sees more than one.",
    ),
    "asks:own-agent": Behaviour(
        "docs/sharing.md", "A question reaches exactly the agent behind the call, under a new id."
    ),
    "asks:answered-back": Behaviour(
        "2025-11-25 client/sampling, client/elicitation",
        "The agent's answer reaches the server under the server's own id, untouched.",
    ),
    "asks:answer-of-whom": Behaviour(
        "docs/sharing.md", "Only the agent that was asked can answer, and once; others' answers go nowhere."
    ),
    "asks:progress": Behaviour(
        "2025-11-25 basic/utilities/progress", "An agent's progress with a question reaches the server."
    ),
    "asks:withdrawn:by-server": Behaviour(
        "2025-11-25 basic/utilities/cancellation", "A server's cancel of its question reaches the agent."
    ),
    "asks:withdrawn:call-over": Behaviour(
        "docs/sharing.md",
        "When the call ends its questions are withdrawn at the agent and answered to the server.",
    ),
    "asks:withdrawn:instance-gone": Behaviour(
        "docs/sharing.md", "When the server dies its questions are withdrawn at the agents."
    ),
    "asks:agent-gone": Behaviour(
        "docs/sharing.md", "When the agent goes the server gets an error for its question."
    ),
    "asks:never-left-waiting": Behaviour(
        "docs/sharing.md", "Every question of a living server gets exactly one answer within the limit."
    ),
    "asks:capability:lacking": Behaviour(
        "2025-11-25 client/sampling, client/elicitation",
        "An agent that has not declared a capability is not asked; the server gets the error the spec names.",
    ),
    "asks:elicitation:completion": Behaviour(
        "2025-11-25 client/elicitation", "Completion of a URL elicitation reaches only the agent sent there."
    ),
    "asks:elicitation:32042": Behaviour(
        "2025-11-25 client/elicitation", "So does that of URLs which came in a -32042 error."
    ),
    "asks:ids:hostile": Behaviour(
        "docs/sharing.md",
        "Equal ids, numeric strings, equal tokens and doubled ids of servers confuse nobody.",
    ),
    "record:told": Behaviour(
        "rule 4", "A broker that begins hears of every open call and every answer that was not written."
    ),
    "record:nothing-runs-twice": Behaviour(
        "rule 4", "A call in flight when the broker dies runs on, once, and its answer reaches its agent."
    ),
    "record:leases": Behaviour("rule 4", "Leases outlive the broker."),
    "record:two-brokers": Behaviour(
        "rule 4", "A long answer that two brokers in a row did not pass on is told as lost to the next one."
    ),
    "record:bounded": Behaviour(
        "rule 4", "Kept answers are bounded in bytes; one that had to go is told as lost, never run again."
    ),
    "record:pools-stay": Behaviour(
        "rule 4", "No server goes because a broker that has just begun does not know all sessions yet."
    ),
    "record:interests": Behaviour(
        "rule 4", "Levels and subscriptions outlive the broker; what changed meanwhile counts as changed."
    ),
    "asks:lost-link": Behaviour(
        "docs/sharing.md",
        "What agents were asked is answered with an error when broker and supervisor lose touch.",
    ),
    "roots:declared-where-configured": Behaviour(
        "rule 6", "Roots are declared to a server only where its configuration says so, and answered by us."
    ),
    "roots:part-of-the-key": Behaviour("rule 6", "Two sets of roots never share an instance."),
    "roots:of-the-agent": Behaviour(
        "rule 6", "With `roots: agent` the agent is asked; without roots its workspace is the answer."
    ),
    "roots:changes-rekey": Behaviour("rule 6", "roots/list_changed re-keys the session, never the process."),
    "roots:turns": Behaviour(
        "rule 6", "Roots are applied in turns: whose sessions name others all the time holds up nobody else."
    ),
    "classes:declared": Behaviour(
        "rule 12",
        "A plain instance is greeted with nothing declared, an asking one with all there is to ask.",
    ),
    "classes:apart": Behaviour(
        "rule 12", "Agents that can be asked and agents that cannot each see the server as greeted for them."
    ),
    "classes:merged": Behaviour(
        "rule 12", "A server with equal catalogs that never asked serves both classes from one pool."
    ),
}

_SHARING: Final = {
    "modes:concurrent": Behaviour(
        "docs/sharing.md", "Many calls on one instance, the least busy instance first."
    ),
    "modes:serial": Behaviour(
        "docs/sharing.md", "A serial instance runs one call that can ask at a time; the pool grows instead."
    ),
    "modes:session": Behaviour(
        "docs/sharing.md", "A session has its instance to itself: two agents, two counters."
    ),
    "modes:auto:order": Behaviour(
        "docs/sharing.md",
        "Configuration beats the list, the list beats tool names, evidence only ever tightens.",
    ),
    "modes:auto:unverified": Behaviour(
        "docs/sharing.md", "A server nobody knows is concurrent and shown as unverified; a probe verifies it."
    ),
    "modes:new-placements": Behaviour("docs/sharing.md", "A new verdict holds for new placements only."),
    "modes:list-sourced": Behaviour("docs/sharing.md", "Every entry of the shipped list has a source."),
    "modes:verdicts-kept": Behaviour("docs/sharing.md", "Evidence is kept on disk and survives restarts."),
    "modes:evidence-of-its-own": Behaviour(
        "docs/sharing.md",
        "What a project's server does is no evidence about another project's server under the same words.",
    ),
    "modes:why": Behaviour("docs/sharing.md", "`carpool why` tells mode, evidence and how to change it."),
    "modes:probe": Behaviour(
        "docs/sharing.md",
        "`carpool check --probe` tells from two sessions whether they see each other's state.",
    ),
    "lease:exclusive": Behaviour("rule 15", "A leased instance runs only calls of its holder."),
    "lease:with-holder": Behaviour("rule 15", "The lease dies with its holder, and its instance with it."),
    "lease:absent-makes-room": Behaviour(
        "docs/sharing.md",
        "An agent over HTTP without a connection loses its instance to one that waits, and is told.",
    ),
    "lease:shared-out": Behaviour(
        "rule 15",
        "While an agent waits, the token or session with most instances gives its longest idle one back.",
    ),
    "lease:returned-ended": Behaviour("rule 15", "A returned instance is ended, never handed on."),
    "lease:idle": Behaviour(
        "rule 15", "A lease ends after its idle limit and its holder is told; none in use does."
    ),
    "lease:crash:one-state-lost": Behaviour(
        "rule 15",
        "A lease lost to a crash gives its holder one state_lost, not executed, then a fresh instance.",
    ),
    "lease:reload": Behaviour("rule 15", "A lease that a reload ends is told at the new pool."),
    "lease:supervisor-restart": Behaviour(
        "rule 15", "A lease that ended with the supervisor is told to its holder."
    ),
    "death:broker-frees-plain": Behaviour(
        "rule 15", "What a plain connection had is free as soon as another broker is there."
    ),
    "lease:everything-died": Behaviour(
        "rule 15", "A lease that ended with all of carpool is told to its holder, and to nobody else."
    ),
    "lease:every-call-hears": Behaviour(
        "rule 15",
        "Every call that was read before `state_lost` was written to its agent hears it; later ones run.",
    ),
    "lease:never-silently": Behaviour(
        "rule 15", "No call of a session runs on another instance than its last without a state_lost before."
    ),
    "lease:next-in-line": Behaviour(
        "docs/sharing.md", "When a lease ends who waits longest has a new instance at once."
    ),
    "lease:spares": Behaviour(
        "docs/sharing.md", "A warm spare makes a lease instant and outlives no use of its pool."
    ),
    "lease:holders-shown": Behaviour("docs/sharing.md", "`ps` and `status` show who holds what."),
    "wait:ask-stops-idle": Behaviour(
        "rule 14", "While a question is open the call's idle limit stands still."
    ),
    "wait:ask-timeout": Behaviour(
        "rule 14", "A question nobody answers in ask_timeout_s ends with an error."
    ),
    "wait:parked-gives-way": Behaviour(
        "rule 14",
        "A parked call whose agent stays away ends in time for another principal that waits for an instance.",
    ),
    "wait:bounded": Behaviour("rule 14", "Waiting for an instance is bounded in calls, bytes and time."),
    "stateless:private": Behaviour(
        "docs/architecture.md",
        "Stateless agents without a token share no answer that its server calls private.",
    ),
    "http:unread": Behaviour(
        "docs/http.md",
        "A client of an HTTP door that does not read gets no further answers, and what it leaves unread is "
        "bounded, on one connection and on all of its token.",
    ),
    "http:turns": Behaviour(
        "docs/http.md",
        "However many connections of an HTTP door bring requests at once, it does few of them before it "
        "looks at anything else, and bearer tokens take turns; all clients without a good one count as one.",
    ),
    "http:turns:time": Behaviour(
        "docs/http.md",
        "Requests that take the HTTP door longer than others of their length are few in each turn, and count "
        "by the time that they take.",
    ),
    "http:turns:bodies": Behaviour(
        "docs/http.md",
        "Long bodies that are complete at the same time are read one by one, and each counts by its length "
        "in the turns of its bearer token.",
    ),
    "http:small-parts": Behaviour(
        "docs/http.md",
        "A request that comes in very many very small parts (chunks, headers, trailers) does not hold up "
        "other clients of an HTTP door: in one turn little of a connection is read, and the request is "
        "refused.",
    ),
    "client:half-pairs": Behaviour(
        "rule 16",
        "A verb shows a text with half of a surrogate pair with a replacement character in its place.",
    ),
    "http:half-pairs": Behaviour(
        "rule 16",
        "Over HTTP, an answer with half of a surrogate pair in it ends its request as any other answer does.",
    ),
    "http:shares": Behaviour(
        "docs/http.md",
        "No bearer token takes all HTTP sessions or connections, nor do connections that show none.",
    ),
    "http:shares:processes": Behaviour(
        "docs/http.md",
        "Without tokens in the file a process that holds its connections gets no more than three quarters of "
        "them, and others are served up to the bound.",
    ),
    "http:shares:bodies": Behaviour(
        "docs/http.md",
        "Bodies and unfinished headers of one bearer token, and of clients without one, leave room for those "
        "of others.",
    ),
    "http:shares:kept": Behaviour(
        "docs/http.md",
        "What the HTTP door keeps of one bearer token, for a later broker and of events for `Last-Event-ID`, "
        "leaves room for that of others.",
    ),
    "http:shares:waiting": Behaviour(
        "docs/http.md",
        "Requests of one bearer token that wait for the broker, for what it must tell first, or for the next "
        "HTTP door, leave room for those of others.",
    ),
    "http:proxied": Behaviour(
        "docs/http.md", "A door without tokens refuses what came through a proxy, whoever runs that."
    ),
    "wait:last-places": Behaviour(
        "rule 14", "The last eighth of an instance's places is for agents and tokens that hold few of them."
    ),
    "wait:fair-tokens": Behaviour(
        "docs/sharing.md", "Calls that wait take turns by bearer token: more sessions do not get more turns."
    ),
    "wait:fair": Behaviour(
        "docs/sharing.md", "Sessions take turns: one with many calls delays another by one turn."
    ),
    "wait:own-lane": Behaviour(
        "rule 14", "Who waits for a lane held by its own asking call gets another, or an answer at once."
    ),
    "wait:progress": Behaviour("docs/sharing.md", "An agent that asked for progress sees that it waits."),
    "wait:cap": Behaviour(
        "rule 14", "At the process cap the least recently used idle instance makes room, never one with work."
    ),
    "wait:slot-for-each": Behaviour("rule 14", "Every server with demand is sure of one slot."),
    "wait:room-beside-drains": Behaviour(
        "rule 14", "At the process cap idle instances make room also while others drain, one for each need."
    ),
    "wait:cap-yields-lease": Behaviour(
        "rule 14", "A session that waits while it holds an idle lease is the first whose lease ends."
    ),
}

_TASKS: Final = {
    "tasks:hidden": Behaviour("docs/decisions/0011", "Agents are told of no tasks."),
    "tasks:driven": Behaviour(
        "docs/decisions/0011, 2025-11-25 basic/utilities/tasks",
        "A tool that must be run as a task works: the task is driven inside and its result is the answer.",
    ),
    "tasks:cancelled": Behaviour(
        "2025-11-25 basic/utilities/tasks", "A cancel of such a call cancels its task."
    ),
    "tasks:progress": Behaviour("2025-11-25 basic/utilities/tasks", "Its progress reaches the agent."),
    "tasks:relayed": Behaviour(
        "2026-07-28 SEP-2663",
        "A task of a stateless server is its agent's to ask for, and all about it goes where it runs.",
    ),
    "tasks:own-id": Behaviour(
        "2026-07-28 SEP-2663, docs/decisions/0011",
        "A task is found by the session that it was begun for; others' ids are nobody's, word for word.",
    ),
    "tasks:undeclared": Behaviour(
        "2026-07-28 SEP-2663",
        "Who has not declared tasks gets none and reads what is missing; where no server has any, none are.",
    ),
    "tasks:listened": Behaviour(
        "2026-07-28 SEP-2663", "A listen hears how far its agent's own tasks are, and of nobody else's."
    ),
    "tasks:held": Behaviour(
        "docs/decisions/0011",
        "An instance is kept while it runs tasks that an agent can ask for, within their time.",
    ),
    "tasks:end-with-agent": Behaviour(
        "docs/decisions/0011", "The tasks of an agent that is gone are cancelled."
    ),
}

_STREAMS: Final = {
    "streams:many-sessions": Behaviour("rule 9", "One connection carries many sessions, each on its stream."),
    "streams:own-exchange": Behaviour(
        "rule 9", "What belongs to a request travels on its exchange, and its answer is the last of it."
    ),
    "streams:equal-ids": Behaviour("rule 9", "Agents who know nothing of each other may use equal ids."),
    "streams:gone-cancels": Behaviour(
        "2026-07-28 basic/transports", "A stateless client that goes away cancels its request."
    ),
    "streams:gone-is-no-cancel": Behaviour(
        "2025-11-25 basic/transports", "A client of the handshake era that goes away cancels nothing."
    ),
    "streams:garbage": Behaviour(
        "rule 9", "One client's garbage is its own; only a broken frame ends the connection."
    ),
    "streams:one-server": Behaviour(
        "docs/http.md", "A session may see one server, under that one's own names."
    ),
    "streams:frozen-door": Behaviour(
        "rule 9", "A door that does not read is cut off and hurts no other carrier."
    ),
    "streams:large-output": Behaviour(
        "docs/decisions/0014", "No amount of output for one principal ends the connection of all."
    ),
}

_DOOR: Final = {
    "reattach:http": Behaviour(
        "rule 4",
        "Clients of the HTTP door notice a pause and nothing else when the broker dies, in both eras.",
    ),
    "reattach:http:asks": Behaviour(
        "rule 4",
        "A question that came over HTTP before the broker died is shown once, and its answer arrives.",
    ),
    "reattach:http:given-up": Behaviour(
        "rule 4", "Where no broker comes back what is open over HTTP is answered, and sessions end."
    ),
    "reattach:http:bounded": Behaviour(
        "rule 3", "What the HTTP door keeps for a later broker is bounded; what does not fit is told as lost."
    ),
    "reattach:http:door": Behaviour(
        "rule 9",
        "A session outlives its HTTP door: the next one asks the broker for it by its `Mcp-Session-Id`.",
    ),
    "http:sessions": Behaviour(
        "2025-11-25 basic/transports",
        "A client of the handshake era has a session with an id that only its own path and token may use.",
    ),
    "http:json-first": Behaviour(
        "docs/http.md", "A POST is answered as plain JSON unless progress or a question needs a stream."
    ),
    "http:own-stream": Behaviour("rule 9", "A question and progress come on the stream of their own POST."),
    "http:resumption": Behaviour(
        "2025-11-25 basic/transports",
        "A client that comes back gets the rest of its own stream, and nothing of another's.",
    ),
    "http:sessionless": Behaviour(
        "docs/http.md", "With `http.stateless` handshake-era POSTs are served without a session id."
    ),
    "http:arrays": Behaviour(
        "2025-03-26 basic/transports",
        "Each request of an array over HTTP has one answer, its own, whichever others are cancelled.",
    ),
    "http:2024": Behaviour("docs/http.md", "Clients of 2024-11-05 are served on its transport."),
    "http:stateless:post-only": Behaviour(
        "2026-07-28 basic/transports/streamable-http", "In the stateless era there is POST and nothing else."
    ),
    "http:stateless:headers": Behaviour(
        "2026-07-28 basic/transports/streamable-http",
        "Headers that do not say what the body says are refused with -32020, `Mcp-Param-*` too.",
    ),
    "http:stateless:statuses": Behaviour(
        "2026-07-28 basic/transports/streamable-http",
        "An error of the stateless era has the HTTP status that the specification gives it.",
    ),
    "http:stateless:hang-up": Behaviour(
        "2026-07-28 basic/transports/streamable-http", "A stateless client that hangs up cancels its request."
    ),
    "http:one-server": Behaviour("docs/http.md", "`/mcp/s/SERVER` is one server under its own names."),
    "http:health": Behaviour("docs/http.md", "`/health` tells programs how carpool is, by its status too."),
    "http:tools-json": Behaviour("docs/http.md", "`GET /mcp/tools` is the whole list as JSON."),
    "http:tools-json-bounds": Behaviour(
        "docs/http.md",
        "A request for the list of tools as JSON counts as open, and those for the same list share it.",
    ),
    "http:host-origin": Behaviour(
        "docs/http.md",
        "Only names of this machine, and pages of it, are let in, whatever tricks they are spelled with.",
    ),
    "http:tokens": Behaviour(
        "docs/http.md", "With tokens nobody comes in without one, and each comes in as itself."
    ),
    "http:tokens:elsewhere": Behaviour(
        "docs/http.md", "A door that others than this machine could use is not opened without tokens."
    ),
    "http:tokens:at-once": Behaviour(
        "docs/security.md",
        "A token that is taken out of the file is worth nothing at once, whatever else of the file is broken "
        "or cannot be served; a broken file admits nobody new.",
    ),
    "http:tokens:unread": Behaviour(
        "docs/security.md",
        "Answers that the client of a token has not read yet when the token is revoked are dropped.",
    ),
    "workspaces:tokens": Behaviour(
        "docs/workspaces.md",
        "A token that is bound to workspaces works in these only, whatever its agents ask for.",
    ),
    "http:tokens:wrong": Behaviour(
        "docs/security.md",
        "Wrong tokens are counted, told in the log and the audit with their address, and answered late; a "
        "right one from the same address is not held up.",
    ),
    "http:limits:free": Behaviour(
        "docs/http.md", "Where no token is asked for, a body has at most 64 KiB, however it is sent."
    ),
    "http:tokens:generated": Behaviour(
        "docs/http.md",
        "A door whose file names no token makes one, which only its user can read, and needs it.",
    ),
    "http:not-open": Behaviour(
        "docs/http.md",
        "A door that cannot open is an exit code of `carpool up` and a reason in `carpool status`; agents on "
        "the Unix socket are served.",
    ),
    "cli:output": Behaviour(
        "docs/json.md", "A verb whose output cannot be written says so in one line and ends with 1."
    ),
    "cli:start-up": Behaviour(
        "docs/terminal.md", "`--version` imports no command line, `status` and `ps` only what they use."
    ),
    "cli:filters": Behaviour(
        "docs/terminal.md",
        "`status` and `ps` show the servers, sessions and states that are asked for; tokens have names.",
    ),
    "cli:completion": Behaviour(
        "docs/terminal.md",
        "A shell completes names that carpool knows: nothing is started, nothing is waited for long.",
    ),
    "cli:tables": Behaviour(
        "docs/terminal.md", "A table fits the terminal; in a pipe or a file nothing of it is cut."
    ),
    "cli:colours": Behaviour(
        "docs/terminal.md",
        "Only a terminal gets colours, unless NO_COLOR, TERM=dumb or FORCE_COLOR say otherwise.",
    ),
    "logs:format": Behaviour(
        "docs/files.md#logs",
        "Each log line is one printable line of JSON; no peer's text forges a line or plays with a terminal.",
    ),
    "logs:bounded": Behaviour(
        "docs/files.md", "A process of carpool that runs for long keeps its log bounded and loses no line."
    ),
    "pressure:answers-of-carpool": Behaviour(
        "docs/operating.md",
        "Answers to a server's own requests that it does not read are bounded: it is not read meanwhile.",
    ),
    "flood:stdout": Behaviour(
        "docs/operating.md",
        "A server that floods its stdout is read slowly, and its calls go on.",
    ),
    "flood:endless-line": Behaviour(
        "docs/operating.md",
        "A line over the cap is a flood while it goes on, and all that write one take the time of one flood.",
    ),
    "logs:flood": Behaviour(
        "docs/files.md", "Of a server that floods stderr the log has a part, and says how much it leaves out."
    ),
    "logs:by-time": Behaviour(
        "docs/files.md#logs", "`carpool logs` shows all logs by time, also those of earlier versions."
    ),
    "logs:server": Behaviour(
        "docs/files.md#logs", "`carpool logs SERVER` shows its output, and what carpool did to its processes."
    ),
    "logs:why-ended": Behaviour(
        "docs/files.md#logs", "The log says in one line why an instance has ended, also if carpool ended it."
    ),
    "http:check": Behaviour(
        "docs/http.md", "`carpool check` tells why the HTTP door could not open, before it is to open."
    ),
    "http:retried": Behaviour(
        "docs/http.md",
        "A door whose port is taken opens by itself once it can, wherever its address is from.",
    ),
    "http:limits": Behaviour(
        "docs/http.md",
        "Headers, bodies, sessions, requests and slow clients are bounded, and nobody else pays for one.",
    ),
    "http:limits:open": Behaviour(
        "docs/http.md",
        "A request counts against `http.max_open` until it is answered or ended, whoever waits for it and "
        "however it came.",
    ),
    "http:bounds-at-once": Behaviour(
        "docs/http.md",
        "A changed bound of the HTTP door holds at once; no request waits for that, and no call ends.",
    ),
    "handover:address": Behaviour(
        "docs/decisions/0054",
        "The address of the HTTP door takes connections from its first bind to `carpool down`, whatever is "
        "restarted, replaced or upgraded meanwhile.",
    ),
    "handover:requests": Behaviour(
        "docs/decisions/0054",
        "A request that meets the restart of an HTTP door gets one answer; one that no server has got waits "
        "for the next door, and past the bounds it is refused as not delivered.",
    ),
    "handover:keep-alive": Behaviour(
        "docs/decisions/0054",
        "A connection of an HTTP client outlives `carpool restart --all`, also with a request that was just "
        "sent.",
    ),
    "handover:ends": Behaviour(
        "docs/decisions/0054",
        "Nothing listens after `carpool down`, after the death of all processes, without a next launcher, "
        "and where the configuration wants no door or another address.",
    ),
    "service:handover": Behaviour(
        "docs/operating.md",
        "A service manager keeps the listening socket and the connections over a restart, and may open the "
        "socket itself.",
    ),
    "http:own-process": Behaviour(
        "docs/http.md",
        "The door may die and come back, and so may the broker behind it: every open request is answered.",
    ),
}

_PRIVATE: Final = {
    "private:files": Behaviour(
        "docs/security.md",
        "Every directory, file and socket that carpool makes is its user's alone, whatever the umask.",
    ),
    "private:places": Behaviour(
        "docs/security.md",
        "A directory or a file that another user owns, or could replace, is refused and not used.",
    ),
    "private:peers": Behaviour(
        "docs/security.md",
        "No process of another user is let in, and nothing is said to another user's socket.",
    ),
    "private:http": Behaviour(
        "docs/security.md",
        "A door without tokens serves the processes of its own user only, on loopback too.",
    ),
    "private:shares": Behaviour(
        "docs/security.md", "One process cannot take all connections to the broker's socket from the others."
    ),
    "private:core-dumps": Behaviour(
        "docs/security.md",
        "Processes of carpool that hold secrets write no core dump; servers keep the user's own limit.",
    ),
    "private:environment": Behaviour(
        "rule 13", "Whose variables an agent has its carrier says, and no line of the agent itself."
    ),
    "private:no-secret-is-told": Behaviour(
        "docs/security.md",
        "No environment value, argument, header or token is in a log, an error, a report, a command line or "
        "a journal of ours.",
    ),
    "private:masked-spellings": Behaviour(
        "docs/security.md",
        "A value is masked in what a server or a hook says also where it is escaped or encoded: as in JSON, "
        "in a URL, by repr or in base64.",
    ),
}

_INPUT: Final = {
    "bad-input:operators": Behaviour(
        "docs/architecture.md",
        "Whatever an operator asks of a running carpool has one answer and breaks nothing.",
    ),
    "bad-input:shim": Behaviour(
        "docs/architecture.md",
        "Whatever passes through a shim arrives as it was, and its session can go on after it.",
    ),
    "boundary:one-answer": Behaviour(
        "docs/architecture.md",
        "However agents come, stop, answer late, leave and lose their broker, each request has one answer, "
        "none runs twice, and no other agent notices.",
    ),
    "leave:between-bursts": Behaviour(
        "docs/decisions/0031",
        "A session ends between two bursts, never within a write to it, and no other session notices.",
    ),
    "leave:everybody-told": Behaviour(
        "docs/decisions/0031",
        "An end that is meant is told to every carrier, though another cannot be written to.",
    ),
    "bad-input:agents": Behaviour(
        "docs/architecture.md",
        "Whatever an agent or carrier writes, each request has one answer, and no other notices.",
    ),
    "bad-input:servers": Behaviour(
        "docs/architecture.md",
        "Whatever a server writes, each call of it has one answer, and agents of others do not notice.",
    ),
    "bad-input:http": Behaviour(
        "docs/architecture.md",
        "Whatever is posted, the answer is HTTP and JSON, there is one, and no other client notices.",
    ),
    "bad-input:link": Behaviour(
        "docs/architecture.md",
        "Whatever comes over the link, from whom and in what order, no invariant breaks.",
    ),
    "bad-input:files": Behaviour(
        "docs/architecture.md",
        "Whatever stands in a file of ours, it is read, set aside or refused with a sentence.",
    ),
    "bad-input:terminal": Behaviour(
        "docs/architecture.md",
        "Nothing that a server, an agent or a log says is obeyed by the terminal it is shown on.",
    ),
    "bad-input:live": Behaviour(
        "docs/architecture.md",
        "Hostile agents, servers and strangers on the link do not disturb a daemon or its agents.",
    ),
}

_FAULTS: Final = {
    "faults:matrix": Behaviour(
        "docs/architecture.md",
        "Whoever is killed and whenever, each open request has one true end, and nothing is left behind.",
    ),
}

_CONFIG: Final = {
    "config:shapes": Behaviour(
        "docs/settings.md",
        "Other programs' files are read as they are, each by a written table of its keys.",
    ),
    "config:name-used-once": Behaviour(
        "docs/settings.md", "A name used twice is an error that names both places."
    ),
    "config:numbers-from-variables": Behaviour(
        "docs/settings.md", "A text from a variable is read as the number or switch that is wanted there."
    ),
    "workspaces:found-upward": Behaviour(
        "rule 19",
        "The workspace is the nearest parent with a project file, else the git root, else the directory.",
    ),
    "workspaces:shadow": Behaviour(
        "docs/workspaces.md",
        "Of several project files in a directory the first counts, and the others are named.",
    ),
    "workspaces:one-file-once": Behaviour(
        "docs/workspaces.md",
        "A file that is the user's own configuration, by whatever path, link or `include`, is no project "
        "file as well: no trust is asked for it and it shadows nothing.",
    ),
    "workspaces:override": Behaviour(
        "docs/workspaces.md",
        "A trusted project's server takes the place of the user's for its sessions only.",
    ),
    "workspaces:one-instance": Behaviour(
        "docs/workspaces.md",
        "Servers of two workspaces that launch alike share an instance; otherwise they do not.",
    ),
    "workspaces:named": Behaviour(
        "docs/workspaces.md",
        "The user's file names workspaces: who works below the root of one is in it, the nearest root "
        "counts, and its servers lie between everybody's and the project's.",
    ),
    "workspaces:moved": Behaviour(
        "docs/workspaces.md",
        "A session goes to another workspace without reconnecting: it sees what is there, changed lists are "
        "told, leases are returned, and open calls finish where they run.",
    ),
    "workspaces:moved-variables": Behaviour(
        "docs/workspaces.md",
        "Variables that a session's servers use since it moved, or since a reload, are asked of its carrier.",
    ),
    "workspaces:moved-subscriptions": Behaviour(
        "docs/workspaces.md",
        "After a move a subscription is told as changed, and where its server is not there that ends it.",
    ),
    "workspaces:roots-move": Behaviour(
        "docs/workspaces.md",
        "An agent whose roots change goes to the workspace of the first one, unless one was named for it.",
    ),
    "workspaces:moved-survives": Behaviour(
        "docs/workspaces.md",
        "A session that has moved to another workspace is there after a death of the broker, too.",
    ),
    "workspaces:disk": Behaviour(
        "docs/workspaces.md",
        "A disk that does not answer keeps nobody waiting but those whose files are there, and these only "
        "for a while: their agents are told, and what is there counts once it can be read.",
    ),
    "lists:offline": Behaviour(
        "docs/names.md",
        "A `tools_file` alone is a server that is well and offline: its tools are listed, nothing starts, "
        "and calls are refused at once.",
    ),
    "silence:greeting-told": Behaviour(
        "docs/json.md",
        "A server that has answered nothing to its greeting for some seconds is told in the log, in status, "
        "by the doctor and in the refusal of calls.",
    ),
    "looking:starts-nothing": Behaviour(
        "docs/workspaces.md",
        "A verb that only reads starts no server and ends none, whatever the configuration of its directory "
        "or the variables of its shell are.",
    ),
    "looking:own-view": Behaviour(
        "docs/terminal.md",
        "`carpool status` judges a server by the variables and the directory of the shell that asks.",
    ),
    "lists:start-reads-again": Behaviour(
        "docs/names.md",
        "`carpool start` of a running server has its lists read again by the same process.",
    ),
    "pools:outlive-sessions": Behaviour(
        "docs/workspaces.md",
        "A server of a project, a workspace or an agent's variables stays for `pool.idle_s` after its last "
        "session, with its failures; trust that is taken back ends it at once.",
    ),
    "workspaces:auto-connect": Behaviour(
        "docs/workspaces.md", "What starts by itself in a workspace starts with the first session there."
    ),
    "workspaces:attach": Behaviour(
        "docs/workspaces.md",
        "A session is put into a workspace by name, over HTTP as well; an unknown one is refused with those "
        "that are known.",
    ),
    "trust:asked": Behaviour("rule 19", "Nothing of a project runs before its very bytes are trusted."),
    "trust:directory": Behaviour(
        "rule 19",
        "Nothing of the directory that an agent or a person starts carpool in becomes a part of it.",
    ),
    "places:in-force": Behaviour(
        "docs/files.md",
        "`CARPOOL_CONFIG` may lead to a file in a project while the carpool that runs has this very file: "
        "it can be looked at, used and ended.",
    ),
    "places:project": Behaviour(
        "rule 19",
        "A configuration, state or runtime directory that the environment names inside a project is not "
        "followed before the user trusts the place; shim, verbs and Python client give the same answer.",
    ),
    "path:login": Behaviour(
        "docs/decisions/0037, rule 13",
        "Programs of servers are looked up in the PATH of the user's login shell, then in that of carpool's "
        "start, without relative directories; those of projects count only if the login shell names them.",
    ),
    "path:clones": Behaviour(
        "docs/security.md, docs/decisions/0037",
        "A directory that the user's login shell names is hers, also in a git clone such as `~/.nvm`: "
        "version managers, shims and `#!/usr/bin/env` programs work. A project's directory in an inherited "
        "PATH does not count.",
    ),
    "path:no-answer": Behaviour(
        "docs/decisions/0037",
        "A login shell that hangs, prints something else, fails or is not there costs a line in the log, and "
        "nothing that it has started is left.",
    ),
    "config:other": Behaviour(
        "docs/files.md",
        "A carpool that runs with another configuration than that of whoever asks says so: in `status` and "
        "`doctor`, on the stderr of `connect`, and in the instructions or the refusal that an agent reads.",
    ),
    "config:second-carpool": Behaviour(
        "docs/files.md",
        "Two carpools with one configuration in two runtime directories are told to whoever starts the "
        "second one, and in `status` and `doctor`.",
    ),
    "path:late": Behaviour(
        "docs/settings.md",
        "A login shell that takes longer than starts wait for it is heard for a minute: its PATH counts from "
        "then on.",
    ),
    "path:told": Behaviour(
        "docs/decisions/0037",
        "`status`, `check` and `start` show the PATH of servers, and say which missing program the caller "
        "has.",
    ),
    "path:operator": Behaviour(
        "docs/decisions/0037, rule 13",
        "A start by `carpool up` fills in the variables of servers with `auto_connect` from its environment, "
        "for these names and servers only; one by an agent fills in nothing.",
    ),
    "trust:prompt": Behaviour(
        "rule 19", "Names that an untrusted project has chosen are no text in what agents are told of it."
    ),
    "trust:flags": Behaviour(
        "rule 19",
        "The question points out every variable that may change what a command does; a trusted file in which "
        "one is newly pointed out is asked about again; names that define shell functions are refused.",
    ),
    "trust:asked-again": Behaviour("rule 19", "After any change of a project's files trust is asked again."),
    "trust:no-takeover": Behaviour(
        "rule 19", "While a project waits for trust the user's own server of the same name stays in force."
    ),
    "config:schema": Behaviour(
        "docs/settings.md", "The schema for editors takes what the reader takes and knows no other key."
    ),
    "config:check-merged": Behaviour(
        "docs/settings.md", "`carpool check` shows what is in force here and where each value came from."
    ),
    "http:health:frozen": Behaviour(
        "docs/http.md",
        "While broker or supervisor is silent `/health` names it within a second, with the last known state.",
    ),
    "status:operators": Behaviour(
        "docs/json.md",
        "What a `carpool` verb brings makes no server wanted or amiss in `/health` and in the `status` of "
        "others.",
    ),
    "config:in-force": Behaviour(
        "docs/settings.md", "Every verb works on the configuration file that the running carpool was given."
    ),
    "config:edited": Behaviour(
        "docs/settings.md",
        "`carpool add` and `remove` change one server of a file and leave the rest as it was written.",
    ),
    "lists:any-starter": Behaviour(
        "README.md, docs/decisions/0021",
        "Lists and instructions are there at once whoever starts carpool: they are found by server, command "
        "and the environment of its entry, not by that of the starter.",
    ),
    "lists:from-disk": Behaviour(
        "docs/names.md",
        "Greeting and lists are answered from what a server told an earlier carpool; that starts nothing.",
    ),
    "lists:renewed": Behaviour(
        "docs/names.md",
        "A server that offers something else when it starts is told as list_changed, and kept.",
    ),
    "lists:readable": Behaviour(
        "rule 18",
        "An entry of one server that typed SDKs would not read does not cost their agents the whole list.",
    ),
    "tools-file:listed": Behaviour(
        "docs/files.md",
        "The tools of a `tools_file` are listed while its server has not told its own, and while it is away.",
    ),
    "tools-file:bad": Behaviour(
        "docs/files.md",
        "A `tools_file` that cannot be used is told with its line and concerns its server only.",
    ),
    "call:dry-run": Behaviour(
        "docs/json.md",
        "Arguments are checked against the listed schema without a server; no problem quotes a value.",
    ),
    "lists:broken-file": Behaviour(
        "docs/names.md",
        "A kept list that is not as it was written is passed over with one line, and replaced.",
    ),
    "metrics:names": Behaviour(
        "docs/metrics.md", "`/metrics` has the metrics that the page lists, summed from the counters."
    ),
    "metrics:alerts": Behaviour(
        "docs/metrics.md", "The alert rules use metrics that exist, and fire in the cases that they name."
    ),
    "metrics:access": Behaviour(
        "docs/metrics.md", "Metrics are only for a client that may see every server."
    ),
    "doctor:repair": Behaviour(
        "docs/problems.md", "Each problem that `carpool doctor` finds comes with the line that repairs it."
    ),
    "setup:tried": Behaviour(
        "docs/setup.md",
        "Setup starts each stdio server once before it moves it, unless told not to. One that does not "
        "work stays in its file with the reason; one that needs a variable or a login is moved and named; "
        "nothing is left running.",
    ),
    "starts:told": Behaviour(
        "docs/start.md",
        "Each server that `carpool check --start` or setup starts is told as soon as it is decided; a "
        "failure that repeats itself word for word decides it.",
    ),
    "doctor:faults": Behaviour(
        "docs/problems.md",
        "Each fault that a new user commonly meets leads to its repair, by `carpool doctor` or by its own "
        "message.",
    ),
    "doctor:fix": Behaviour(
        "docs/problems.md",
        "`carpool doctor --fix` asks before each repair, repairs nothing unasked without `--yes`, and its "
        "exit code tells the state after the repairs.",
    ),
    "operate:calls": Behaviour(
        "docs/operating.md", "`carpool calls` lists every open call with its state, its age and its instance."
    ),
    "operate:cancel": Behaviour(
        "docs/operating.md", "A call that an operator cancels gets one answer, which says if it may have run."
    ),
    "operate:pause": Behaviour(
        "docs/operating.md",
        "Calls of a paused server wait until it is resumed, for `wait_s` at most; open calls go on.",
    ),
    "operate:disconnect": Behaviour(
        "docs/decisions/0043",
        "An agent whose session an operator ends is told why; its calls end, and its shim stays away.",
    ),
    "operate:audited": Behaviour(
        "docs/audit.md",
        "Each act of an operator is a line of the audit: when, who, on what, with what outcome.",
    ),
    "status:asked-once": Behaviour(
        "docs/security.md",
        "The work for status pages does not grow with the number of those who ask at once.",
    ),
    "http:questions-once": Behaviour(
        "docs/http.md",
        "The broker is asked once for all HTTP requests that read the same at once, whoever hangs up.",
    ),
    "http:questions-bounded": Behaviour(
        "docs/http.md",
        "An operator has a bounded number of requests open over HTTP, until each is answered.",
    ),
    "operate:http": Behaviour(
        "docs/operating.md, docs/decisions/0045",
        "Over HTTP only an operator's token may read about all agents, and only a full one may act.",
    ),
    "web:same": Behaviour(
        "docs/web.md", "The page at the HTTP door's `/` shows the tables of `carpool top`, as they change."
    ),
    "web:waterfall": Behaviour(
        "docs/web.md",
        "While somebody watches, calls that end are shown with the times that they spent in each part.",
    ),
    "web:frozen": Behaviour(
        "docs/web.md",
        "A watcher gets the newest state when it reads. One that does not read costs nothing.",
    ),
    "web:proof": Behaviour(
        "docs/web.md",
        "A page sends a token only to a door that has proved that it knows it, and keeps it in memory only.",
    ),
    "web:access": Behaviour(
        "docs/web.md, docs/decisions/0053",
        "Whoever reads the figures has an operator's token or the page's key, or is a page of the door in a "
        "browser of its own user; logs and acts need the full right.",
    ),
    "web:sealed": Behaviour(
        "docs/web.md",
        "The page loads nothing from elsewhere, runs its own script only, and shows texts as text.",
    ),
    "web:errors": Behaviour(
        "docs/web.md", "The page explains each error code in the words of the page of errors."
    ),
    "web:verb": Behaviour(
        "docs/web.md",
        "`carpool web` prints the page's address with a code that counts once, or says why there is none.",
    ),
    "http:tokens:verbs": Behaviour(
        "docs/http.md",
        "`carpool token` adds, lists and revokes tokens in the file; the door ends those that have expired.",
    ),
    "operate:stop-all": Behaviour("docs/operating.md", "`carpool stop --all` stops every server."),
    "switch:live": Behaviour(
        "docs/json.md, rule 18",
        "A server that is disabled leaves every list at once, finishes what is open, and a call says so.",
    ),
    "switch:session": Behaviour(
        "docs/json.md", "A server that is disabled for one session is there for all others as it was."
    ),
    "switch:saved": Behaviour(
        "docs/json.md",
        "With `--save` the file says that a server is disabled, and every other byte of it stays.",
    ),
    "switch:kept": Behaviour(
        "docs/json.md", "A server that is disabled until carpool stops is so after any death of the broker."
    ),
    "config:last-good": Behaviour(
        "docs/settings.md",
        "A broken file leaves the last good reading in force, also for whoever takes the place of the dead.",
    ),
    "config:last-good-of-projects": Behaviour(
        "docs/settings.md, rule 19",
        "So does a project's file, as far as the very bytes of that reading are trusted then.",
    ),
    "config:included": Behaviour(
        "docs/settings.md", "Files that are included come, change and go, and their servers with them."
    ),
    "config:told-once": Behaviour(
        "IBM/mcp-context-forge #5346, Kuadrant/mcp-gateway #555",
        "A change of the file is told once to agents whose lists it changes, and otherwise to nobody.",
    ),
    "config:bounded": Behaviour(
        "docs/settings.md",
        "A configuration has so many files and so many bytes; whoever reads it stops there.",
    ),
}

_PYTHON: Final = {
    "errors:first-words": Behaviour(
        "rule 7, docs/errors.md",
        "What a server that ended before it had greeted said last is part of the error; of others it is not.",
    ),
    "python:run": Behaviour(
        "docs/python.md",
        "A server may be a Python module: its public functions are tools, of a supervised child.",
    ),
    "python:schemas": Behaviour(
        "docs/python.md",
        "A function's types, models, defaults and docstring are what agents read of its tool.",
    ),
    "python:untyped": Behaviour(
        "docs/python.md",
        "A function without types takes any arguments, and that is said; `strict` refuses it.",
    ),
    "python:failures": Behaviour(
        "docs/python.md",
        "A module that cannot be offered says why in the error; an exception is the tool's own.",
    ),
    "python:stdout": Behaviour(
        "docs/python.md", "What a module prints, or a child of it, is not read as an answer."
    ),
    "python:side-by-side": Behaviour("docs/python.md", "A slow function of a module holds up no other call."),
}

_CLIENT: Final = {
    "client:concurrent": Behaviour(
        "docs/client.md",
        "A Python program has any number of calls open, and each answer reaches its own caller.",
    ),
    "client:cancel": Behaviour(
        "docs/client.md",
        "A call whose cancel scope ends is cancelled at the server; nothing of it comes later.",
    ),
    "client:timeout": Behaviour(
        "docs/client.md",
        "A call of a Python program that takes too long is cancelled and raises a TimeoutError.",
    ),
    "client:errors": Behaviour(
        "docs/client.md",
        "Each way to fail raises its own exception: what may not be is a PermissionError. It says whose "
        "doing it is and whether a server has seen the call.",
    ),
    "client:results": Behaviour(
        "docs/client.md",
        "A result is kept whole; that a tool says it failed is no exception unless one asks for it.",
    ),
    "client:asks": Behaviour(
        "docs/client.md", "What servers ask a Python program its callbacks answer, or an error."
    ),
    "client:progress": Behaviour("docs/client.md", "Progress of a call is told to its caller, in order."),
    "client:news": Behaviour(
        "docs/client.md", "Log messages and changed lists are told to the program's callbacks."
    ),
    "client:no-daemon": Behaviour(
        "docs/client.md", "A Python program starts carpool, or hears as a ConnectionError that none is there."
    ),
    "client:reattach": Behaviour(
        "rule 4",
        "To a Python program the death of a broker is a pause: calls run once and are answered once.",
    ),
    "client:names": Behaviour(
        "docs/client.md",
        "A tool is called by any spelling, and by (server, tool) whatever its name came out as.",
    ),
    "client:operates": Behaviour(
        "docs/client.md", "A Python program starts, stops and switches servers, for all or for itself alone."
    ),
    "client:sync": Behaviour(
        "docs/client.md", "A program without an event loop has the same, from any thread."
    ),
    "client:looks": Behaviour(
        "docs/client.md",
        "A session is told which servers and tools it sees, and what any spelling of a name means.",
    ),
}

_ADAPTERS: Final = {
    "adapters:flat": Behaviour(
        "docs/function-calling.md",
        "Any result, sound or not, is one text a model reads, with sizes and URIs for bytes.",
    ),
    "adapters:schemas": Behaviour(
        "docs/function-calling.md",
        "Every schema becomes one that model APIs take, and says what of it they cannot be told.",
    ),
    "adapters:names": Behaviour(
        "docs/function-calling.md",
        "Whatever tools are called, model APIs get legal names, each once, that lead back.",
    ),
    "adapters:lists": Behaviour(
        "docs/function-calling.md",
        "Lists of tools for OpenAI's APIs and Anthropic's are read as MCP's, and made of them.",
    ),
    "adapters:calls": Behaviour(
        "docs/function-calling.md",
        "Every call that a model writes is answered in its API's shape, also what cannot be read.",
    ),
    "adapters:round-trip": Behaviour(
        "docs/function-calling.md",
        "A model's calls in each API's form run at once on real servers, and each is answered.",
    ),
    "adapters:strict": Behaviour(
        "docs/function-calling.md",
        "What a model writes in the strict form fits the tool's own schema; a schema without one says why.",
    ),
}

_HOOKS: Final = {
    "hooks:before": Behaviour(
        "docs/hooks.md", "A call that a hook is for is sent when the hook has let it pass, and no sooner."
    ),
    "hooks:after": Behaviour(
        "docs/hooks.md", "An answer that a hook is for is said when the hook has let it pass, and no sooner."
    ),
    "hooks:deny": Behaviour(
        "docs/hooks.md",
        "What a hook denies does not happen, or is not said; the error names the hook and its reason.",
    ),
    "hooks:rewrite": Behaviour(
        "docs/hooks.md",
        "A hook may rewrite arguments or a result; the next hook, server and agent see what it made of them.",
    ),
    "hooks:refused": Behaviour(
        "docs/hooks.md", "Hooks after calls hear of refused and lost ones, and change nothing about them."
    ),
    "hooks:failure": Behaviour(
        "docs/hooks.md",
        "A hook that fails, hangs or dies has calls refused or let through, as it is set for it.",
    ),
    "hooks:named": Behaviour(
        "docs/hooks.md",
        "`status` and `doctor` name a hook that fails or denies every call, and do not blame the server.",
    ),
    "hooks:once": Behaviour(
        "docs/hooks.md, rule 4",
        "Whatever hooks say and do, no call runs twice and none is left without its answer.",
    ),
    "hooks:broker-death": Behaviour(
        "docs/hooks.md, rule 4",
        "A call that hooks looked at when the broker died is new at the next; an answer is looked at again.",
    ),
    "hooks:reload": Behaviour("docs/hooks.md", "Hooks come, change and go with the file, while calls go on."),
    "hooks:apart": Behaviour(
        "docs/hooks.md", "A hook that hangs or dies takes neither the broker nor another hook's calls along."
    ),
    "hooks:nothing-left": Behaviour(
        "docs/hooks.md, rule 2",
        "Nothing that a hook has started outlives the process of the hook, whoever dies.",
    ),
    "hooks:the-users": Behaviour(
        "docs/hooks.md, rule 19",
        "Only the user's own file has hooks: a project's is refused one with a reason.",
    ),
    "hooks:page": Behaviour("docs/hooks.md", "The examples of docs/hooks.md work as they are printed."),
}

_START: Final = {
    "supervisors:several": Behaviour(
        "docs/decisions/0051-several-supervisors.md",
        "With several supervisors the death of one concerns only the servers that it runs.",
    ),
    "start:idle": Behaviour(
        "docs/settings.md",
        "A carpool that an agent started ends `idle_exit_s` after the last session of an agent, if it may.",
    ),
    "start:uninstall": Behaviour(
        "docs/start.md",
        "`carpool uninstall` undoes, ends and removes what is carpool's, and says what stays.",
    ),
    "start:first-run": Behaviour(
        "docs/start.md", "Where nothing is configured, verbs and agents hear how to get a first server."
    ),
    "start:help": Behaviour("docs/start.md", "The help lists verbs by purpose and describes each."),
    "start:messages": Behaviour(
        "docs/start.md", "Messages name only files and verbs that an installed carpool has."
    ),
    "start:wheel": Behaviour(
        "docs/start.md", "The wheel holds all of carpool and runs where nothing else of it is."
    ),
    "start:add-packages": Behaviour(
        "docs/start.md", "A message names the command that adds packages for the way carpool was installed."
    ),
    "start:old-python": Behaviour(
        "docs/start.md", "`make` names a Python that is missing or too old in one line, before anything else."
    ),
}

_PROGRAMS: Final = {
    "programs:clients": Behaviour(
        "docs/clients.md", "A client sees through carpool the tools and answers that it sees without."
    ),
    "programs:agents": Behaviour(
        "docs/clients.md", "The model of an agent program reads through carpool what it reads without."
    ),
    "programs:deaths": Behaviour(
        "docs/clients.md", "An agent program goes on after deaths and restarts of carpool and its servers."
    ),
    "programs:homes": Behaviour(
        "docs/clients.md", "An agent program finds its servers in homes of every usual shape."
    ),
    "programs:bridges": Behaviour(
        "docs/clients.md", "A bridge in front of carpool or behind it passes on what it does without carpool."
    ),
}

_CLUSTER: Final = {
    "cluster:reach": Behaviour(
        "docs/cluster.md", "An agent calls servers of other nodes as those of its own node."
    ),
    "cluster:features": Behaviour(
        "docs/cluster.md", "Every feature of MCP that a server has reaches an agent of another node."
    ),
    "cluster:asks": Behaviour(
        "docs/cluster.md", "A server's question reaches the agent of its call, at whichever node that is."
    ),
    "cluster:lists": Behaviour(
        "docs/cluster.md", "What a node gets or loses, agents of the other nodes are told."
    ),
    "cluster:deaths": Behaviour(
        "docs/cluster.md", "Any process of any node may die: what follows is a pause or an honest error."
    ),
    "cluster:state": Behaviour(
        "docs/cluster.md",
        "An agent is told that its state at another node is lost only if the server keeps state.",
    ),
    "cluster:cuts": Behaviour("docs/cluster.md", "A short cut between nodes costs a pause and no call."),
    "cluster:bytes": Behaviour(
        "docs/cluster.md", "Each byte of a session arrives once, in order, or the session ends."
    ),
    "cluster:memory": Behaviour(
        "docs/cluster.md",
        "What a node's process holds of long answers is bounded, and no node holds up another's sessions.",
    ),
    "cluster:many-servers": Behaviour(
        "docs/cluster.md",
        "Of one node a bounded number of servers is used, and few changes of its offer in a minute.",
    ),
    "cluster:links": Behaviour(
        "docs/cluster.md", "Order, loss and return mean the same on each kind of link."
    ),
    "cluster:rights": Behaviour("docs/cluster.md", "A profile says what agents of other nodes may use here."),
    "cluster:environment": Behaviour(
        "docs/cluster.md", "A server that needs its agent's environment or directory is local."
    ),
    "cluster:placement": Behaviour(
        "docs/cluster.md", "A server with `on` runs at nodes with its labels only."
    ),
    "cluster:names": Behaviour("docs/cluster.md", "A node's own server is used before one of another node."),
    "cluster:refusals": Behaviour(
        "docs/cluster.md", "An agent is told apart if a node refuses it for a moment, or until a change."
    ),
    "cluster:drain": Behaviour("docs/cluster.md", "A draining node keeps its sessions and gets no others."),
    "cluster:calls": Behaviour(
        "docs/cluster.md", "Open calls, sessions and sums tell what runs at other nodes from what runs here."
    ),
    "cluster:drain_by": Behaviour(
        "docs/cluster.md", "A node says which others may make it drain, and those that may not are told so."
    ),
    "cluster:acts": Behaviour("docs/audit.md", "Drains and leaves of nodes are acts in the audit."),
    "cluster:story": Behaviour(
        "docs/cluster.md",
        "The story of a call tells what happened at another node, to the node of its agent only.",
    ),
    "doctor:cluster": Behaviour(
        "docs/problems.md", "`carpool doctor` names what is wrong with the cluster, with the repair."
    ),
    "cluster:status": Behaviour(
        "docs/json.md", "`carpool status` and its JSON tell of the cluster and of each node in it."
    ),
    "top:nodes": Behaviour(
        "docs/top.md", "`carpool top` shows all nodes, and which node has a server, a session and a call."
    ),
    "counters:nodes": Behaviour("docs/counters.md", "A call that ran at another node counts for that node."),
    "cluster:leave": Behaviour(
        "docs/cluster.md", "A node that leaves takes its servers with it, and goes on alone."
    ),
    "cluster:keys": Behaviour("docs/cluster.md", "Over TCP only nodes with a known key are heard."),
    "cluster:tls": Behaviour(
        "docs/cluster.md",
        "With `tls://` only a NATS server whose certificate is accepted is spoken to.",
    ),
    "cluster:credentials": Behaviour(
        "docs/cluster.md",
        "A node that NATS refuses says why, and tries again with its files read anew.",
    ),
    "cluster:nats-rights": Behaviour(
        "docs/cluster.md", "With the rights of the page a node can speak as itself only."
    ),
    "cluster:fair": Behaviour(
        "docs/cluster.md", "The megabytes of one agent do not hold up the calls of another over a slow link."
    ),
    "cluster:hostile": Behaviour(
        "docs/cluster.md",
        "Whatever another node sends, it disturbs nobody and lets nothing grow.",
    ),
    "cluster:new": Behaviour("docs/cluster.md", "Two commands make a cluster on one machine."),
}

BEHAVIOURS: Final[dict[str, Behaviour]] = (
    _CONFIG
    | _CLUSTER
    | _PROGRAMS
    | _AUDIT
    | _COUNTERS
    | _PINS
    | _TRACES
    | _PROFILES
    | _SEARCH
    | _NAMES
    | _REMOTE
    | _SETUP
    | _RUNS
    | _CALLS
    | _FEATURES
    | _ASKS
    | _SHARING
    | _TASKS
    | _STREAMS
    | _DOOR
    | _PRIVATE
    | _INPUT
    | _FAULTS
    | _PYTHON
    | _CLIENT
    | _ADAPTERS
    | _HOOKS
    | _START
)
