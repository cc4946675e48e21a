"""Servers over a URL behind a whole carpool: whose secrets go where, and what agents see of one's end."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of, settled
from tests.kit.live import Daemon, Make, texts_below
from tests.kit.remote_server import RemoteServer, remote_server
from tests.kit.waits import until

ONE, TWO, QUERY = "canary-5b1f0c77", "canary-2e9d4a10", "canary-77aa01bd"


@pytest.fixture(scope="module")
def its() -> Iterator[RemoteServer]:
    with remote_server() as one:
        yield one


def told(one: Daemon) -> Iterator[str]:
    """Every file that carpool has written but its copy of the user's own, and every command line there is."""
    own = {one.config, Path(paths.last_good_file(str(one.directory)))}
    yield from (text for path, text in texts_below(one.base) if path not in own)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
        except OSError:
            continue


@behaviour("remote:secrets", "remote:stateless")
async def test_agents_with_other_tokens_have_other_instances_and_no_token_is_told(
    daemon: Make, its: RemoteServer
) -> None:
    headers = {"Authorization": "Bearer ${TOKEN}"}
    one = daemon(
        {
            "far": {"url": its.url() + "?key=${QUERY}", "transport": "http", "headers": headers},
            "new": {"url": its.url(), "transport": "http", "headers": headers, "era": "modern"},
            "gone": {"url": "http://127.0.0.1:9/${QUERY}", "headers": headers},
        }
    )
    with trio.fail_after(2 * LIMIT_S):
        async with (
            one.shim(environ={"TOKEN": ONE, "QUERY": QUERY}) as first,
            one.shim(environ={"TOKEN": TWO, "QUERY": QUERY}) as second,
        ):
            for name in ("far", "new"):
                said = {"name": "authorization"}
                assert await first.text(f"{name}__header", said) == f"Bearer {ONE}"
                assert await second.text(f"{name}__header", said) == f"Bearer {TWO}"
            refused = await first.call("gone__x")
            why = "Its last error: cannot reach 127.0.0.1:9 (connection refused). "
            assert why in refused["content"][0]["text"]
            facts = await one.status()
            pools = {name: len(each["pools"]) for name, each in facts["servers"].items()}
            assert pools == {"far": 2, "new": 2, "gone": 2}
            eras = {each["era"] for each in facts["servers"]["new"]["instances"]}
            assert eras == {"stateless"}
            reports = [json.dumps(refused)]
            for words in (("status",), ("ps",), ("check",), ("why", "far"), ("logs", "gone")):
                _, said_out, said_err = await one.carpool(*words)
                reports += [said_out, said_err]
            for secret in (ONE, TWO, QUERY):
                assert [text for text in (*reports, *told(one)) if secret in text] == []


@behaviour("remote:killed")
async def test_a_server_that_is_killed_in_a_call_comes_back_for_the_next(daemon: Make) -> None:
    with remote_server() as its:
        one = daemon({"far": {"url": its.url(), "transport": "http", "restart": {"first_delay_s": 0.1}}})
        with trio.fail_after(2 * LIMIT_S):
            async with one.agent() as agent:
                await agent.text("far__echo", {"text": "there"})
                call = await agent.start("far__hang")
                await until(lambda: its.seen()["hanging"] == 1, "it runs")
                its.kill()
                lost = fault_of((await agent.answer(call))["result"])
                assert lost["delivered"] == "maybe"
                its.start()
                # What is under way while the old bridge ends may be lost, too.
                back = await settled(
                    lambda: agent.call("far__echo", {"text": "back"}),
                    lambda result: not result.get("isError"),
                    "it is there again",
                )
                assert back["content"][0]["text"] == "back"
