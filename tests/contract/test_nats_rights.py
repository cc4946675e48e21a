"""The configuration of a NATS server in docs/cluster.md: each node can speak as itself only."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from carpool.cluster.links.nats import NatsLink
from carpool.cluster.links.nats_access import NatsAccess
from tests.behaviours import behaviour
from tests.kit.nats_server import Issuer, NatsServer, nats_server
from tests.kit.node_links import NodeLinkEnd, connected, until

PAGE: Final = Path(__file__).parents[2] / "docs" / "cluster.md"
PASSWORDS: Final = {"ALPHA_PASSWORD": "of-alpha", "BETA_PASSWORD": "of-beta"}
STREAM: Final = "KV_carpool-carpool"


class Documented:
    """The server of the page. `ca`: the certificate of its issuer."""

    def __init__(self, server: NatsServer, ca: str) -> None:
        self.server = server
        self.ca = ca

    def access(self, user: str) -> NatsAccess:
        """The access of a node's user."""
        return NatsAccess(f"tls://{user}:of-{user}@localhost:{self.server.port}", ca=self.ca)

    @asynccontextmanager
    async def end(self, node: str, *, user: str = "") -> AsyncIterator[NodeLinkEnd]:
        """A link of a node, with its own user or another one."""
        end = NodeLinkEnd(NatsLink(self.access(user or node), "carpool", node))
        end.start()
        try:
            yield end
        finally:
            await end.stop()

    @asynccontextmanager
    async def stranger(self, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
        """A program of its own with a node's user, and the errors that the server has told it."""
        errors: list[str] = []

        async def failed(error: Exception) -> None:
            errors.append(str(error))

        inbox = f"_INBOX.carpool.carpool.{user}"
        client = await nats.connect(**self.access(user).options(), error_cb=failed, inbox_prefix=inbox)
        try:
            yield client, errors
        finally:
            await client.close()


def against_the_page(tmp_path: Path, test: Callable[[Documented], Awaitable[None]]) -> None:
    """Run a test with the server of the page."""
    _, _, rest = PAGE.read_text().partition("```\n# nats.conf\n")
    config = rest.partition("```")[0]
    assert "authorization" in config
    issuer = Issuer(tmp_path)
    issuer.issue("server", "localhost")

    async def bounded(documented: Documented) -> None:
        async with asyncio.timeout(60):
            await test(documented)

    with nats_server(tmp_path, config, PASSWORDS) as server:
        asyncio.run(bounded(Documented(server, str(issuer.file))))


@behaviour("cluster:nats-rights")
def test_nodes_with_the_rights_of_the_page_reach_each_other_and_are_told_nothing_else(tmp_path: Path) -> None:
    async def test(page: Documented) -> None:
        async with page.end("alpha") as alpha, page.end("beta") as beta:
            await until(lambda: alpha.restored == beta.restored == 1)
            await connected(alpha, beta)
            await alpha.link.publish(b"of alpha")
            await beta.link.publish(b"of beta")
            both = {"alpha": b"of alpha", "beta": b"of beta"}
            await until(lambda: alpha.offers == beta.offers == both)
            await beta.link.leave()
            await until(lambda: alpha.offers["beta"] == b"")
            assert alpha.reports == beta.reports == ["NATS is connected"]
            assert alpha.link.problem == ""

    against_the_page(tmp_path, test)


@behaviour("cluster:nats-rights")
def test_a_node_with_another_node_s_user_is_refused_and_says_so(tmp_path: Path) -> None:
    async def test(page: Documented) -> None:
        async with page.end("alpha", user="beta") as end:
            await until(lambda: 'subscription to "carpool.carpool.alpha.*"' in end.link.problem)
            assert "cluster.node" in end.link.problem
            assert not end.link.is_up
            assert "carpool.carpool.alpha.*" in page.server.log.read_text()

    against_the_page(tmp_path, test)


@behaviour("cluster:nats-rights")
@pytest.mark.parametrize(
    "subject",
    [
        "carpool.carpool.alpha.gamma",
        "$KV.carpool-carpool.alpha",
        f"$JS.API.STREAM.DELETE.{STREAM}",
        f"$JS.API.STREAM.UPDATE.{STREAM}",
        f"$JS.API.STREAM.PURGE.{STREAM}",
        f"$JS.API.STREAM.MSG.DELETE.{STREAM}",
        "$JS.API.STREAM.CREATE.other",
    ],
)
def test_the_server_forbids_beta_to_publish(tmp_path: Path, subject: str) -> None:
    async def test(page: Documented) -> None:
        async with page.end("alpha") as alpha, page.stranger("beta") as (client, errors):
            await until(lambda: alpha.restored == 1)
            await client.publish(subject, b"forged")
            await until(lambda: any(subject.lower() in each.lower() for each in errors))
            assert alpha.frames == []

    against_the_page(tmp_path, test)


@behaviour("cluster:nats-rights")
@pytest.mark.parametrize("subject", ["carpool.carpool.alpha.*", "carpool.>", "_INBOX.>", "$KV.>"])
def test_the_server_forbids_beta_to_read(tmp_path: Path, subject: str) -> None:
    async def test(page: Documented) -> None:
        async with page.stranger("beta") as (client, errors):
            await client.subscribe(subject, cb=_ignore)
            await until(lambda: any(subject.lower() in each.lower() for each in errors))

    against_the_page(tmp_path, test)


@behaviour("cluster:nats-rights")
def test_a_consumer_of_beta_that_delivers_to_alpha_is_no_frame_of_another_node(tmp_path: Path) -> None:
    """The server lets a consumer deliver to any subject of the account."""

    async def test(page: Documented) -> None:
        async with page.end("alpha") as alpha, page.stranger("beta") as (client, _):
            await until(lambda: alpha.restored == 1)
            await alpha.link.publish(b"offer")
            streams = client.jetstream()
            await (await streams.key_value("carpool-carpool")).put("beta", b"forged")
            await client.request(
                f"$JS.API.CONSUMER.CREATE.{STREAM}",
                b'{"stream_name":"%s","config":{"deliver_subject":"carpool.carpool.alpha.gamma",'
                b'"deliver_policy":"all","ack_policy":"none"}}' % STREAM.encode(),
                timeout=5,
            )
            await until(lambda: alpha.offers.get("beta") == b"forged")
            await client.publish("carpool.carpool.alpha.beta", b"after it")
            await until(lambda: bool(alpha.frames))
            assert alpha.frames == [("beta", b"after it")]

    against_the_page(tmp_path, test)


@behaviour("cluster:nats-rights")
def test_a_bucket_that_somebody_made_to_speak_as_others_is_not_used(tmp_path: Path) -> None:
    async def test(page: Documented) -> None:
        async with page.stranger("beta") as (client, _):
            made = await client.request(
                f"$JS.API.STREAM.CREATE.{STREAM}",
                b'{"name":"%s","subjects":["$KV.carpool-carpool.>"],"storage":"memory","max_msgs_per_subject":1,'
                b'"republish":{"src":"$KV.carpool-carpool.*","dest":"carpool.carpool.alpha.{{wildcard(1)}}"}}'
                % STREAM.encode(),
                timeout=5,
            )
            assert b'"error"' not in made.data, made.data
        async with page.end("alpha") as alpha:
            await until(lambda: "is not as carpool makes it" in alpha.link.problem)
            assert not alpha.link.is_up, "what comes over it may be of anybody"

    against_the_page(tmp_path, test)


async def _ignore(_: object) -> None:
    """Nothing comes."""
