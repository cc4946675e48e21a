"""Servers of the official SDKs over a URL: what agents of three SDKs at once see of them through carpool, and
of a process of its own over stdio: the same.

Two of the five that there are, since a tour takes ten seconds: `sdk1` over HTTP+SSE, `sdk2` and `everything`
over Streamable HTTP pass as well.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Make
from tests.kit.ports import free_port
from tests.kit.private_daemon import until
from tests.kit.sdk_reports import compare, plain
from tests.kit.sdks import ASKABLE, SERVERS, require_peers, steps_of
from tests.live.test_live_sdks import NAMES, direct_tours, tours


@pytest.fixture(autouse=True)
def _peers() -> None:
    require_peers()


WORDS = {"http": "streamableHttp", "sse": "sse"}
"""What server-everything calls a transport."""


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def over_url(server: str, transport: str) -> Iterator[Json]:
    """The configuration of this server, which runs over HTTP meanwhile."""
    port = free_port()
    words = [WORDS[transport]] if server == "everything" else [transport, str(port)]
    command = [*SERVERS[server], *words]
    environ = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: listens(port), f"{server} listens")
            path = "sse" if transport == "sse" else "mcp"
            yield {"url": f"http://127.0.0.1:{port}/{path}", "transport": transport, "tools_prefix": ""}
        finally:
            process.kill()


@behaviour("remote:handshake")
@pytest.mark.parametrize(
    ("server", "transport"),
    [("sdk1", "http"), ("everything", "sse")],
)
async def test_agents_see_of_a_server_over_a_url_what_they_see_of_their_own(
    daemon: Make, server: str, transport: str
) -> None:
    settings: Json = {
        "wait_s": 30,
        "sharing": "serial",
        "pool": {"max": 1},
    }
    with over_url(server, transport) as entry:
        one = daemon({server: {**entry, **settings}})
        with trio.fail_after(2 * LIMIT_S):
            direct = await direct_tours(server, one)
            async with one.agent(greet=False) as first:
                await first.greet("2025-11-25", ASKABLE)
                await first.tools()
            through = await tours(
                lambda _: one.command("connect"), one, lambda name: steps_of(server, name), "through"
            )
            wrong: list[str] = []
            for kind, name in NAMES.items():
                wrong += compare(
                    kind, steps_of(server, name), plain(kind, direct[kind]), plain(kind, through[kind])
                )
            assert not wrong, "\n".join(wrong)
