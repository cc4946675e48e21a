"""Publishes the offer of this node, and writes the offers of the others into files.

Owns the publication of the own offer, the file with the servers of other nodes that the broker reads, and the
file that `carpool cluster status` shows.

Knows nothing of: sessions, frames, how offers travel.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec.structs import replace

from carpool.cluster.core.node import NodeCore
from carpool.cluster.core.offers import NodeOffer, fitting_offer
from carpool.cluster.core.own_servers import node_servers_text
from carpool.cluster.links.link import NodeLink
from carpool.cluster.node_facts import NodeFacts, OtherNode, SilentNode, write_facts
from carpool.cluster.other_nodes import NodeMeasurement
from carpool.cluster.own_offer import RETRY_S, OwnOffer
from carpool.cluster.settings import NEW, NodeSettings
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.config.pages.describe import shown_url
from carpool_protocol.files import private_files

PUBLISH_S: Final = 5.0
"""The offer is published again after this time."""
DECIDE_S: Final = 3.0
"""The first offer waits for the broker for this time at most."""
SETTLE_S: Final = 3.0
"""The time in which a process that was started again hears the other nodes."""
_FAREWELL_S: Final = 2.0
"""The longest time to take the offer back at the end."""
WRITE_PAUSE_S: Final = 0.2
"""The files are not written more often than this, however often other nodes change."""


class OfferExchange:
    """The offers of one life of a node's process. `url`: the address of the link."""

    def __init__(
        self,
        directory: str,
        settings: NodeSettings,
        url: str,
        *,
        core: NodeCore,
        link: NodeLink,
        own: OwnOffer,
        measured: Callable[[], Mapping[str, NodeMeasurement]],
    ) -> None:
        """`measured`: what pings of other nodes have shown, by node."""
        self._directory = directory
        self._settings = settings
        self._core = core
        self._link = link
        self._own = own
        self._url = url
        self._measured = measured
        self._down_since: float | None = None
        """Since when the link does not work."""
        self._published: NodeOffer | None = None
        """The own offer, as it was published last."""
        self._is_leaving = False
        self.changed = asyncio.Event()
        """Set when the servers of other nodes have changed."""
        self._is_own_due = asyncio.Event()
        """Set when the own offer has changed since it was published."""

    async def publish(self) -> None:
        """Publish the own offer again and again, until cancelled. The first one waits for the broker to say
        which servers keep state, at most for a while.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DECIDE_S):
                while not self._own.is_decided:
                    await self._own.read()
                    await asyncio.sleep(WRITE_PAUSE_S)
        while True:
            self._is_own_due.clear()
            await self._publish_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_S if self._own.is_decided else RETRY_S):
                    await self._is_own_due.wait()

    def publish_soon(self) -> None:
        """Publish the own offer: it has changed, or the link works again."""
        self._is_own_due.set()

    async def withdraw(self) -> None:
        """Take the offer back: this node leaves, and the others hear of it at once."""
        self._is_leaving = True
        if not self._link.stores_offers:
            self._core.set_offer(b"")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._link.leave()

    async def _publish_once(self) -> None:
        offered, kept = await self._own.read()
        whole = NodeOffer(
            node=self._settings.node,
            epoch=self._core.epoch,
            release=RELEASE,
            labels=sorted(self._settings.cluster.labels),
            load=self._core.served,
            open_calls=self._own.open_calls,
            is_draining=self._core.is_draining,
            servers=offered,
            kept_local=kept,
        )
        self._published, data = fitting_offer(whole)
        if self._is_leaving:
            return
        self._write_node_file()  # before other nodes see the offer: verbs here know of the cluster as early
        if not self._link.stores_offers:
            self._core.set_offer(data)
        elif self._link.is_up:
            await self._link.publish(data)

    def _write_node_file(self) -> None:
        """Write what verbs show of the cluster, once the own offer is known."""
        if (facts := self.facts()) is not None:
            with contextlib.suppress(OSError):  # a full disk, or the directory is being put back
                write_facts(self._directory, facts)

    def facts(self) -> NodeFacts | None:
        """Return what verbs show of the cluster; None: the own offer is not known yet."""
        if self._published is None:
            return None
        core, now = self._core, asyncio.get_running_loop().time()
        reached = set(core.reached())
        if self._link.is_up:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = now
        return NodeFacts(
            pid=os.getpid(),
            cluster=self._settings.cluster.name,
            url=shown_url(self._url),
            # Of the server that carpool runs itself, with its password: nobody else tells it.
            join=self._url if self._settings.cluster.url == NEW else "",
            is_up=self._link.is_up,
            down_s=0.0 if self._down_since is None else round(now - self._down_since, 1),
            problem=self._link.problem,
            own=replace(self._published, load=core.served, open_calls=self._own.open_calls),
            nodes=[self._facts_of(name, offer, reached, now) for name, offer in core.offers.items()],
            silent=[SilentNode(name, round(for_s, 1)) for name, for_s in core.silent(now).items()],
            has_namesake=core.has_namesake(now),
            servers={name: each.nodes for name, each in core.servers(self._own.names).items()},
        )

    def _facts_of(self, name: str, offer: NodeOffer, reached: Collection[str], now: float) -> OtherNode:
        measured = self._measured().get(name)
        return OtherNode(
            offer=offer,
            is_reached=name in reached,
            sessions=self._core.sessions_of(name),
            age_s=round(self._core.offer_age_s(name, now), 1),
            opened=self._core.opened_at(name),
            latency_s=None if measured is None else round(measured.latency_s, 6),
            clock_ahead_s=None if measured is None else round(measured.clock_ahead_s, 3),
        )

    async def write_servers(self) -> None:
        """Keep the file with the servers of other nodes, until cancelled."""
        path = paths.node_servers_file(self._directory)
        if _content(path):  # of a process that died: its servers stay until the others are heard again
            await asyncio.sleep(SETTLE_S)
        while True:
            servers = {
                name: ("*" if name == each.offer.name else each.nodes[0], each.offer)
                for name, each in self._core.servers(self._own.names).items()
            }
            self._write_node_file()  # before agents see the servers: verbs say at which nodes these are
            text = node_servers_text(self._settings.node, servers).encode()
            if _content(path) != text:
                with contextlib.suppress(OSError):
                    private_files.replace(path, text)
            self.changed.clear()
            await asyncio.sleep(WRITE_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_S):
                    await self.changed.wait()

    def remove_files(self) -> None:
        """Remove both files: this node has left."""
        for path in (paths.node_servers_file(self._directory), paths.node_file(self._directory)):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
