"""Access of a node to NATS servers: TLS, credentials, and what a refusal looks like."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from carpool.cluster.links import nats as nats_link
from carpool.cluster.links.nats import MIN_PAYLOAD_BYTES, NatsLink
from carpool.cluster.links.nats_access import NatsAccess
from tests.behaviours import behaviour
from tests.kit.nats_server import (
    JETSTREAM,
    Issuer,
    NatsAccount,
    NatsServer,
    nats_server,
    new_key,
    write_secret,
)
from tests.kit.node_links import NodeLinkEnd, until

TLS = JETSTREAM + 'tls { cert_file: "server.crt", key_file: "server.key" }\n'
PASSWORD = JETSTREAM + 'authorization { user: alpha, password: "p@ss/word" }\n'


@contextlib.asynccontextmanager
async def end_of(access: NatsAccess, node: str = "alpha") -> AsyncIterator[NodeLinkEnd]:
    """A running link of a node."""
    end = NodeLinkEnd(NatsLink(access, "carpool", node))
    end.start()
    try:
        yield end
    finally:
        await end.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run one test on its own loop."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def reached(access: NatsAccess) -> None:
    """Assert that a node with this access reaches the server, and stores its offer."""

    async def test() -> None:
        async with end_of(access) as end:
            await until(lambda: end.restored == 1)
            await end.link.publish(b"offer")
            await until(lambda: end.offers == {"alpha": b"offer"})
            assert end.link.problem == ""

    run(test)


def refused(access: NatsAccess, text: str) -> None:
    """Assert that a node with this access is told why, once, and is not connected."""

    async def test() -> None:
        async with end_of(access) as end:
            await until(lambda: text in end.link.problem)
            assert not end.link.is_up
            assert end.restored == 0
            assert [each for each in end.reports if text in each] == end.reports[-1:]

    run(test)


# --- TLS -----------------------------------------------------------------------------------------------


@behaviour("cluster:tls")
@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_a_server_with_a_certificate_of_the_right_issuer_is_reached(tmp_path: Path, scheme: str) -> None:
    issuer = Issuer(tmp_path)
    issuer.issue("server", "localhost")
    with nats_server(tmp_path, TLS) as server:
        reached(NatsAccess(f"{scheme}://localhost:{server.port}", ca=str(issuer.file)))


@behaviour("cluster:tls")
def test_a_certificate_of_an_unknown_issuer_is_refused(tmp_path: Path) -> None:
    Issuer(tmp_path).issue("server", "localhost")
    other = Issuer(tmp_path, "other")
    with nats_server(tmp_path, TLS) as server:
        refused(NatsAccess(f"tls://localhost:{server.port}", ca=str(other.file)), "check `cluster.ca`")
        refused(NatsAccess(f"tls://localhost:{server.port}"), "check `cluster.ca`")


@behaviour("cluster:tls")
def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    issuer.issue("server", "localhost", days=-1)
    with nats_server(tmp_path, TLS) as server:
        refused(NatsAccess(f"tls://localhost:{server.port}", ca=str(issuer.file)), "certificate has expired")


@behaviour("cluster:tls")
def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    issuer.issue("server", "elsewhere.example")
    with nats_server(tmp_path, TLS) as server:
        refused(NatsAccess(f"tls://localhost:{server.port}", ca=str(issuer.file)), "Hostname mismatch")


@behaviour("cluster:tls")
def test_nothing_is_said_to_a_server_without_tls_at_a_tls_address() -> None:
    """It might be somebody in between, who is after the password."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","max_payload":1048576,"headers":true}\r\n')
        heard.append(await reader.read(1024))
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, end_of(NatsAccess(f"tls://alpha:secret@127.0.0.1:{port}")) as end:
            await until(lambda: "offers no TLS" in end.link.problem)
            await until(lambda: heard == [b""])

    run(test)


@behaviour("cluster:tls")
def test_a_server_that_asks_for_a_certificate_gets_that_of_the_node(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    issuer.issue("server", "localhost")
    own = issuer.issue("alpha")
    files = 'cert_file: "server.crt", key_file: "server.key", ca_file: "ca.pem"'
    config = JETSTREAM + f"tls {{ {files}, verify: true }}\n"
    with nats_server(tmp_path, config) as server:
        url, ca, key = f"tls://localhost:{server.port}", str(issuer.file), str(own.with_suffix(".key"))
        reached(NatsAccess(url, ca=ca, certificate=str(own), certificate_key=key))
        refused(NatsAccess(url, ca=ca), "certificate required")


def test_a_server_whose_messages_are_too_small_for_sessions_is_named(tmp_path: Path) -> None:
    """Frames of a full record would be sent to it again and again, until the other node counts as lost."""
    with nats_server(tmp_path, JETSTREAM + f"max_payload: {MIN_PAYLOAD_BYTES - 1}\n") as server:
        refused(NatsAccess(f"nats://127.0.0.1:{server.port}"), f"at most {MIN_PAYLOAD_BYTES - 1} bytes")


@pytest.mark.parametrize("damage", ["missing", "no certificate", "key of another", "open key"])
def test_a_file_for_tls_that_cannot_be_used_is_named(tmp_path: Path, damage: str) -> None:
    issuer = Issuer(tmp_path)
    own, other = issuer.issue("alpha"), issuer.issue("beta")
    junk = tmp_path / "junk"
    junk.write_text("no certificate")
    url = "tls://localhost:1"
    if damage == "missing":
        refused(NatsAccess(url, ca=str(tmp_path / "none")), "No such file")
    elif damage == "no certificate":
        refused(NatsAccess(url, ca=str(junk)), "holds no certificates")
    elif damage == "open key":
        key = own.with_suffix(".key")
        key.chmod(0o644)
        refused(NatsAccess(url, certificate=str(own), certificate_key=str(key)), "others can read the key")
    else:
        refused(
            NatsAccess(url, certificate=str(own), certificate_key=str(other.with_suffix(".key"))), "no pair"
        )


# --- credentials ---------------------------------------------------------------------------------------


@behaviour("cluster:credentials")
def test_a_user_in_the_url_is_admitted_with_signs_that_urls_escape(tmp_path: Path) -> None:
    with nats_server(tmp_path, PASSWORD) as server:
        reached(NatsAccess(f"nats://alpha:p%40ss%2Fword@127.0.0.1:{server.port}"))
        refused(NatsAccess(f"nats://alpha:wrong@127.0.0.1:{server.port}"), "`cluster.credentials`")


@behaviour("cluster:credentials")
def test_a_file_with_a_jwt_and_a_seed_is_admitted(tmp_path: Path) -> None:
    account, stranger = NatsAccount(), NatsAccount()
    with nats_server(tmp_path, JETSTREAM + account.config) as server:
        url = f"nats://127.0.0.1:{server.port}"
        reached(NatsAccess(url, str(account.credentials(tmp_path / "alpha.creds"))))
        refused(NatsAccess(url, str(stranger.credentials(tmp_path / "x.creds"))), "refuses this node")


@behaviour("cluster:credentials")
def test_a_file_with_a_seed_alone_is_admitted(tmp_path: Path) -> None:
    key, other = new_key(), new_key()
    config = JETSTREAM + f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}\n"
    with nats_server(tmp_path, config) as server:
        url = f"nats://127.0.0.1:{server.port}"
        reached(NatsAccess(url, str(write_secret(tmp_path / "alpha.nk", f"{key.seed}\n"))))
        refused(NatsAccess(url, str(write_secret(tmp_path / "beta.nk", other.seed))), "refuses this node")


@behaviour("cluster:credentials")
@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (None, "No such file"),
        ("", "holds no credentials"),
        ("-----BEGIN NATS USER JWT-----\n", "holds no credentials"),
        ("SUAAAA", "damaged"),
        ("readable", "others can read"),
    ],
)
def test_credentials_that_cannot_be_used_are_named_and_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, advice: str
) -> None:
    monkeypatch.setattr(nats_link, "REFUSED_RETRY_S", 0.05)
    key = new_key()
    path = tmp_path / "alpha.nk"
    if text is not None:
        write_secret(path, key.seed if text == "readable" else text)
    if text == "readable":
        path.chmod(0o644)
    config = JETSTREAM + f"authorization {{ users: [ {{ nkey: {key.public} }} ] }}\n"

    async def test(server: NatsServer) -> None:
        async with end_of(NatsAccess(f"nats://127.0.0.1:{server.port}", str(path))) as end:
            await until(lambda: advice in end.link.problem)
            path.unlink(missing_ok=True)
            write_secret(path, key.seed)
            await until(lambda: end.restored == 1)
            assert len(end.reports) < 4, "it is said once, however often it is tried"

    with nats_server(tmp_path, config) as server:
        run(lambda: test(server))


@behaviour("cluster:credentials")
def test_a_node_whose_user_is_removed_says_so_and_is_back_with_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "REFUSED_RETRY_S", 0.05)
    other = JETSTREAM + "authorization { user: beta, password: b }\n"

    async def test(server: NatsServer) -> None:
        access = NatsAccess(f"nats://alpha:p%40ss%2Fword@127.0.0.1:{server.port}")
        async with end_of(access) as end:
            await until(lambda: end.restored == 1)
            server.configure(other)
            server.reload()
            await until(lambda: "refuses this node" in end.link.problem)
            assert not end.link.is_up
            server.configure(PASSWORD)
            server.reload()
            await until(lambda: end.restored == 2)

    with nats_server(tmp_path, PASSWORD) as server:
        run(lambda: test(server))


@behaviour("cluster:credentials")
def test_a_jwt_that_ends_is_told_and_its_successor_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_link, "REFUSED_RETRY_S", 0.05)
    account = NatsAccount()
    path = account.credentials(tmp_path / "alpha.creds", expires_s=2)

    async def test(server: NatsServer) -> None:
        async with end_of(NatsAccess(f"nats://127.0.0.1:{server.port}", str(path))) as end:
            await until(lambda: end.restored == 1)
            await until(lambda: "refuses this node" in end.link.problem)
            account.credentials(path)
            await until(lambda: end.restored == 2)

    with nats_server(tmp_path, JETSTREAM + account.config) as server:
        run(lambda: test(server))
