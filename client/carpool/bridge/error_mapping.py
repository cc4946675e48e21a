"""Maps responses without an answer, and failures of the network, to a `RequestTrouble`.

Owns this mapping of statuses and headers, the list of responses that end a session, the redirects that are
followed, and the reason why no connection could be made, in a few words. Sources: MCP 2025-11-25,
basic/transports "Session Management" (404: the session has ended); RFC 9110; RFC 6750, 3.1.

Reads the clock (`Retry-After` may be a date) and which proxies the environment names, and nothing else.
Knows nothing of: how requests are sent and repeated (`http_client`), what they are about.
"""

import email.utils
import errno
import math
import os
import socket
import ssl
from typing import Final

import httpx2
import msgspec

from carpool.bridge import error_texts, proxies
from carpool.bridge.error_texts import RequestTrouble
from carpool_protocol.carrier.remote import Remote, host_of
from carpool_protocol.ids import RawJson
from carpool_protocol.runtime.wallclock import unix_s


class _Error(msgspec.Struct):
    code: int
    message: str = ""


class _ErrorMessage(msgspec.Struct):
    error: _Error


class _Answer(msgspec.Struct):
    """A message, as far as it says whose answer it is."""

    id: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")


_error_message: Final = msgspec.json.Decoder(_ErrorMessage)
_answer: Final = msgspec.json.Decoder(_Answer)


def _rpc_error(body: bytes) -> _Error | None:
    try:
        return _error_message.decode(body).error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def is_rpc_error(body: bytes) -> bool:
    """True if the body is a JSON-RPC error, whatever the status of its response."""
    return _rpc_error(body) is not None


def ends_session(status: int, body: bytes) -> bool:
    """True for 404, and for 400 with `No valid session ID`, as examples of the TypeScript SDK answer."""
    if status == 404:
        return True
    error = _rpc_error(body) if status == 400 else None
    return error is not None and error.code == -32000 and "session" in error.message.lower()


def answer_in(body: bytes, request: RawJson) -> bytes | None:
    """The answer to this request in the body of its response; None: no answer, or one to another request.

    An error without an id is this request's (JSON-RPC 2.0, 5) and gets the id. An unreadable body is returned
    as it is.
    """
    try:
        found = _answer.decode(body)
        if msgspec.json.decode(found.id) == msgspec.json.decode(request):
            return body if bytes(found.result) or bytes(found.error) else None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return body
    if bytes(found.id) == b"null" and bytes(found.error):
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (request, bytes(found.error))
    return None


def trouble_of_status(response: httpx2.Response, remote: Remote, *, logged_in: bool) -> RequestTrouble:
    """The trouble of a request that got a status without a message. `logged_in`: there is a login for it."""
    status, host = response.status_code, host_of(remote.url)
    challenge = response.headers.get("www-authenticate", "")
    if status == 401 and remote.authorized:
        return error_texts.not_authorized(host)
    if status == 401:
        return error_texts.needs_login(host, remote.server, again=logged_in)
    if status == 403 and "insufficient_scope" in challenge:
        return error_texts.more_scopes(host, remote.server, _scopes_in(challenge))
    later_s = _retry_after_s(response.headers.get("retry-after", "")) if status == 429 else None
    return error_texts.status_trouble(host, status, retry_after_s=later_s)


def _scopes_in(challenge: str) -> str:
    """The scopes of a `WWW-Authenticate`, for people."""
    found = challenge.partition('scope="')[2].partition('"')[0][:80]
    return found if found.isascii() and found.isprintable() else ""


def _retry_after_s(value: str) -> float | None:
    """RFC 9110, 10.2.3: seconds, or a date."""
    if value.isascii() and value.isdigit() and len(value) < 8:
        return float(value)
    try:
        until = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    return max(0.0, math.ceil(until.timestamp() - unix_s()))


def redirected_request(response: httpx2.Response) -> httpx2.Request | None:
    """The request that a redirect leads to, where it may: same method, same origin, or that origin's https.

    What goes with a request (headers, a login, arguments) is meant for the host of the configuration.
    """
    request = response.next_request
    if request is None:
        return None
    old, new = response.request.url, request.url
    secured = (old.scheme, old.port, new.scheme, new.port) == ("http", None, "https", None)
    same = (old.scheme, old.port) == (new.scheme, new.port) or secured
    if request.method != response.request.method or old.host != new.host or not same:
        return None
    return request if not new.userinfo or new.userinfo == old.userinfo else None


def redirect_trouble(response: httpx2.Response, host: str) -> RequestTrouble:
    """A redirect that is not followed. The server may have acted, as after a form (301, 302, 303)."""
    request, kind = response.next_request, error_texts.kind_of_status(response.status_code)
    there = f"{request.url.scheme}://{host_of(str(request.url))}" if request is not None else ""
    if there == f"{response.request.url.scheme}://{host}":
        why = f"{host} redirects as for a browser ({response.status_code}): the `url` may be wrong"
        return RequestTrouble(why, kind)
    why = f"{host} redirects to {there}: if that is right, write it into the `url` of this server"
    return RequestTrouble(why, kind)


def connect_trouble(url: str, error: BaseException) -> RequestTrouble:
    """No connection to this URL could be made."""
    return error_texts.unreachable(host_of(url), _reason(error), through_proxy=proxies.is_between(url))


def _reason(error: BaseException) -> str:
    """Why no connection could be made, in a few words; never an address or a path."""
    seen: BaseException | None = error
    while seen is not None:
        match seen:
            case ssl.SSLCertVerificationError():
                return f"its certificate is not accepted: {seen.verify_message}"
            case ssl.SSLError():
                return "no TLS connection could be made"
            case socket.gaierror():
                return "no such host"
            case ConnectionRefusedError():
                return "connection refused"
            case httpx2.ProxyError():
                return "it refuses"
            case TimeoutError() | httpx2.TimeoutException():
                return "no answer in time"
            case OSError(errno=number) if number:
                return os.strerror(number) if number in errno.errorcode else "the network failed"
            case BaseExceptionGroup(exceptions=inner) if inner:
                seen = inner[0]
                continue
            case _:
                pass
        seen = seen.__cause__ or seen.__context__
    return "no connection"
