"""An HTTP client that never raises: each request gets an answer that says what happened to it.

The SDK's transports let a network failure end the whole connection, and a status without a message become
"an error response". This client stands under them: what fails is answered here, as the server would have
answered, in the words of `error_texts`. Owns when there is no sense in going on (`over`): the session is
gone, or the server cannot be reached for `RECONNECT_S`. A connection that cannot be made is tried again for
so long; nothing of the request was sent, so nothing is executed twice. Nothing that may have been sent is
ever sent again.

The SDK sends one message after the other where it does not wait for an answer: over HTTP+SSE all of them,
over Streamable HTTP notifications. One that its server is slow to accept would hold up every other agent's,
so such messages go out beside it.

Knows nothing of: what requests are about, what a status means (`error_mapping`), tokens (`oauth_token`),
streams of the SDK.
Decision: docs/decisions/0022.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import httpx2
import trio

from carpool.bridge import error_texts
from carpool.bridge.cancellation import OpenPosts
from carpool.bridge.error_mapping import (
    answer_in,
    connect_trouble,
    ends_session,
    is_rpc_error,
    redirect_trouble,
    redirected_request,
    trouble_of_status,
)
from carpool.bridge.error_texts import RequestTrouble
from carpool.bridge.event_bounds import MAX_BODY_BYTES, MAX_BODY_PARTS, with_bounds
from carpool.bridge.notifications import GetStreams, StreamPace, keep_alive
from carpool.bridge.oauth_token import BearerAuth, LoginError
from carpool.bridge_mark import headers_of
from carpool_protocol.carrier.remote import Remote, host_of
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.json_scan import has_too_many_parts

RECONNECT_S: Final = 10.0
"""So long a server that was there is tried again."""
ACCEPT_S: Final = 15.0
"""So long a server may take to accept what needs no answer."""
CONNECT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_IDLE_S: Final = 4.0
"""So long an idle connection is used again: many servers close theirs after 5 s, and what meets that is
lost."""
MOST_REDIRECTS: Final = 5
_SESSION: Final = "mcp-session-id"
_EVENTS: Final = "text/event-stream"
_JSON: Final = "application/json"
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_CANNOT: Final = (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL)

Say = Callable[[RawJson, bytes], Awaitable[None]]
"""Give the supervisor the answer to a request: its id and the line."""


class BridgeHttpClient(httpx2.AsyncClient):
    """The network as one server is reached over it."""

    def __init__(
        self,
        remote: Remote,
        bearer: BearerAuth | None,
        beside: trio.Nursery,
        answers: Callable[[RawJson], None],
        say: Say | None = None,
    ) -> None:
        """`beside`: where what the SDK need not wait for is sent. `answers`: is told of a request that
        its next answer is ours. `say`: where answers go that the transport does not expect on the POST itself
        (HTTP+SSE).
        """
        super().__init__(
            headers={"user-agent": "carpool", **remote.headers, **headers_of(remote.logins)},
            auth=bearer,
            timeout=httpx2.Timeout(30.0, connect=CONNECT_S, read=None, pool=None),
            limits=httpx2.Limits(keepalive_expiry=_IDLE_S),
        )
        self._remote = remote
        self._bearer = bearer
        self._beside = beside
        self._host = host_of(remote.url)
        self._answers = answers
        self._write_answer = say
        self._listening = GetStreams()
        self._resuming = StreamPace()
        self._outstanding = OpenPosts(answers)
        self._has_connected = False
        """It has answered something."""
        self._lapsed = trio.Event()
        self.trouble: RequestTrouble | None = None
        """Why it is over."""

    async def wait_until_done(self) -> RequestTrouble:
        """Returns when there is no sense in going on."""
        await self._lapsed.wait()
        assert self.trouble is not None
        return self.trouble

    def _end(self, trouble: RequestTrouble) -> None:
        if self.trouble is None:
            self.trouble = trouble
            self._lapsed.set()

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, auth: Any = None, follow_redirects: Any = None
    ) -> httpx2.Response:
        """The server's response, or one that says what happened."""
        if request.method == "GET":
            return await self._send_get(request)
        if request.method != "POST":
            return await self._send_delete(request)
        head = error_texts.head_of(request.content)
        asked = head if all(head) else None
        if asked is None:
            # Of a call it is the supervisor that knows how long.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(ACCEPT_S).as_dict()}
        # A server may want to know that it is initialized before it hears anything else.
        if (asked is None or self._write_answer is not None) and head[1] != "notifications/initialized":
            self._beside.start_soon(self._post_in_background, request, asked)
            if head[1] == "notifications/cancelled":
                self._beside.start_soon(
                    self._outstanding.request_cancelled, error_texts.cancelled_in(request.content)
                )
            return httpx2.Response(202, request=request)
        if asked is None or asked[1] == error_texts.LISTEN:
            return await self._send_post(request, asked)
        return await self._outstanding.run(asked[0], lambda: self._send_post(request, asked))

    # --- one request --------------------------------------------------------------------------------------

    async def _post_in_background(self, request: httpx2.Request, asked: tuple[RawJson, str] | None) -> None:
        """Sent while nobody waits: what comes is let go, a stream as well."""
        await (await self._send_post(request, asked)).aclose()

    async def _send_post(self, request: httpx2.Request, asked: tuple[RawJson, str] | None) -> httpx2.Response:
        listens = asked is not None and asked[1] == error_texts.LISTEN
        if listens:
            await self._listening.wait_for_turn()
        try:
            return await self._checked_response(await self._send_with_redirects(request), asked)
        except _RefusedError as refused:
            trouble = refused.trouble
        except _NEVER_SENT as error:
            trouble = connect_trouble(self._remote.url, error)
            if self._has_connected:
                self._end(trouble)
        except LoginError as error:
            trouble = error.trouble
        except _CANNOT as error:
            trouble = error_texts.unreachable(self._host, type(error).__name__)
        except httpx2.RequestError:
            trouble = error_texts.connection_broken(self._host)
        if listens:
            self._listening.attempt_failed()
        return await self._error_response(request, asked, trouble)

    async def _send_get(self, request: httpx2.Request) -> httpx2.Response:
        """A GET opens a stream. One that breaks just ends, and the SDK opens it again."""
        listens = self._write_answer is None and self._listening.is_listen_request(request)
        await (self._listening if listens else self._resuming).wait_for_turn()
        response = trouble = None
        try:
            response = await self._send_with_redirects(request)
            if response.status_code == 404 and _SESSION in request.headers:
                trouble = error_texts.session_ended(self._host)
            elif response.next_request is not None:
                trouble = redirect_trouble(response, self._host) if self._write_answer is not None else None
            elif response.status_code != 200 and self._write_answer is not None:
                trouble = self._of_status(response)
        except _NEVER_SENT as error:
            trouble = connect_trouble(self._remote.url, error)
        except LoginError as error:
            trouble = error.trouble if self._write_answer is not None else None
        except httpx2.RequestError as error:
            trouble = connect_trouble(self._remote.url, error) if self._write_answer is not None else None
        if trouble is not None:
            self._end(trouble)
        if listens:
            return await self._listening.checked_response(response, request)
        if response is None:
            return httpx2.Response(502, request=request)
        keep_alive(response)
        if response.status_code == 200:
            self._resuming.with_pace(response)
        return response

    async def _send_delete(self, request: httpx2.Request) -> httpx2.Response:
        """A DELETE ends the session; whether it does is no matter."""
        if self.trouble is not None:
            return httpx2.Response(204, request=request)  # there is no session any more
        try:
            return await self._send_with_redirects(request)
        except (httpx2.RequestError, LoginError):
            return httpx2.Response(204, request=request)

    async def _send_with_redirects(self, request: httpx2.Request) -> httpx2.Response:
        """Sent, once a connection could be made, and to where the server has it on its own origin."""
        response = await self._send_once(request)
        for _ in range(MOST_REDIRECTS):
            further = redirected_request(response)
            if further is None:
                break
            await response.aclose()
            response = await self._send_once(further)
        return with_bounds(response) if _kind_of(response) == _EVENTS else response

    async def _send_once(self, request: httpx2.Request) -> httpx2.Response:
        pause_s = _FIRST_PAUSE_S
        deadline = trio.current_time() + RECONNECT_S
        while True:
            try:
                response = await super().send(request, stream=True)
            except _NEVER_SENT:
                if not self._has_connected or self.trouble is not None or trio.current_time() >= deadline:
                    raise
            else:
                self._has_connected = True
                return response
            with trio.move_on_after(pause_s):
                await self._lapsed.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    # --- what came ----------------------------------------------------------------------------------------

    async def _checked_response(
        self, response: httpx2.Response, asked: tuple[RawJson, str] | None
    ) -> httpx2.Response:
        """A POST's response as the SDK may have it; one that is not a stream is read, so that it breaks here
        and not there. Raises `_RefusedError`.
        """
        status, kind = response.status_code, _kind_of(response)
        if status < 300 and kind == _EVENTS:
            if asked is not None and asked[1] == error_texts.LISTEN:
                self._listening.stream_opened(response)
            else:
                keep_alive(response)
            return response
        try:
            body = await bounded(response, MAX_BODY_BYTES)
        finally:
            await response.aclose()
        if body is None or has_too_many_parts(body, MAX_BODY_PARTS):
            raise _RefusedError(RequestTrouble("", "answer_too_large"))
        if response.next_request is not None:
            raise _RefusedError(redirect_trouble(response, self._host))
        if status >= 400 and _SESSION in response.request.headers and ends_session(status, body):
            self._end(error_texts.session_ended(self._host))
            raise _RefusedError(error_texts.session_ended(self._host))
        if asked is not None and status >= 300 and not is_rpc_error(body):
            raise _RefusedError(self._of_status(response))
        if asked is not None and status == 200 and kind == _JSON:
            found = answer_in(body, asked[0])
            if found is None:
                raise _RefusedError(error_texts.not_an_answer(self._host, asked[1]))
            body = found
        headers = {
            name: response.headers[name] for name in ("content-type", _SESSION) if name in response.headers
        }
        return httpx2.Response(status, headers=headers, content=body, request=response.request)

    def _of_status(self, response: httpx2.Response) -> RequestTrouble:
        known = self._bearer is not None and self._bearer.is_known
        return trouble_of_status(response, self._remote, logged_in=known)

    async def _error_response(
        self, request: httpx2.Request, asked: tuple[RawJson, str] | None, trouble: RequestTrouble
    ) -> httpx2.Response:
        """The response that the SDK reads instead of none."""
        if asked is None:
            return httpx2.Response(202, request=request)
        line = error_texts.answer_line(*asked, trouble, self._remote.server)
        if self._write_answer is not None:
            await self._write_answer(asked[0], line)
            return httpx2.Response(202, request=request)
        self._answers(asked[0])
        return httpx2.Response(200, headers={"content-type": _JSON}, content=line, request=request)


class _RefusedError(Exception):
    """The response is none that the SDK should see."""

    def __init__(self, trouble: RequestTrouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


def _kind_of(response: httpx2.Response) -> str:
    """Its media type."""
    kind: str = response.headers.get("content-type", "")
    return kind.partition(";")[0].strip().lower()


async def bounded(response: httpx2.Response, limit: int) -> bytes | None:
    """A body, unpacked; None where it is longer than this many bytes, or says so."""
    said = response.headers.get("content-length", "")
    if len(said) > 18 or (said.isdigit() and int(said) > limit):
        return None
    parts: list[bytes] = []
    size = 0
    async with aclosing(response.aiter_bytes()) as body:
        async for part in body:
            size += len(part)
            if size > limit:
                return None
            parts.append(part)
    return b"".join(parts)
