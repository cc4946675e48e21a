"""The table of every error that carpool itself can answer with.

Owns each fault's slug, family, JSON-RPC code and sentences. The families say what the caller may do next:

- `refused`: a rule or the protocol forbids it; the same request fails again. Never delivered.
- `unavailable`: not started, so safe to repeat. Never delivered.
- `lost`: it was written to a server; the outcome is unknown or unusable. Delivered: maybe.

Invariants: a fault that may have been delivered is always `lost` (tools have side effects, so this is the
most important distinction in the product). Carpool's own codes lie outside -32768..-32000, by family: 41xx,
53xx, 54xx (MCP 2026-07-28, basic/index, reserves the rest). Codes of JSON-RPC and MCP are used only for the
cases that they name.

One table, and so longer than other files: each fault stands beside those it must differ from.

Knows nothing of: how a fault is written out (`fault_answers`), the code that raises it. `docs/errors.md` is
generated from here.
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
"""MCP up to 2025-11-25, server/resources, "Error Handling". Later versions use -32602."""

Family = Literal["refused", "unavailable", "lost"]


class FaultKind(Struct, frozen=True):
    """One row of the table."""

    slug: str
    """The `code` in `_meta["carpool/error"]`, in logs and in `status`. It never changes."""
    family: Family
    code: int
    what: str
    """What happened and whose fault it is, one sentence."""
    advice: str
    """What to do next, one sentence. `SERVER` stands for the server's name."""
    protocol: bool = False
    """True: a JSON-RPC error even for `tools/call`, because the request itself was wrong."""

    @property
    def delivered(self) -> Delivered:
        """Says if a server can have seen the call: `maybe` for the family `lost`, else `no`."""
        return "maybe" if self.family == "lost" else "no"


USER_FILE_UNREAD: Final = "The user's configuration cannot be read"
"""How the sentence begins that an agent gets where servers may be missing for this reason."""

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
        "List the resources and resource templates again and use a URI from those lists.",
        protocol=True,
    ),
    FaultKind(
        "unknown_method",
        "refused",
        METHOD_NOT_FOUND,
        "Carpool does not serve this method here.",
        "Use only what the answer to initialize, or to server/discover, announces.",
        protocol=True,
    ),
    FaultKind(
        "bad_params",
        "refused",
        INVALID_PARAMS,
        "The params do not have the form that this method needs.",
        "Correct the request; the MCP specification gives the form.",
        protocol=True,
    ),
    FaultKind(
        "not_found",
        "refused",
        INVALID_PARAMS,
        "The thing that this request names is not here.",
        "Look at what is there, and ask again if it is still needed.",
        protocol=True,
    ),
    FaultKind(
        "bad_request_state",
        "refused",
        INVALID_PARAMS,
        "No call of this agent waits with this requestState: it was used before, has expired, or belongs to "
        "another request.",
        "Send the request again from the start, without requestState and inputResponses.",
        protocol=True,
    ),
    FaultKind(
        "unknown_task",
        "refused",
        INVALID_PARAMS,
        "This agent has no task with this id: it expired, its server or a part of carpool ended, or the id "
        "is unknown.",
        "Call the tool again, but first check what the lost task has changed.",
        protocol=True,
    ),
    FaultKind(
        "bad_cursor",
        "refused",
        INVALID_PARAMS,
        "This cursor is not from carpool, or the list has changed too often since.",
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
        "Use a different id for every open request; the first request continues.",
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
        "The request is larger than carpool allows.",
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
        "Ask the user to set what the text names.",
    ),
    FaultKind(
        "untrusted",
        "refused",
        4106,
        "The server comes from a project file, and nothing in that file runs before the user trusts it.",
        "Ask the user to read the file and to run `carpool trust` there.",
    ),
    FaultKind(
        "too_many_servers",
        "refused",
        4107,
        "This agent has called as many different servers as its profile allows.",
        "Use a tool of a server that it called before, or ask the user to raise max_servers of the profile.",
    ),
    FaultKind(
        "needs_session",
        "refused",
        4105,
        "The server runs a separate instance for each agent, and this request does not identify its agent.",
        "Use a session (initialize first) or a bearer token, or ask the user to set the server's sharing to "
        "serial.",
    ),
    FaultKind(
        "denied_by_hook",
        "refused",
        4110,
        "A hook that the user has configured denied this call.",
        "Do not repeat it unchanged: follow the reason, or ask the user.",
    ),
    FaultKind(
        "quarantined",
        "refused",
        4108,
        "The user has not approved this tool in its present definition, so carpool does not call it.",
        "Use another tool, or ask the user to look at `carpool pin diff SERVER` and, if it is right, to "
        "run `carpool pin approve SERVER`.",
    ),
    FaultKind(
        "attach_refused",
        "refused",
        4111,
        "Carpool cannot serve this agent as it is configured or started; the text names the file or option.",
        "Tell the user the text. After the correction the agent must be connected again.",
        protocol=True,
    ),
    # --- unavailable: 53xx ---
    FaultKind(
        "not_running",
        "unavailable",
        5317,
        "Carpool is not running and could not be started for this agent, or could not be reached.",
        "Tell the user the text; `carpool doctor` says how to repair it. The agent must be connected again.",
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
        "Too many calls are already waiting for this server.",
        "Try again a little later, with fewer calls at once.",
    ),
    FaultKind(
        "waited_too_long",
        "unavailable",
        5302,
        "No instance of the server became free in time.",
        "Try again a little later. A larger pool.max or wait_s of this server gives more room; a larger "
        "max_instances helps if all servers together reach it.",
    ),
    FaultKind(
        "too_many_calls",
        "unavailable",
        5303,
        "This agent already has the most open calls that one session may have.",
        "Wait for some of the open calls to end, then try again.",
    ),
    FaultKind(
        "too_many_a_minute",
        "unavailable",
        5315,
        "This agent has made as many calls in a minute as its profile allows.",
        "Wait, then try again.",
    ),
    FaultKind(
        "arguments_too_many",
        "unavailable",
        5313,
        "The arguments of all open calls, of other agents too, fill the memory that is set aside for them.",
        "Try again when some calls have ended, with fewer or smaller calls at once. A larger "
        "argument_budget_bytes allows more.",
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
        "The server failed as often as its configuration allows, and carpool no longer starts it again.",
        "Ask the user to run `carpool doctor`, which tells the cause, and then `carpool start SERVER`.",
    ),
    FaultKind(
        "stopped",
        "unavailable",
        5307,
        "The server is stopped by its operator.",
        "Ask the user to run `carpool start SERVER`.",
    ),
    FaultKind(
        "paused",
        "unavailable",
        5319,
        "The server is paused by its operator, and the call waited for as long as it may.",
        "Try again later, or ask the user to run `carpool resume SERVER`.",
    ),
    FaultKind(
        "disabled",
        "unavailable",
        5314,
        "The server is disabled.",
        "Ask the user to run `carpool enable SERVER`.",
    ),
    FaultKind(
        "offline",
        "unavailable",
        5323,
        "The server is a list of tools and has nothing to run.",
        "Do not repeat the call: it can only be checked (`carpool call --dry-run`). The user makes the "
        'server run with "command", "url" or "python" beside its `tools_file`.',
    ),
    FaultKind(
        "draining",
        "unavailable",
        5308,
        "The server is being stopped and takes no new calls.",
        "List the tools again in a moment; if the server is there again, try again.",
    ),
    FaultKind(
        "operator_cancelled_unsent",
        "unavailable",
        5318,
        "An operator cancelled this call before it was sent to the server.",
        "Do not repeat it by yourself: tell the user that an operator cancelled it.",
    ),
    FaultKind(
        "closing",
        "unavailable",
        5312,
        "Carpool ended before the call was sent to the server.",
        "Try again in a few seconds: carpool is usually started again automatically. If it is not, ask the "
        "user to run `carpool up` and to connect this agent again.",
    ),
    FaultKind(
        "supervisor_away",
        "unavailable",
        5309,
        "The part of carpool that runs the servers has ended; it is started again automatically.",
        "Try again in a few seconds. If the error stays, ask the user to look at `carpool status`.",
    ),
    FaultKind(
        "breaker_open",
        "unavailable",
        5310,
        "The server failed several times in a row, so carpool sends it no calls for a while.",
        "Try again later: after the pause carpool starts the server as a test and lets one call at a time "
        "through. `carpool doctor` tells the user why the server fails.",
    ),
    FaultKind(
        "cannot_start",
        "unavailable",
        5316,
        "The server's program cannot be started on this machine as it is configured.",
        "Tell the user what is missing; repeated calls fail until that is corrected. `carpool doctor` says "
        "how to correct it.",
    ),
    FaultKind(
        "node_away",
        "unavailable",
        5321,
        "The server runs at another node of the cluster, and no node takes calls for it now.",
        "Try again in a moment. If the error stays, ask the user to look at `carpool cluster status`.",
    ),
    FaultKind(
        "not_offered",
        "unavailable",
        5322,
        "The server runs at another node of the cluster, and no node offers it to agents of this one.",
        "Tell the user the reason; repeated calls fail until that is changed. `carpool cluster status` shows "
        "the nodes.",
    ),
    FaultKind(
        "state_lost",
        "unavailable",
        5311,
        "The instance that held this session's state has ended, so its state is gone.",
        "Repeat the steps that made the state (open, log in, navigate); the next call gets a new instance.",
    ),
    FaultKind(
        "hook_failed",
        "unavailable",
        5320,
        "A hook must check this call before it is sent, and the hook failed; the user's settings then block "
        "the call.",
        "Try again a little later. If the error stays, ask the user to run `carpool doctor`, which says why "
        "the hook fails.",
    ),
    # --- lost: 54xx ---
    FaultKind(
        "lost",
        "lost",
        5400,
        "The call was lost on its way to or from the server.",
        "Check what the call has changed before you repeat it.",
    ),
    FaultKind(
        "instance_died",
        "lost",
        5401,
        "The server's process ended while the call was open.",
        "Check what the call has changed before you repeat it; `carpool logs SERVER` shows its last output.",
    ),
    FaultKind(
        "node_lost",
        "lost",
        5412,
        "The server runs at another node of the cluster, and the session there ended while the call was "
        "open.",
        "Check what the call has changed before you repeat it; `carpool cluster status` shows the nodes.",
    ),
    FaultKind(
        "timed_out",
        "lost",
        5402,
        "The server gave no answer and no progress in time; the call was cancelled.",
        "Check what the call has changed before you repeat it; a larger timeout_s of the server allows more "
        "time.",
    ),
    FaultKind(
        "ran_too_long",
        "lost",
        5403,
        "The call reached its total time limit, which progress does not extend, and was cancelled.",
        "Check what the call has changed, then ask for less at once; a larger max_total_s allows more time.",
    ),
    FaultKind(
        "agent_away",
        "lost",
        5413,
        "The agent did not come back in time with what the server had asked for, while other agents waited "
        "for the server; the call was cancelled.",
        "Check what the call has changed, then send the request again from the start, without requestState "
        "and inputResponses.",
    ),
    FaultKind(
        "operator_cancelled",
        "lost",
        5416,
        "An operator cancelled this call after it was sent to the server.",
        "Do not repeat it by yourself: tell the user that an operator cancelled it and that it may have run.",
    ),
    FaultKind(
        "cut_off",
        "lost",
        5411,
        "Carpool ended while the call was open.",
        "Check what the call has changed before you repeat it; carpool usually runs again in a few seconds.",
    ),
    FaultKind(
        "link_broken",
        "lost",
        5404,
        "A part of carpool between the agent and the server ended while the call was open.",
        "Check what the call has changed before you repeat it; that part is started again automatically.",
    ),
    FaultKind(
        "answer_overdue",
        "lost",
        5405,
        "Carpool gave up waiting long after the call's time limit, without knowing how the call ended.",
        "Check what the call has changed before you repeat it. The fault is carpool's: `carpool logs "
        "--daemon` has its messages.",
    ),
    FaultKind(
        "bad_answer",
        "lost",
        5406,
        "The server answered, but not in a form that MCP allows, so its answer cannot be passed on.",
        "The call has probably run: check what it changed. The mistake is in the server.",
    ),
    FaultKind(
        "needs_url",
        "lost",
        5408,
        "The server wants its user to open a web page first, and this agent has not declared support for "
        "that (elicitation in mode url).",
        "Use an agent that supports it, or complete the step (usually a sign-in) elsewhere, then try again.",
    ),
    FaultKind(
        "url_declined",
        "lost",
        5409,
        "The server wants its user to open a web page first, and the user declined.",
        "Ask the user; then try again.",
    ),
    FaultKind(
        "answer_too_large",
        "lost",
        5407,
        "The server's answer is larger than carpool allows.",
        "The call has probably run; ask for less at once (a range, a page, a filter).",
    ),
    FaultKind(
        "answer_denied",
        "lost",
        5420,
        "The server answered, and a hook that the user has configured withheld the answer.",
        "The call has run: do not repeat it; follow the reason, or ask the user.",
    ),
    FaultKind(
        "answer_hook_failed",
        "lost",
        5421,
        "The server answered, and the hook that must check the answer failed; the user's settings then "
        "withhold it.",
        "The call has run: check what it changed. Ask the user to look at `carpool status`.",
    ),
    FaultKind(
        "unread_answers",
        "lost",
        5410,
        "The server answered, but carpool dropped the answer: too much output of this agent or of its token "
        "is unread already.",
        "The call has run: check what it changed. Read answers as they come, or open fewer calls with large "
        "answers at once. A larger unread_budget_bytes allows more.",
    ),
)

KINDS: Final[Mapping[str, FaultKind]] = MappingProxyType({kind.slug: kind for kind in _KINDS})
"""The table of faults by slug."""
LOSSES: Final = frozenset({"state_lost"})
"""Faults that were not delivered and still tell of a loss: they are counted as errors, not as refusals."""
