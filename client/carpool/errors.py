"""The exceptions that a call can end with, as one tree.

    CarpoolError
    ├── Refused           PermissionError   a profile, trust, a switch: somebody has decided so
    ├── BadCall           ValueError        the request is wrong; the same again fails again
    │   └── UnknownName   LookupError       nothing is called that, or several things are: `candidates`
    ├── Unavailable                         not begun: safe to repeat, see `retry_after_s`
    ├── Lost                                may have been executed: look before you repeat it
    │   └── TimedOut      TimeoutError
    ├── NotRunning        ConnectionError   no carpool, or not any more
    ├── ServerError                         the server's own JSON-RPC error
    └── ToolError                           `Result.or_raise()`: the tool says that it failed

Owns which exception a fault becomes. The text of each is made for a model: what happened, whether anything
was executed, what to do next (docs/errors.md); it holds no argument.

Knows nothing of: sockets, how an answer was waited for.
"""

from typing import Any, Final, Literal

import msgspec

from carpool_protocol.faults.fault_answers import ERROR_META_KEY
from carpool_protocol.faults.kinds import KINDS, FaultKind

Delivered = Literal["no", "maybe", "yes"]
Whose = Literal["caller", "user", "server", "carpool"]
"""The side at fault. `user` is the person who configures and operates carpool."""


class CarpoolError(Exception):
    """The base of all. `str(error)` is whole sentences."""

    whose: Whose = "carpool"

    def __init__(
        self,
        text: str,
        *,
        kind: str = "",
        delivered: Delivered = "no",
        retry_after_s: float | None = None,
        server: str = "",
        tool: str = "",
        call: str = "",
        whose: Whose | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        """A code of docs/errors.md; `server_error`, `tool_error` and `not_running` are this client's own."""
        self.delivered = delivered
        """`no`: no server saw it. `maybe`: it was written to one. `yes`: that one answered."""
        self.retry_after_s = retry_after_s
        self.server = server
        self.tool = tool
        """The server's own name of the tool."""
        self.call = call
        """Carpool's name of the call, as in its logs and in `carpool story`."""
        if whose is not None:
            self.whose = whose


class Refused(CarpoolError, PermissionError):
    """A decision of the user forbids it: a profile, a list of the configuration, a switch, trust."""

    whose = "user"


class BadCall(CarpoolError, ValueError):
    """The request itself is wrong."""

    whose = "caller"


class UnknownName(BadCall, LookupError):
    """No tool has this name, or several have."""

    def __init__(self, text: str, *, candidates: tuple[str, ...] = (), **said: Any) -> None:
        super().__init__(text, **said)
        self.candidates = candidates
        """The names that it can mean, or that look alike. Only `Carpool.resolve` tells them."""


class Unavailable(CarpoolError, RuntimeError):
    """The call was not begun. It is safe to repeat."""


class Lost(CarpoolError):
    """The call was begun, and it is unknown how it ended."""


class TimedOut(Lost, TimeoutError):
    """The call took too long. It was cancelled, which not every server obeys."""

    whose = "server"


class NotRunning(CarpoolError, ConnectionError):
    """No carpool runs here, or this session is over. Calls that were open then are `Lost`."""


class ServerError(CarpoolError):
    """The server's own answer, a JSON-RPC error."""

    whose = "server"

    def __init__(self, text: str, *, code: int, data: Any = None) -> None:
        super().__init__(text, kind="server_error", delivered="yes")
        self.code = code
        self.data = data


class ToolError(CarpoolError):
    """A result with `isError`, for programs that want an exception."""

    whose = "server"

    def __init__(self, text: str, result: Any) -> None:
        super().__init__(text, kind="tool_error", delivered="yes")
        self.result = result
        """The `Result`."""


_BY_KIND: Final[dict[str, tuple[type[CarpoolError], Whose]]] = {
    **dict.fromkeys(("unknown_tool", "unknown_prompt", "unknown_resource"), (UnknownName, "caller")),
    **dict.fromkeys(
        (
            "unknown_method", "bad_params", "bad_request_state", "unknown_task", "bad_cursor", "bad_line",
            "bad_request", "not_found", "duplicate_request_id", "not_initialized", "too_large",
            "needs_session", "attach_refused",
        ),
        (BadCall, "caller"),
    ),
    **dict.fromkeys(("disabled", "denied_by_hook"), (Refused, "user")),
    "hook_failed": (Unavailable, "user"),
    **dict.fromkeys(("answer_denied", "answer_hook_failed"), (Lost, "user")),
    **dict.fromkeys(
        ("misconfigured", "unset", "stopped", "draining", "not_offered", "offline"), (Unavailable, "user")
    ),
    **dict.fromkeys(
        ("starting_failed", "backing_off", "given_up", "breaker_open", "cannot_start"),
        (Unavailable, "server"),
    ),
    **dict.fromkeys(("timed_out", "ran_too_long"), (TimedOut, "server")),
    **dict.fromkeys(
        ("instance_died", "bad_answer", "answer_too_large", "needs_url", "url_declined"), (Lost, "server")
    ),
    **dict.fromkeys(
        ("waiting_line_full", "waited_too_long", "too_many_calls", "arguments_too_many"),
        (Unavailable, "caller"),
    ),
    **dict.fromkeys(("agent_away", "unread_answers"), (Lost, "caller")),
}  # fmt: skip
_BY_FAMILY: Final[dict[str, tuple[type[CarpoolError], Whose]]] = {
    # What later releases refuse is a matter of rights, unless this table knows better.
    "refused": (Refused, "user"),
    "unavailable": (Unavailable, "carpool"),
    "lost": (Lost, "carpool"),
}


class _Fault(msgspec.Struct):
    """The data of an error of carpool's own, in `_meta` of a result or as `data` (docs/errors.md)."""

    code: str
    delivered: Literal["no", "maybe"]
    retry_after_s: float | None = None
    server: str = ""
    tool: str = ""
    call: str = ""


def of_result(result: dict[str, Any]) -> CarpoolError | None:
    """Return the exception of a `tools/call` that carpool ended itself; None if it is the
    tool's own result.
    """
    meta, content = result.get("_meta"), result.get("content")
    if not isinstance(meta, dict) or ERROR_META_KEY not in meta or not isinstance(content, list):
        return None
    texts = [str(part["text"]) for part in content if isinstance(part, dict) and "text" in part]
    return _of_data(meta[ERROR_META_KEY], "\n".join(texts))


def of_error(error: Any) -> CarpoolError:
    """Return the exception of a JSON-RPC error object: carpool's own, or a server's."""
    if not isinstance(error, dict):
        return ServerError("The server answered with an error that says nothing.", code=0)
    text = error.get("message")
    text = text if isinstance(text, str) and text else "The server gave an error without a message."
    own = _of_data(error.get("data"), text)
    if own is not None:
        return own
    code = error.get("code")
    return ServerError(text, code=code if isinstance(code, int) else 0, data=error.get("data"))


def of_kind(kind: str, text: str, **said: Any) -> CarpoolError:
    """Return the exception of a fault by its code."""
    row: FaultKind | None = KINDS.get(kind)
    family = row.family if row is not None else "lost" if said.get("delivered") == "maybe" else "unavailable"
    which, whose = _BY_KIND.get(kind) or _BY_FAMILY[family]
    if said.get("delivered") == "maybe" and not issubclass(which, Lost):
        which = Lost  # between "no" and "maybe" the worse one holds
    return which(text, kind=kind, whose=whose, **said)


def _of_data(data: Any, text: str) -> CarpoolError | None:
    try:
        fault = msgspec.convert(data, _Fault)
    except msgspec.ValidationError:
        return None
    return of_kind(
        fault.code,
        text,
        delivered=fault.delivered,
        retry_after_s=fault.retry_after_s,
        server=fault.server,
        tool=fault.tool,
        call=fault.call,
    )
