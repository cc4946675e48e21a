"""OAuth logins for servers over a URL: the verb, the bridges that share one, what is left of it on disk."""

import json
import socket
import subprocess
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from carpool.bridge.oauth_login import SignInError, sign_in
from carpool_protocol.carrier.remote import Remote
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json
from tests.kit.live import Daemon, Make
from tests.kit.remote_server import RemoteServer, remote_server
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
    with urllib.request.urlopen(address, timeout=WAIT_S) as page:
        page.read()


@pytest.fixture
def its() -> Iterator[RemoteServer]:
    with remote_server("--oauth", LONG) as one:
        yield one


@behaviour("remote:login")
async def test_a_login_is_asked_for_kept_renewed_shared_and_forgotten(
    daemon: Make, its: RemoteServer
) -> None:
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
        kept.write_text(json.dumps({**old, "renew_at": 1.0}))
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
async def test_a_login_that_comes_to_nothing_says_why(daemon: Make, its: RemoteServer) -> None:
    with trio.fail_after(LIMIT_S), remote_server() as free:
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
            (
                "own",
                2,
                "own has an Authorization in its `headers` or `url`, which is used instead of a login",
            ),
            ("cmd", 2, "cmd is not reached over a URL, so there is nothing to log in to"),
            ("fra", 1, "there is no server 'fra' in the configuration; did you mean 'far'?"),
        ):
            found, _, said = await one.carpool("login", name, "--no-browser")
            assert (found, said.splitlines()[-1]) == (code, f"carpool: {says}")
        assert logins(one) == []


class AtHand:
    """A login in this process: who it is for, and a browser that agrees to everything."""

    def __init__(self, its: RemoteServer, directory: Path) -> None:
        self._its = its
        self._directory = directory

    async def login(self, path: str = "/mcp", transport: str = "http", **settings: Any) -> Json:
        """What is kept. Raises `SignInError`."""
        logins = self._directory / str(uuid.uuid4())
        remote = Remote(
            server="far",
            url=self._its.url(path),
            transport=transport,  # type: ignore[arg-type]
            logins=str(logins),
            **settings,
        )
        async with trio.open_nursery() as nursery:

            async def show(address: str) -> None:
                nursery.start_soon(trio.to_thread.run_sync, _browse, address)

            try:
                await sign_in(remote, show, LIMIT_S)
            except SignInError as error:
                return {"refused": str(error)}
        [file] = logins.glob("*.json")
        found: Json = json.loads(file.read_text())
        return found

    async def refusal(self, **settings: Any) -> str:
        said: str = (await self.login(**settings))["refused"]
        return said.partition(" failed: ")[2] or said


@behaviour("remote:login")
async def test_authorization_servers_of_each_kind_are_logged_in_to(its: RemoteServer, tmp_path: Path) -> None:
    one = AtHand(its, tmp_path)
    with trio.fail_after(LIMIT_S):
        plain = await one.login("/mcp/")  # which the server redirects to /mcp
        assert (plain["scope"], plain["resource"]) == ("all", its.url())
        assert (await one.login("/sse", "sse"))["resource"] == its.url("/sse")
        await one.login(scopes=("one", "two"))
        assert its.seen()["authorized"]["scope"] == "one two", "not what the server advertises"
        await one.login(headers={"X-Key": "secret"})
        assert {each["path"] for each in its.seen()["seen"] if "x-key" in each["headers"]} == {"/mcp"}
        its.change(set={"metadata": "/.well-known/openid-configuration"})
        assert (await one.login())["token_endpoint"] == its.url("/token")
        its.change(set={"resource_status": 404}, unset=["metadata"])  # as of 2025-03-26
        assert (await one.login())["token_endpoint"] == its.url("/token")
        its.change(set={"methods": ["client_secret_basic"]}, unset=["resource_status"])
        kept = await one.login(client_id="me", client_secret="hunter2")
        assert kept["client"]["token_endpoint_auth_method"] == "client_secret_basic"
        seen = its.seen()
        assert seen["basic"] == "Basic bWU6aHVudGVyMg=="
        assert "client_secret" not in seen["form"]


@behaviour("remote:login")
async def test_what_goes_wrong_in_a_login_is_told_without_what_came(
    its: RemoteServer, tmp_path: Path
) -> None:
    one = AtHand(its, tmp_path)
    with trio.fail_after(LIMIT_S), socket.socket() as taken:
        its.change(set={"resource_status": 500})
        assert await one.refusal() == "Protected resource metadata request failed: HTTP 500"
        its.change(set={"token_status": 400, "token_says": {"error": "secret"}}, unset=["resource_status"])
        assert await one.refusal() == "Token exchange failed (400)"
        its.change(set={"token_status": 200, "token_says": {"access_token": "x", "token_type": "bearer"}})
        assert await one.refusal() == f"{its.host} does not accept the login that it has given (401)"
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"nobody can wait on port {port}" in await one.refusal(redirect_port=port)
    assert sorted(tmp_path.rglob("*.json")) == []  # noqa: ASYNC240
