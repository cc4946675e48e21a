"""An HTTP client that never raises: whatever happens to a request, it has an honest answer.

The SDK's transports let a network failure end the whole connection, and a status without a message become
"an error response". This client stands under them: what fails is answered here, as the server would have
answered, in the words of `words`. Owns what a status and a failure mean, and when there is no sense in
going on (`over`): the session is gone, or the server cannot be reached for `RECONNECT_S`. A connection that
cannot be made is tried again for so long; nothing of the request was sent, so nothing is executed twice.
Nothing that may have been sent is ever sent again.

Sources: MCP 2025-11-25, basic/transports "Session Management" (404: the session has ended); RFC 9110.
Knows nothing of: what requests are about, tokens (`bearer`), streams of the SDK.
"""

import email.utils
import errno
import math
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import httpx2
import msgspec
import trio

from carpool.bridge import words
from carpool.bridge.bearer import Bearer, LoginError
from carpool.bridge.words import Trouble
from carpool_protocol.ids import RawJson
from carpool_protocol.remote import Remote, host_of
from carpool_protocol.wallclock import unix_s

RECONNECT_S: Final = 10.0
ACCEPT_S: Final = 15.0
"""So long a server may take to accept what needs no answer."""
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""So long a server that was there is tried again."""
CONNECT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_SESSION: Final = "mcp-session-id"
_EVENTS: Final = "text/event-stream"
_JSON: Final = "application/json"
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_CANNOT: Final = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL)

Say = Callable[[RawJson, bytes], Awaitable[None]]
"""Give the supervisor the answer to a request: its id and the line."""


class HonestClient(httpx2.AsyncClient):
    """The network as one server is reached over it."""

    def __init__(self, remote: Remote, bearer: Bearer | None, say: Say | None = None) -> None:
        """`say`: where answers go that the transport does not expect on the POST itself (HTTP+SSE)."""
        super().__init__(
            headers={"user-agent": "carpool", **remote.headers},
            auth=bearer,
            timeout=httpx2.Timeout(30.0, connect=CONNECT_S, read=None, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self._remote = remote
        self._bearer = bearer
        self._host = host_of(remote.url)
        self._say = say
        self._met = False
        """It has answered something."""
        self._lapsed = trio.Event()
        self.trouble: Trouble | None = None
        """Why it is over."""

    async def over(self) -> Trouble:
        """Returns when there is no sense in going on."""
        await self._lapsed.wait()
        assert self.trouble is not None
        return self.trouble

    def _end(self, trouble: Trouble) -> None:
        if self.trouble is None:
            self.trouble = trouble
            self._lapsed.set()

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, auth: Any = None, follow_redirects: Any = None
    ) -> httpx2.Response:
        """The server's response, or one that says what happened."""
        if request.method == "DELETE" and self.trouble is not None:
            return httpx2.Response(204, request=request)  # there is no session any more
        asked = words.request_in(request.content) if request.method == "POST" else None
        if request.method == "POST" and asked is None:
            # The SDK sends nothing else meanwhile; of a call it is the supervisor that knows how long.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(ACCEPT_S).as_dict()}
        try:
            response = await self._sent(request)
            if request.method == "POST":
                trouble = await self._judged(request, response, asked is not None)
            else:
                trouble = self._judged_stream(request, response)
        except _NEVER_SENT as error:
            trouble, response = words.unreachable(self._host, reason(error)), None
            if self._met or request.method == "GET":
                self._end(trouble)
        except LoginError as error:
            trouble, response = error.trouble, None
        except _CANNOT as error:
            trouble, response = words.unreachable(self._host, type(error).__name__), None
        except httpx2.RequestError:
            trouble, response = words.broken(self._host), None
        if trouble is None and response is not None:
            return response
        if response is not None:
            await response.aclose()
        assert trouble is not None
        return await self._instead(request, asked, trouble)

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        """Sent, once a connection could be made."""
        pause_s = _FIRST_PAUSE_S
        deadline = trio.current_time() + RECONNECT_S
        while True:
            try:
                response = await super().send(request, stream=True)
            except _NEVER_SENT:
                if not self._met or self.trouble is not None or trio.current_time() >= deadline:
                    raise
            else:
                self._met = True
                return response
            with trio.move_on_after(pause_s):
                await self._lapsed.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _judged(
        self, request: httpx2.Request, response: httpx2.Response, wanted: bool
    ) -> Trouble | None:
        """A POST's response; one that is not a stream is read, so that it breaks here and not in the SDK."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code < 300 and kind == _EVENTS:
            return None
        if response.next_request is not None:
            return None  # the SDK follows it within the origin, or says where it leads
        size = response.headers.get("content-length", "")
        if len(size) > 18 or (size.isdigit() and int(size) > MAX_BODY_BYTES):
            return Trouble("", "answer_too_large")
        await response.aread()
        if response.status_code < 400:
            return None
        if _SESSION in request.headers and _ends_session(response):
            trouble = words.session_ended(self._host)
            self._end(trouble)
            return trouble
        if not wanted or _is_rpc_error(response.content):
            return None
        return self._of_status(response)

    def _judged_stream(self, request: httpx2.Request, response: httpx2.Response) -> Trouble | None:
        """A GET's response: a stream that breaks just ends, and the SDK opens it again."""
        if request.method != "GET":
            return None
        if response.status_code == 200:
            response.stream = _Ending(response.stream)
        elif response.status_code == 404 and _SESSION in request.headers:
            self._end(words.session_ended(self._host))
        elif response.status_code >= 400 and self._say is not None:  # of HTTP+SSE it is all there is
            self._end(self._of_status(response))
        return None

    def _of_status(self, response: httpx2.Response) -> Trouble:
        status = response.status_code
        challenge = response.headers.get("www-authenticate", "")
        if status == 401 and self._remote.authorized:
            return words.not_authorized(self._host)
        if status == 401:
            known = self._bearer is not None and self._bearer.is_known
            return words.needs_login(self._host, self._remote.server, again=known)
        if status == 403 and "insufficient_scope" in challenge:
            return words.more_scopes(self._host, self._remote.server, _scopes_in(challenge))
        later_s = _retry_after_s(response.headers.get("retry-after", "")) if status in (429, 503) else None
        return words.answered_status(self._host, status, retry_after_s=later_s)

    async def _instead(
        self, request: httpx2.Request, asked: tuple[RawJson, str] | None, trouble: Trouble
    ) -> httpx2.Response:
        """The response that the SDK reads instead of none."""
        if asked is None:
            return httpx2.Response(502 if request.method == "GET" else 202, request=request)
        line = words.answer_line(*asked, trouble, self._remote.server)
        if self._say is not None:
            await self._say(asked[0], line)
            return httpx2.Response(202, request=request)
        return httpx2.Response(200, headers={"content-type": _JSON}, content=line, request=request)


class _Ending(httpx2.AsyncByteStream):
    """A stream whose connection may break: then it is at its end."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._inner:
                yield part
        except httpx2.TransportError:
            return

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Error(msgspec.Struct):
    code: int
    message: str = ""


class _ErrorMessage(msgspec.Struct):
    error: _Error


_error_message: Final = msgspec.json.Decoder(_ErrorMessage)


def _rpc_error(body: bytes) -> _Error | None:
    try:
        return _error_message.decode(body).error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _is_rpc_error(body: bytes) -> bool:
    return _rpc_error(body) is not None


def _ends_session(response: httpx2.Response) -> bool:
    """404 says so; servers made after the TypeScript SDK's examples say 400 and `No valid session ID`."""
    if response.status_code == 404:
        return True
    error = _rpc_error(response.content) if response.status_code == 400 else None
    return error is not None and error.code == -32000 and "session" in error.message.lower()


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


def reason(error: BaseException) -> str:
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
