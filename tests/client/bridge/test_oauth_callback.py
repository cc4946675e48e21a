"""The browser's way back from a login."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

from carpool.bridge.oauth_callback import OAuthCallback
from tests.behaviours import behaviour

LIMIT_S = 8.0
"""Less than a silent connection is waited for."""


class Browser:
    def __init__(self, port: int, times: int) -> None:
        self.port = port
        self.found: list[AuthorizationCodeResult] = []
        self.refused = ""
        self.waits = trio.Event()
        self.done = [trio.Event() for _ in range(times)]

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def get(self, path: str) -> bytes:
        stream = await self.connect()
        await stream.send_all(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        said = b""
        async with stream:
            while part := await stream.receive_some(4096):
                said += part
        return said


@asynccontextmanager
async def waiting(times: int = 1) -> AsyncIterator[Browser]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    browser = Browser(listener.socket.getsockname()[1], times)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                callback = OAuthCallback(listener)
                async with listener:
                    for done in browser.done:
                        callback.expect_state(f"https://as.example/authorize?state=s{len(browser.found)}")
                        browser.waits.set()
                        try:
                            browser.found.append(await callback.result())
                        except OAuthFlowError as error:
                            browser.refused = str(error)
                        done.set()

            nursery.start_soon(wait)
            await browser.waits.wait()
            yield browser


@behaviour("remote:login")
async def test_only_the_callback_counts_and_silent_or_broken_connections_hold_it_up_no_time() -> None:
    async with waiting() as browser:
        silent = await browser.connect()
        broken = await browser.connect()
        broken.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await broken.send_all(b"GET")
        await broken.aclose()  # a reset
        assert b"404" in await browser.get("/favicon.ico")
        assert await browser.get("//[x") == b"", "no URL at all"
        assert b"You are logged in" in await browser.get("/callback?code=c&state=s0")
        await browser.done[0].wait()
        await silent.aclose()
    assert browser.found == [AuthorizationCodeResult(code="c", state="s0", iss=None)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("error=access_denied&state=s0", "access_denied"),
        ("state=s0", "no code"),
        ("error=<b>&state=s0", "no code"),
    ],
)
async def test_a_refusal_is_told_as_far_as_it_is_a_word(query: str, says: str) -> None:
    async with waiting() as browser:
        assert b"There is no login" in await browser.get(f"/callback?{query}")
        await browser.done[0].wait()
    assert browser.refused.startswith(f"the authorization server said {says}")


async def test_a_server_that_wants_more_rights_is_given_the_answer_of_the_second_time() -> None:
    async with waiting(times=2) as browser:
        for number, done in enumerate(browser.done):
            assert b"You are logged in" in await browser.get(f"/callback?code=c{number}&state=s{number}")
            await done.wait()
    assert [(each.code, each.state) for each in browser.found] == [("c0", "s0"), ("c1", "s1")]


@behaviour("remote:login")
@pytest.mark.parametrize(
    "query", ["code=x", "code=x&state=", "code=x&state=S0", "error=access_denied&state=%E9"]
)
async def test_a_request_without_the_state_of_this_login_does_not_end_it(query: str) -> None:
    async with waiting() as browser:
        assert b"400 Bad Request" in await browser.get(f"/callback?{query}")
        assert b"You are logged in" in await browser.get("/callback?code=c&state=s0")
        await browser.done[0].wait()
    assert (browser.found, browser.refused) == ([AuthorizationCodeResult(code="c", state="s0", iss=None)], "")
