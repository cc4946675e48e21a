"""Error texts of the bridge when the network fails: whose fault, what happened, if the call was delivered.

Owns the sentences and the lines that carry them. A greeting (`initialize`, `server/discover`) that fails is
answered with one short sentence, which `carpool status` shows; a call is answered with one of carpool's own
faults. Hosts are named, never paths, queries or headers.

Pure, and apart from `error_mapping` because `carpool login` has it where no HTTP client is installed. Knows
nothing of: HTTP clients, streams.
"""

from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct

from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.carrier.remote import UNFIT_CODE
from carpool_protocol.faults.fault_answers import fault, fault_answer
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import RawJson

GREETINGS: Final = frozenset({"initialize", "server/discover"})
LISTEN: Final = "subscriptions/listen"
GIVEN_UP: Final = -32800
"""The code of an answer that only the SDK hears: to a request that was cancelled."""
NO_EXTRA: Final = f"servers over a URL need more than is installed: run `{install_command('remote')}`"


class RequestTrouble(Struct, frozen=True):
    """Why a request to the server came to nothing."""

    text: str
    """One sentence without its full stop."""
    slug: str = "unavailable"
    """The kind of fault that it is for a call."""
    retry_after_s: float | None = None


class _RequestHead(Struct):
    """A message as far as its sender has to be answered."""

    id: msgspec.Raw = msgspec.Raw(b"")
    method: str = ""


class _Meant(Struct):
    request: msgspec.Raw = msgspec.field(name="requestId", default=msgspec.Raw(b""))


class _Cancelled(Struct):
    params: _Meant


_asked: Final = msgspec.json.Decoder(_RequestHead)
_cancelled: Final = msgspec.json.Decoder(_Cancelled)


def head_of(body: bytes) -> tuple[RawJson, str]:
    """The id and the method of a message; empty where it has none."""
    try:
        found = _asked.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return RawJson(b""), ""
    return RawJson(bytes(found.id)), found.method


def cancelled_in(body: bytes) -> RawJson:
    """The id of the request that a `notifications/cancelled` names; empty: none."""
    try:
        return RawJson(bytes(_cancelled.decode(body).params.request))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return RawJson(b"")


def request_in(body: bytes) -> tuple[RawJson, str] | None:
    """The id and the method of a request; None for anything else."""
    request, method = head_of(body)
    return (request, method) if request and method else None


def answer_line(request: RawJson, method: str, trouble: RequestTrouble, server: str) -> bytes:
    """The answer to a request that came to nothing, as a JSON-RPC message without its line end.

    A listen that came to nothing has ended: an error would say that the server refuses to be listened to.
    """
    if method == LISTEN:
        return b'{"jsonrpc":"2.0","id":%b,"result":{"resultType":"complete"}}' % request
    if method in GREETINGS:
        text = trouble.text or KINDS[trouble.slug].what
        member, body = b"error", msgspec.json.encode({"code": UNFIT_CODE, "message": text})
    else:
        said = fault(
            trouble.slug,
            detail=f"Why: {trouble.text}." if trouble.text else "",
            server=server,
            retry_after_s=trouble.retry_after_s,
        )
        is_error, body = fault_answer(said, method)
        member = b"error" if is_error else b"result"
    return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (request, member, body)


# --- what happened --------------------------------------------------------------------------------------


def unreachable(host: str, why: str, *, through_proxy: bool = False) -> RequestTrouble:
    """No connection could be made, to it or to the proxy before it."""
    way = " through the proxy that the environment names" if through_proxy else ""
    return RequestTrouble(f"cannot reach {host}{way} ({why})")


def connection_broken(host: str) -> RequestTrouble:
    """The connection broke after the request was sent: the call may have run."""
    return RequestTrouble(f"the connection to {host} broke before the answer came", "lost")


def session_ended(host: str) -> RequestTrouble:
    """The server does not know the session; a call in it was not run."""
    return RequestTrouble(f"{host} has ended the session, and what it held there is gone", "state_lost")


def needs_login(host: str, server: str, *, again: bool = False) -> RequestTrouble:
    """The server answered 401, and there is no OAuth token that it accepts."""
    why = "no longer accepts the login" if again else "wants a login"
    return RequestTrouble(
        f"{host} {why}: run `carpool login {server}`, or give it `headers` with an Authorization"
    )


def not_authorized(host: str) -> RequestTrouble:
    """The server answered 401 to the Authorization in the configuration."""
    return RequestTrouble(
        f"{host} does not accept the Authorization in the `headers` or the `url` of this server (401)"
    )


def more_scopes(host: str, server: str, scopes: str) -> RequestTrouble:
    """The server answered 403 with `insufficient_scope`."""
    named = f" ({scopes})" if scopes else ""
    return RequestTrouble(
        f"{host} wants more rights than the login has{named}: write all that it is to have into "
        f"`oauth.scopes` of this server, then run `carpool login {server}` again"
    )


def not_mcp(host: str, *, page: bool) -> RequestTrouble:
    """The server answered a greeting with no message of MCP. `page`: with a web page."""
    what = "a web page" if page else "something"
    return RequestTrouble(
        f"{host} answered with {what} that is no message of MCP: is this the right `url`?", "bad_answer"
    )


def not_an_answer(host: str, method: str) -> RequestTrouble:
    """The server sent something that is no answer to this request."""
    return not_mcp(host, page=False) if method in GREETINGS else RequestTrouble("", "bad_answer")


NOT_PROCESSED: Final = {
    307: "the method has to be repeated elsewhere (RFC 9110, 15.4.8)",
    308: "the method has to be repeated elsewhere (RFC 9110, 15.4.9)",
    400: "the server will not process it (RFC 9110, 15.5.1)",
    401: "it has not been applied (RFC 9110, 15.5.2)",
    403: "the server refuses to fulfil it (RFC 9110, 15.5.4)",
    404: "nothing is there, or the session is unknown (RFC 9110, 15.5.5; MCP, transports)",
    405: "the method is not supported there (RFC 9110, 15.5.6; MCP, transports)",
    407: "a proxy has not let it through (RFC 9110, 15.5.8)",
    410: "nothing is there any more (RFC 9110, 15.5.11)",
    411: "the server refuses to accept it (RFC 9110, 15.5.12)",
    413: "the server refuses to process it (RFC 9110, 15.5.14)",
    414: "the server refuses to service it (RFC 9110, 15.5.15)",
    415: "the server refuses to service it (RFC 9110, 15.5.16)",
    421: "it may be sent again, whatever its method (RFC 9110, 15.5.20)",
    425: "the server will not risk to process it (RFC 8470, 5.2)",
    426: "the server refuses to perform it (RFC 9110, 15.5.22)",
    428: "the server wants another request first (RFC 6585, 3)",
    429: "the request is one too many (RFC 6585, 4)",
    431: "the server is unwilling to process it (RFC 6585, 5)",
}
"""Statuses by which a request was not processed, and why that is certain. After any other status it may have
been: a gateway answers 503 or 504 when its server is silent; 303 and 409 come from servers that have acted.
"""


def kind_of_status(status: int) -> str:
    """The kind of fault of a call that was answered with this status and no message."""
    return "unavailable" if status in NOT_PROCESSED else "lost"


def status_trouble(host: str, status: int, *, retry_after_s: float | None = None) -> RequestTrouble:
    """The server answered an HTTP status without a JSON-RPC message."""
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    text = f"{host} answered HTTP {phrase}"
    if status in {404, 405, 406, 415}:
        text += ': is this the right `url`, and the right `transport` ("http", "sse")?'
    return RequestTrouble(text, kind_of_status(status), retry_after_s)
