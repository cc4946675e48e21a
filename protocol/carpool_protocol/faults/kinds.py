"""What can go wrong with a request: one table of every fault carpool itself can answer with.

Owns: each fault's slug, family, JSON-RPC code and sentences. Sorted by what the caller may do next:

- `refused`: policy or protocol says no; asking again the same way is pointless. Never delivered.
- `unavailable`: not started, so safe to repeat. Never delivered.
- `lost`: it was written to a server; the outcome is unknown or unusable. Delivered: maybe.

Invariants: a fault that may have been delivered is always `lost` (tools have side effects: this line is
the most important one in the product). Codes of our own lie outside -32768..-32000, by family: 41xx,
53xx, 54xx (MCP 2026-07-28, basic/index, reserves the rest); the plain codes of JSON-RPC and MCP are used
only where those name the case.

One table, and so longer than other files: each fault stands beside those it must differ from.

Knows nothing of: how a fault is written out (`faults`), who raises which. `docs/errors.md` is generated
from here.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

from carpool_protocol.link.messages import Delivered

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
RESOURCE_NOT_FOUND: Final = -32002
"""MCP up to 2025-11-25, server/resources, "Error Handling"; later versions use -32602."""

Family = Literal["refused", "unavailable", "lost"]


class FaultKind(Struct, frozen=True):
    """One row of the table."""

    slug: str
    """Stable: the `code` in `_meta["carpool/error"]`, in logs and in `status`."""
    family: Family
    code: int
    what: str
    """What happened and by whose doing, one sentence."""
    advice: str
    """What to do next, one sentence. `SERVER` stands for the server's name."""
    protocol: bool = False
    """A JSON-RPC error even for `tools/call`: the request was wrong, there is no tool result to speak of."""

    @property
    def delivered(self) -> Delivered:
        """Whether a server can have seen the call, by family."""
        return "maybe" if self.family == "lost" else "no"


_KINDS: Final = (
    # --- refused: 41xx, or the code that the specification names ---
    FaultKind(
        "unknown_tool",
        "refused",
        INVALID_PARAMS,
        "There is no tool of this name here.",
        "List the tools again and use a name from that list.",
        protocol=True,
    ),
    FaultKind(
        "unknown_prompt",
        "refused",
        INVALID_PARAMS,
        "There is no prompt of this name here.",
        "List the prompts again and use a name from that list.",
        protocol=True,
    ),
    FaultKind(
        "unknown_resource",
        "refused",
        RESOURCE_NOT_FOUND,
        "No single server here is known to have this resource.",
        "List the resources and resource templates again and use a URI from there.",
        protocol=True,
    ),
    FaultKind(
        "unknown_method",
        "refused",
        METHOD_NOT_FOUND,
        "This method is not served here.",
        "Use only what the answer to initialize, or to server/discover, announces.",
        protocol=True,
    ),
    FaultKind(
        "bad_params",
        "refused",
        INVALID_PARAMS,
        "The params do not have the shape that this method needs.",
        "Correct the request; the MCP specification gives the shape.",
        protocol=True,
    ),
    FaultKind(
        "bad_request_state",
        "refused",
        INVALID_PARAMS,
        "No call of this agent waits with this requestState: it was used before, has expired, or the request "
        "is not the one it was given for.",
        "Send the request again from the start, without requestState and inputResponses.",
        protocol=True,
    ),
    FaultKind(
        "unknown_task",
        "refused",
        INVALID_PARAMS,
        "This agent has no task of this id: it has expired, the server that ran it has ended, or the part "
        "of carpool that knew whose it was, or it was never given out here.",
        "Call the tool again; look first at what a task that was lost has changed.",
        protocol=True,
    ),
    FaultKind(
        "bad_cursor",
        "refused",
        INVALID_PARAMS,
        "This cursor was not given out here, or the list has changed too often since.",
        "List again from the start, without a cursor.",
        protocol=True,
    ),
    FaultKind(
        "not_permitted",
        "refused",
        INVALID_PARAMS,
        "The configuration does not permit this tool, prompt or resource.",
        "Use another one, or ask the user to change the allow and deny lists of the server or the profile.",
        protocol=True,
    ),
    FaultKind(
        "bad_line",
        "refused",
        PARSE_ERROR,
        "The agent sent a line that is not one JSON value in UTF-8.",
        "Send one JSON-RPC message per line.",
        protocol=True,
    ),
    FaultKind(
        "bad_request",
        "refused",
        INVALID_REQUEST,
        "The agent sent JSON that is not a JSON-RPC 2.0 message.",
        "Send a request with jsonrpc, id and method, or a notification without id.",
        protocol=True,
    ),
    FaultKind(
        "duplicate_request_id",
        "refused",
        4101,
        "The agent used the id of a request that it still has open.",
        "Give every open request an id of its own; the first request goes on.",
        protocol=True,
    ),
    FaultKind(
        "not_initialized",
        "refused",
        4102,
        "The agent sent a request before initialize.",
        "Send initialize first.",
        protocol=True,
    ),
    FaultKind(
        "too_large",
        "refused",
        4103,
        "The request is larger than carpool passes on.",
        "Send less at once, or pass a path or a reference in place of the content.",
    ),
    FaultKind(
        "misconfigured",
        "refused",
        4104,
        "The configuration of this server has a mistake, so it cannot be started.",
        "Ask the user to run `carpool check` and to correct the configuration.",
    ),
    FaultKind(
        "unset",
        "refused",
        4109,
        "The server lacks a variable or a workspace that its configuration names, so it cannot be started.",
        "Ask the user to set it as the reason says.",
    ),
    FaultKind(
        "untrusted",
        "refused",
        4106,
        "The server is of a project's file, and nothing of that runs before the user has trusted it.",
        "Ask the user to look at the file and to run `carpool trust` there.",
    ),
    FaultKind(
        "too_many_servers",
        "refused",
        4107,
        "This agent has called as many different servers as its profile lets it.",
        "Use a tool of a server that was called before, or ask the user to raise max_servers of the profile.",
    ),
    FaultKind(
        "needs_session",
        "refused",
        4105,
        "The server keeps state for each agent in an instance of its own, and this request does not say "
        "whose it is.",
        "Use a session (initialize first) or a bearer token, or have the user set the server's sharing to "
        "serial.",
    ),
    FaultKind(
        "denied_by_hook",
        "refused",
        4110,
        "A rule that the user has put before calls (a hook) denied this one.",
        "Do not repeat it as it is: go by the reason, or ask the user.",
    ),
    FaultKind(
        "quarantined",
        "refused",
        4108,
        "The user has not approved this tool as its server defines it now, so it is held back.",
        "Use another tool, or ask the user to look at `carpool pin diff SERVER` and, if that is right, to "
        "run `carpool pin approve SERVER`.",
    ),
    FaultKind(
        "attach_refused",
        "refused",
        4111,
        "Carpool cannot serve this agent as it is configured or started; the text names the file or option.",
        "Tell the user the text: once that is mended, the agent has to be connected again.",
        protocol=True,
    ),
    # --- unavailable: 53xx ---
    FaultKind(
        "not_running",
        "unavailable",
        5317,
        "Carpool does not run and could not be started for this agent, or could not be reached.",
        "Tell the user the text; `carpool logs --daemon` shows more. The agent has to be connected again.",
        protocol=True,
    ),
    FaultKind(
        "unavailable",
        "unavailable",
        5300,
        "The server cannot take the call now.",
        "Try again a little later; `carpool status` shows the reason.",
    ),
    FaultKind(
        "waiting_line_full",
        "unavailable",
        5301,
        "Too many calls already wait for this server.",
        "Try again a little later, with fewer calls at once.",
    ),
    FaultKind(
        "waited_too_long",
        "unavailable",
        5302,
        "No instance of the server became free in time.",
        "Try again a little later; a larger pool.max or wait_s of this server gives more room, or a larger "
        "max_instances where all servers together fill it.",
    ),
    FaultKind(
        "too_many_calls",
        "unavailable",
        5303,
        "This agent has more calls open than may wait for one session.",
        "Wait for some of the open calls to end, then try again.",
    ),
    FaultKind(
        "too_many_a_minute",
        "unavailable",
        5315,
        "This agent has made as many calls in a minute as its profile lets it.",
        "Wait, then try again.",
    ),
    FaultKind(
        "arguments_too_many",
        "unavailable",
        5313,
        "The open calls, those of other agents included, hold as many bytes of arguments as carpool keeps.",
        "Try again when some of them have ended, with fewer or smaller calls at once; argument_budget_bytes "
        "allows more.",
    ),
    FaultKind(
        "starting_failed",
        "unavailable",
        5304,
        "The server could not be started.",
        "Try again a little later; `carpool logs SERVER` shows what it wrote.",
    ),
    FaultKind(
        "backing_off",
        "unavailable",
        5305,
        "The server failed and will be started again soon.",
        "Try again a little later; `carpool logs SERVER` shows what it wrote.",
    ),
    FaultKind(
        "given_up",
        "unavailable",
        5306,
        "The server failed too often in a row and is not started again by itself.",
        "Ask the user to look at `carpool logs SERVER` and to run `carpool start SERVER`.",
    ),
    FaultKind(
        "stopped",
        "unavailable",
        5307,
        "The server is stopped by its operator.",
        "Ask the user to run `carpool start SERVER`.",
    ),
    FaultKind(
        "disabled",
        "unavailable",
        5314,
        "The server is disabled.",
        "Ask the user to run `carpool enable SERVER`.",
    ),
    FaultKind(
        "draining",
        "unavailable",
        5308,
        "The server is on its way out and takes no new calls.",
        "List the tools again in a moment; if the server comes back, try again.",
    ),
    FaultKind(
        "closing",
        "unavailable",
        5312,
        "Carpool, through which the server is reached, ended before the call had begun.",
        "Try again in a few seconds: mostly it is started again by itself. If it is not, ask the user to run "
        "`carpool up` and to connect this agent again.",
    ),
    FaultKind(
        "supervisor_away",
        "unavailable",
        5309,
        "The part of carpool that runs the servers is not there; it is started again by itself.",
        "Try again in a few seconds; if it stays so, ask the user to look at `carpool status`.",
    ),
    FaultKind(
        "breaker_open",
        "unavailable",
        5310,
        "The server has failed to start or to go on, so calls to it are held back for a while.",
        "Try again later; one call will then be let through to see whether it is well.",
    ),
    FaultKind(
        "cannot_start",
        "unavailable",
        5316,
        "The server's program cannot be started on this machine as it is configured.",
        "Tell the user what is missing: a repeated call does not help before that is mended. `carpool logs "
        "SERVER` and `carpool check` show it.",
    ),
    FaultKind(
        "state_lost",
        "unavailable",
        5311,
        "The instance that held this session's state has ended, so its state is gone.",
        "Set up again what you had there (open, log in, navigate); the next call runs on a fresh instance.",
    ),
    FaultKind(
        "hook_failed",
        "unavailable",
        5320,
        "A hook has to look at this call before it is sent, and it failed; no call passes then, by the "
        "user's setting.",
        "Try again a little later; if it stays so, ask the user to look at `carpool status` and `carpool "
        "check`.",
    ),
    # --- lost: 54xx ---
    FaultKind(
        "lost",
        "lost",
        5400,
        "The call was lost on its way to or from the server.",
        "Look at what the call has changed before you repeat it.",
    ),
    FaultKind(
        "instance_died",
        "lost",
        5401,
        "The server's process ended while the call was open.",
        "Look at what the call has changed before you repeat it; `carpool logs SERVER` shows its last words.",
    ),
    FaultKind(
        "timed_out",
        "lost",
        5402,
        "The server gave no answer and no progress in time; the call was cancelled.",
        "Look at what the call has changed before you repeat it; timeout_s of the server allows more time.",
    ),
    FaultKind(
        "ran_too_long",
        "lost",
        5403,
        "The call reached its total time limit, progress or not, and was cancelled.",
        "Look at what the call has changed, then ask for less at once; max_total_s allows more time.",
    ),
    FaultKind(
        "cut_off",
        "lost",
        5411,
        "Carpool, through which the server is reached, ended while the call was open.",
        "Look at what the call has changed before you repeat it; mostly carpool is there again in a few "
        "seconds.",
    ),
    FaultKind(
        "link_broken",
        "lost",
        5404,
        "A part of carpool, through which the server is reached, ended while the call was open.",
        "Look at what the call has changed before you repeat it; that part is started again by itself.",
    ),
    FaultKind(
        "answer_overdue",
        "lost",
        5405,
        "Long after the time limit of the call carpool had not heard how it ended, and gave it up.",
        "Look at what the call has changed before you repeat it.",
    ),
    FaultKind(
        "bad_answer",
        "lost",
        5406,
        "The server answered, but not in a form that MCP allows, so its answer cannot be passed on.",
        "The call has probably run: look at what it changed; the mistake is the server's.",
    ),
    FaultKind(
        "needs_url",
        "lost",
        5408,
        "The server wants its user to open a web page first, and this agent has not declared that it can be "
        "asked to (elicitation in mode url).",
        "Use an agent that can, or do what the server wants (mostly a sign-in) elsewhere, then try again.",
    ),
    FaultKind(
        "url_declined",
        "lost",
        5409,
        "The server wants its user to open a web page first, and the user did not agree to.",
        "Ask the user; then try again.",
    ),
    FaultKind(
        "answer_too_large",
        "lost",
        5407,
        "The server's answer is larger than carpool passes on.",
        "The call has probably run; ask for less at once (a range, a page, a filter).",
    ),
    FaultKind(
        "answer_denied",
        "lost",
        5420,
        "The server answered, and a rule that the user has put behind calls (a hook) kept the answer back.",
        "The call has run: do not repeat it; go by the reason, or ask the user.",
    ),
    FaultKind(
        "answer_hook_failed",
        "lost",
        5421,
        "The server answered, and a hook that has to look at the answer failed; the user has set that then "
        "none passes.",
        "The call has run: look at what it changed. Ask the user to look at `carpool status`.",
    ),
    FaultKind(
        "unread_answers",
        "lost",
        5410,
        "The server answered, but so much waits for this agent to read already that the answer was not kept.",
        "The call has run: look at what it changed. Read answers as they come, or have fewer calls for large "
        "ones open at once; unread_budget_bytes allows more.",
    ),
)

KINDS: Final[Mapping[str, FaultKind]] = MappingProxyType({kind.slug: kind for kind in _KINDS})
"""The table, by slug."""
