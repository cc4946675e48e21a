"""The files that a node writes of its cluster, and when the own offer is published."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec

from carpool.cluster.core.node import NodeCore
from carpool.cluster.core.offers import NodeOffer, ServerOffer
from carpool.cluster.links.link import NodeLink
from carpool.cluster.node_facts import read_facts
from carpool.cluster.offer_exchange import OfferExchange
from carpool.cluster.own_offer import OwnOffer
from carpool.cluster.settings import NodeSettings
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.parse import read_config
from tests.behaviours import behaviour
from tests.kit.node_links import until

URL = "nats://127.0.0.1:1"


class StoringLink:
    """A link that stores the own offer."""

    stores_offers = True
    is_up = True
    problem = ""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.published: list[NodeOffer] = []
        self.known_before: list[bool] = []
        """For each published offer: True if verbs knew of the cluster before."""

    async def publish(self, offer: bytes) -> None:
        """Keep the offer."""
        self.known_before.append(read_facts(self.directory) is not None)
        self.published.append(msgspec.json.decode(offer, type=NodeOffer))

    async def leave(self) -> None:
        """Take it out."""
        self.published.clear()


class NoOwnServers:
    """A node that offers nothing."""

    names: frozenset[str] = frozenset()
    open_calls = 0
    is_decided = True

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.reads = 0

    async def read(self) -> tuple[list[ServerOffer], dict[str, str]]:
        """Return no servers, once that may be answered."""
        self.reads += 1
        await self.may_answer.wait()
        return [], {}


class ExchangeUnderTest:
    """The exchange of the node alpha."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        config = read_config(f'{{"cluster": {{"url": "{URL}"}}, "mcpServers": {{}}}}', "carpool.json").config
        assert config is not None
        self.core = NodeCore("alpha", "e", iter(range(1, 99)).__next__)
        self.link = StoringLink(directory)
        self.own = NoOwnServers()
        self.one = OfferExchange(
            directory,
            NodeSettings(node="alpha", cluster=config.cluster, key_file=""),
            URL,
            core=self.core,
            link=cast("NodeLink", self.link),
            own=cast("OwnOffer", self.own),
            measured=dict,
        )

    def hear(self, *servers: str) -> None:
        """Let the node beta offer these servers."""
        offers = [ServerOffer(name=name, launch="x") for name in servers]
        offer = NodeOffer(node="beta", epoch="e", release="1", servers=offers)
        self.core.offer_received("beta", msgspec.json.encode(offer), 0.0)
        self.one.changed.set()

    def servers_of_broker(self) -> str:
        """The file that the broker reads."""
        path = Path(paths.node_servers_file(self.directory))
        return path.read_text() if path.exists() else ""


@asynccontextmanager
async def exchanging(directory: Path) -> AsyncIterator[ExchangeUnderTest]:
    """An exchange that runs, and has published the own offer once."""
    exchange = ExchangeUnderTest(str(directory))
    tasks = [asyncio.create_task(work) for work in (exchange.one.publish(), exchange.one.write_servers())]
    try:
        await until(lambda: read_facts(str(directory)) is not None and bool(exchange.servers_of_broker()))
        yield exchange
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_verbs_know_the_nodes_of_a_new_server_as_soon_as_the_broker_has_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with exchanging(tmp_path) as exchange:
            exchange.hear("time")
            await until(lambda: '"time"' in exchange.servers_of_broker())
            facts = read_facts(exchange.directory)
            assert facts is not None
            assert facts.servers == {"time": ["beta"]}

    asyncio.run(run())


def test_verbs_know_of_the_cluster_before_other_nodes_see_the_offer(tmp_path: Path) -> None:
    async def run() -> None:
        async with exchanging(tmp_path) as exchange:
            await until(lambda: bool(exchange.link.known_before))
            assert all(exchange.link.known_before)

    asyncio.run(run())


def test_a_thousand_changes_of_the_own_offer_at_once_are_published_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with exchanging(tmp_path) as exchange:
            before = len(exchange.link.published)
            exchange.core.set_draining(is_on=True)
            for _ in range(1000):
                exchange.one.publish_soon()
            await until(lambda: exchange.link.published[-1].is_draining)
            assert len(exchange.link.published) == before + 1

    asyncio.run(run())


@behaviour("cluster:leave")
def test_an_offer_that_was_on_its_way_when_the_node_left_is_not_published_after_its_farewell(
    tmp_path: Path,
) -> None:
    """The others would go on to choose a node that is gone."""

    async def run() -> None:
        async with exchanging(tmp_path) as exchange:
            exchange.own.may_answer.clear()
            reads = exchange.own.reads
            exchange.one.publish_soon()
            await until(lambda: exchange.own.reads > reads)
            await exchange.one.withdraw()
            exchange.own.may_answer.set()
            exchange.one.publish_soon()
            await until(lambda: exchange.own.reads > reads + 1)
            await asyncio.sleep(0)
            assert exchange.link.published == []

    asyncio.run(run())
