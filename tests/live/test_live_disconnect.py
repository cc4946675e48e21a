"""`carpool disconnect` under agents of every carrier."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, observer
from tests.kit.open_door import open_door
from tests.kit.waits import until
from tests.live.conftest import shared_daemon
from tests.live.test_live_http import ask, door, modern, request, session

SERVERS = {"good": observer()}


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    yield from shared_daemon(SERVERS, http=open_door())


async def disconnect(daemon: Daemon, name: str) -> dict[str, Any]:
    code, out, said = await daemon.carpool("disconnect", name, "--json")
    assert code == 0, said
    ended: dict[str, Any] = json.loads(out)
    return ended


async def only_session(daemon: Daemon, carrier: str) -> str:
    status = await daemon.until(
        lambda facts: [each for each in facts["sessions"] if each["carrier"] == carrier],
        f"a session through {carrier}",
    )
    (row,) = [each for each in status["sessions"] if each["carrier"] == carrier]
    return str(row["id"])


@behaviour("operate:disconnect")
async def test_a_shim_ends_with_the_reason_and_its_call_is_cancelled(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as other:
            async with shared.shim() as agent:
                await agent.start("good__hold", {"text": "x", "until": str(shared.base / "never")})
                await other.inside("good", 1)
                ended = await disconnect(shared, await only_session(shared, "shim"))
                assert (ended["carrier"], ended["open_calls"]) == ("shim", 1)
                log = shared.base / "shims.log"
                why = "an operator has disconnected this session"
                await until(lambda: why in log.read_text(), "the shim says why it ends")
            await other.until_seen("good", lambda seen: seen["cancels"], "the server is told")
            rows = (await shared.status())["sessions"]
            assert [each for each in rows if each["carrier"] == "shim"] == [], "it does not come back"
            code, _, said = await shared.carpool("disconnect", ended["session"])
            assert (code, "`carpool status`" in said) == (1, True), said


@behaviour("operate:disconnect")
async def test_a_session_over_http_ends_and_its_client_may_greet_again(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        url, _ = door(shared)
        public = await trio.to_thread.run_sync(session, url)
        assert (await disconnect(shared, await only_session(shared, "http")))["carrier"] == "http"
        refused = ask(url, "POST", "", request(2, "tools/list"), Mcp_Session_Id=public)
        assert refused.status == 404, refused.body
        again = session(url)
        assert again != public
        assert ask(url, "POST", "", request(2, "tools/list"), Mcp_Session_Id=again).status == 200
        ask(url, "DELETE", Mcp_Session_Id=again)


@behaviour("operate:disconnect")
async def test_stateless_requests_have_another_session_afterwards(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        url, _ = door(shared)
        await shared.until(lambda facts: not facts["sessions"], "all others have left")
        assert (await trio.to_thread.run_sync(modern, url, "tools/list")).status == 200
        await disconnect(shared, await only_session(shared, "http"))
        assert (await trio.to_thread.run_sync(modern, url, "tools/list")).status == 200
        await disconnect(shared, await only_session(shared, "http"))
