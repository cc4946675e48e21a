"""OAuth logins for servers over a URL: the verb, the bridges that share one, what is left of it on disk."""

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.far import Far, far
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make
from tests.live.test_live_bridge import bridge

LONG = "3600"


def logins(one: Daemon) -> list[Path]:
    return sorted((one.directory / "state" / "logins").glob("*.json"))


async def log_in(one: Daemon, *words: str) -> tuple[int, str, str]:
    """`carpool login`, and a browser that agrees to everything."""
    process = await trio.lowlevel.open_process(
        one.command("login", "far", "--no-browser", "--timeout", "30", *words),
        env=one.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = b""
    async with process.stdout, process.stderr:
        while part := await process.stderr.receive_some(1 << 16):
            said += part
            if b"\n\nhttp" in said and said.endswith(b"\n\n"):
                address = said.split(b"\n\n")[1].decode()
                await trio.to_thread.run_sync(_browse, address)
        told = b""
        while part := await process.stdout.receive_some(1 << 16):
            told += part
    return await process.wait(), told.decode(), said.decode()


def _browse(address: str) -> None:
    with urllib.request.urlopen(address, timeout=20) as page:
        page.read()


@pytest.fixture
def its() -> Iterator[Far]:
    with far("--oauth", LONG) as one:
        yield one


@behaviour("remote:login")
async def test_a_login_is_asked_for_kept_renewed_shared_and_forgotten(daemon: Make, its: Far) -> None:
    with trio.fail_after(3 * LIMIT_S):
        one = daemon({"far": {"url": its.url(), "transport": "http"}})
        async with one.agent() as agent:
            said = json.dumps(await agent.ask("tools/call", {"name": "far__echo", "arguments": {}}))
            assert f"{its.host} wants a login: run `carpool login far`" in said
            facts = await one.status()
            assert "wants a login: run `carpool login far`" in facts["servers"]["far"]["last_error"]
            code, told, said = await log_in(one)
            assert (code, told) == (0, f"logged in to {its.host}; far is started\n"), said
            assert await agent.text("far__echo", {"text": "in"}) == "in"
        seen = its.seen()
        assert seen["registered"] == 1
        assert seen["authorized"]["code_challenge_method"] == "S256"
        assert seen["authorized"]["resource"] == its.url()
        (kept,) = logins(one)
        assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert its.host not in kept.name

        # A token that the server no longer takes is renewed, once, by whoever is first of several bridges.
        its.change(forget="access")
        shared = {"logins": str(kept.parent)}
        async with bridge(its.url(), **shared) as first, bridge(its.url(), **shared) as second:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(first.greet)
                nursery.start_soon(second.greet)
            assert await first.text("echo", {"text": "1"}) + await second.text("echo", {"text": "2"}) == "12"
        assert its.seen()["refreshed"] == 1
        assert its.seen()["refreshed_for"] == its.url()

        # One that has expired is renewed before it is used.
        old = json.loads(kept.read_text())
        kept.write_text(json.dumps({**old, "expires_at": 1.0}))
        async with bridge(its.url(), **shared) as third:
            await third.greet()
        assert its.seen()["refreshed"] == 2
        assert json.loads(kept.read_text())["access_token"] != old["access_token"]

        # One that cannot be renewed is said to be at its end.
        its.change(forget="access")
        its.change(forget="refresh")
        async with bridge(its.url(), **shared) as fourth:
            answer = await fourth.ask("initialize", {})
            assert "no longer accepts the login: run `carpool login far`" in answer["error"]["message"]

        code, told, _ = await one.carpool("logout", "far")
        assert (code, told, logins(one)) == (0, "logged out of far\n", [])
        secrets = its.seen()["tokens"]
        written = [path for path in one.base.rglob("*") if path.is_file()]
        for token in secrets:
            assert [path for path in written if token.encode() in path.read_bytes()] == []


@behaviour("remote:login")
async def test_a_login_that_comes_to_nothing_says_why(daemon: Make, its: Far) -> None:
    with trio.fail_after(LIMIT_S), far() as free:
        one = daemon(
            {
                "far": {"url": its.url(), "transport": "http"},
                "free": {"url": free.url(), "transport": "http"},
                "own": {"url": its.url(), "headers": {"Authorization": "x"}},
                "cmd": {"command": "true"},
            },
            up=False,
        )
        its.change(set={"deny": True})
        code, _, said = await log_in(one)
        assert code == 1
        assert "Traceback" not in said
        assert said.splitlines()[-1] == (
            f"carpool: the login at {its.host} failed: the authorization server said access_denied"
        )
        for name, code, says in (
            ("free", 1, f"{free.host} wants no login: it answers without one"),
            ("own", 2, "own has an Authorization in its `headers` or `url`, which is used instead of a login"),
            ("cmd", 2, "cmd is not reached over a URL, so there is nothing to log in to"),
            ("fra", 2, "there is no server fra here; did you mean far?"),
        ):
            found, _, said = await one.carpool("login", name, "--no-browser")
            assert (found, said.splitlines()[-1]) == (code, f"carpool: {says}")
        assert logins(one) == []
