"""The node's process: wires the link, the sessions of this machine, the offers, and the core.

Owns its life: lifeline, changes of the configuration, the embedded NATS server, when frames are sent. Decides
nothing about channels, sessions or offers (`core`).

Knows nothing of: MCP, what a link is made of.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import traceback
from typing import Any, Final, NamedTuple

from carpool.cluster.call_stories import tell_story
from carpool.cluster.channel_ids import ChannelIds, ids_file
from carpool.cluster.core.local_sessions import LocalSessions
from carpool.cluster.core.node import (
    DrainingAsked,
    NodeAnswered,
    NodeAsked,
    NodeCore,
    NodeEffect,
    OffersChanged,
    OwnOfferChanged,
    Report,
)
from carpool.cluster.core.node_requests import NodeAnswer
from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.core.sessions import SessionName
from carpool.cluster.embedded_nats import NO_ANSWER, EmbeddedNats
from carpool.cluster.links.link import LinkError, LinkEvents, NodeLink
from carpool.cluster.log import log
from carpool.cluster.near_ends import NearEnds
from carpool.cluster.node_facts import NodeFacts, write_facts
from carpool.cluster.offer_exchange import OfferExchange
from carpool.cluster.other_nodes import OtherNodes
from carpool.cluster.own_offer import OwnOffer
from carpool.cluster.settings import NEW, NodeSettings, last_good_layer, make_link, node_settings
from carpool.cluster.supervisor_socket import SessionRequest, SupervisorConnection, SupervisorSocket
from carpool.cluster.verb_requests import VerbRequests
from carpool.launcher.node_process import EXIT_CONFIG, EXIT_LEFT, EXIT_UNWANTED
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.config.reading.load import ConfigFile, find_config_file, home_of, load_layer
from carpool_protocol.config.text.file_stamps import Stamp, stamp
from carpool_protocol.files.log_rotation import rotate_in_use
from carpool_protocol.runtime import core_dumps
from carpool_protocol.runtime.asyncio_process import run_lifeline, run_on_the_fastest_loop
from carpool_protocol.runtime.descriptor_limit import raise_descriptor_limit
from carpool_protocol.runtime.node_join import read_join

OWN_FIGURES_S: Final = 0.5
"""Once other nodes have told their figures, the own broker has this long to tell those of this node."""
LOOK_S: Final = 2.0
"""How often the configuration file is looked at."""
DESCRIPTORS: Final = 1 << 16
"""The process asks for so many. A session of this node's agents takes three, and one of other nodes' agents
takes one; those have at most half of them.
"""
_LAST_FRAMES_S: Final = 0.05
"""The time in which the link sends the ends of sessions."""
HAS_LEFT: Final = (
    "it has left the cluster {name} (`carpool cluster leave`); `carpool restart --all` joins again"
)
_LAST_ACTS_S: Final = 2.0
"""The longest wait at the end for lines of the audit."""


def run(arguments: list[str]) -> int:
    """Be a node until told to stop. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="carpool.cluster", description="carpool's node of a cluster")
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--config", default=None)
    parser.add_argument("--lifeline", type=int, default=-1)
    told = parser.parse_args(arguments)
    core_dumps.turn_off()
    file = find_config_file(os.environ, told.config)
    seen = _stamps(file, told.runtime_dir)
    join = read_join(told.runtime_dir)
    home = home_of(os.environ)
    config = load_layer(file, home).loaded.config
    if config is None and (kept := last_good_layer(file, home, told.runtime_dir)) is not None:
        log("the configuration is broken, the last good one stays in force: see `carpool check`", "warning")
        config = kept.loaded.config
    if config is None:
        log("the configuration is broken, so this machine is in no cluster: see `carpool check`", "error")
        return EXIT_CONFIG
    settings = node_settings(config, join, home)
    if settings is None:
        with contextlib.suppress(OSError):  # of a cluster that this machine is no longer in
            os.unlink(paths.node_file(told.runtime_dir))
        return EXIT_UNWANTED
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    read = NodeConfig(file, home, settings, seen)
    return run_on_the_fastest_loop(be_node(told.runtime_dir, read, told.lifeline), "node")


class NodeConfig(NamedTuple):
    """The configuration of a node, as its process has read it."""

    file: ConfigFile
    home: str
    settings: NodeSettings
    seen: list[Stamp]
    """The stamps of its files before they were read: a later change has others."""


def _stamps(file: ConfigFile, directory: str) -> list[Stamp]:
    return [stamp(file.path), stamp(paths.node_join_file(directory))]


class NodeProcess:
    """The process of one node. `url`: the address of the link."""

    def __init__(self, directory: str, config: NodeConfig, *, link: NodeLink, url: str) -> None:
        self._directory = directory
        self._file, self._home, settings, self._seen = config
        self._settings = settings
        self._link = link
        epoch = os.urandom(6).hex()
        new_id = ChannelIds(ids_file(directory)).take
        cluster = settings.cluster
        self._core = NodeCore(
            settings.node, epoch, new_id, drain_by=cluster.drain_by, max_servers=cluster.max_servers
        )
        self._own = OwnOffer(directory, self._file, settings, self._home)
        self._others = OtherNodes(
            self._core,
            tell_story=self._tell_story,
            tell_figures=self._tell_figures,
            flush_soon=self._flush_soon,
        )
        self._offers = OfferExchange(
            directory,
            settings,
            url,
            core=self._core,
            link=link,
            own=self._own,
            measured=lambda: self._others.measured,
        )
        self._sessions = LocalSessions(
            self._core,
            NearEnds(directory, settings.node, settings.cluster.profile),
            refusal=self._own.refusal,
            flush_soon=self._flush_soon,
            log=log,
            max_served=raise_descriptor_limit(DESCRIPTORS) // 2,
        )
        self._verbs = VerbRequests(
            directory,
            settings.node,
            self._others,
            set_draining=lambda is_on: self._perform(self._core.set_draining(is_on=is_on)),
            leave=self._leave_for_good,
            fresh_facts=self._fresh_facts,
        )
        self._loop = asyncio.get_running_loop()
        self._flush_due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._exit = 0
        self._has_left = False

    # --- its life --------------------------------------------------------------------------------------

    async def serve(self, nats: EmbeddedNats | None) -> int:
        """Be a node until stopped. Returns the exit code. Raises `LinkError`."""
        self._loop.set_exception_handler(self._callback_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        for peer in self._link.peers:
            self._core.introduce(peer, self._loop.time())
        local = SupervisorSocket(
            paths.node_socket(self._directory), self._requested, self._sessions.supervisor_gone
        )
        events = LinkEvents(self._frame_received, self._offer_received, self._link_restored, log)
        work = (
            self._stopped.wait(),
            self._link.run(events),
            self._flush_when_due(),
            self._offers.publish(),
            self._offers.write_servers(),
            self._others.ping(),
            self._watch_config(),
            *([_keep_up(nats)] if nats is not None else []),
        )
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in tasks:
                if each.done():
                    each.result()
        finally:
            await self._leave()
            await self._verbs.acts.wait_written(_LAST_ACTS_S)
            local.close()
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._offers.remove_files()
            if self._has_left:
                self._write_left()
        return self._exit

    def _write_left(self) -> None:
        name = self._settings.cluster.name
        own = NodeOffer(node=self._settings.node, epoch="", release=RELEASE)
        facts = NodeFacts(pid=0, cluster=name, has_left=True, problem=HAS_LEFT.format(name=name), own=own)
        with contextlib.suppress(OSError):
            write_facts(self._directory, facts)

    def stop(self) -> None:
        """Leave the cluster and end."""
        self._stopped.set()

    async def _leave(self) -> None:
        await self._offers.withdraw()
        self._sessions.close()
        self._flush()
        await asyncio.sleep(_LAST_FRAMES_S)

    async def _watch_config(self) -> None:
        """End when the settings of the cluster change: the launcher starts another process with them."""
        daemon_log = paths.daemon_log(paths.log_dir(os.environ, self._directory), "node")
        while True:
            await asyncio.sleep(LOOK_S)
            rotate_in_use(daemon_log)
            if (stamps := _stamps(self._file, self._directory)) == self._seen:
                continue
            self._seen = stamps
            config = load_layer(self._file, self._home).loaded.config
            if config is None:
                log("the configuration is broken; the node goes on with the last one", "warning")
                continue
            fresh = node_settings(config, read_join(self._directory), self._home)
            if fresh != self._settings:
                log("the settings of the cluster have changed; the node's process starts again")
                self._exit = EXIT_UNWANTED if fresh is None else 0
                return
            self._own.config_changed()
            self._offers.publish_soon()

    # --- requests --------------------------------------------------------------------------------------

    def _requested(self, asker: SupervisorConnection, request: SessionRequest, fds: tuple[int, ...]) -> None:
        if request.act:
            self._verbs.requested(asker, request)
        elif request.end:
            self._sessions.end_instance(asker, request.end)
        else:
            self._sessions.open_for(asker, request.open, request.node, request.server, fds)

    async def _tell_story(self, session: SessionName, call: int) -> NodeAnswer:
        return await tell_story(self._directory, self._sessions.broker_session(session), call)

    async def _tell_figures(self) -> NodeAnswer:
        await self._own.refresh()
        return NodeAnswer(load=self._core.served, open_calls=self._own.open_calls)

    async def _fresh_facts(self) -> NodeFacts | None:
        """Return the facts with figures of this moment: of all nodes, as far as they answer in time."""
        own = asyncio.create_task(self._own.refresh())
        await self._others.refresh()
        await asyncio.wait([own], timeout=OWN_FIGURES_S)
        return self._offers.facts()

    def _leave_for_good(self) -> None:
        self._has_left = True
        self._exit = EXIT_LEFT
        self._stopped.set()

    # --- the link --------------------------------------------------------------------------------------

    def _perform(self, effects: list[NodeEffect]) -> None:
        for effect in effects:
            match effect:
                case DrainingAsked():
                    self._verbs.draining_asked(effect)
                case NodeAsked():
                    self._others.asked(effect)
                case NodeAnswered():
                    self._others.answered(effect)
                case OffersChanged():
                    self._offers.changed.set()
                case OwnOfferChanged():
                    self._offers.publish_soon()
                case Report():
                    log(effect.text, effect.level)
                case _:
                    self._sessions.perform(effect)

    def _offer_received(self, node: str, data: bytes) -> None:
        self._perform(self._core.offer_received(node, data, self._loop.time()))
        self._flush_soon()

    def _frame_received(self, node: str, data: bytes) -> None:
        if node != self._settings.node:
            self._perform(self._core.frame_received(node, data, self._loop.time()))
            self._flush_soon()

    def _link_restored(self) -> None:
        self._core.link_restored(self._loop.time(), self._link.frame_bytes)
        self._offers.publish_soon()
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Send what follows from everything that this turn of the loop brings, at its end."""
        self._flush_due.set()

    async def _flush_when_due(self) -> None:
        while True:
            await self._flush_due.wait()
            self._flush_due.clear()
            self._flush()

    def _flush(self) -> None:
        now = self._loop.time()
        self._perform(self._core.tick(now))
        for node, frame in self._core.take_frames(now):
            self._link.send(node, frame)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(self._core.next_deadline(), now + 1.0), self._flush_soon)

    def _callback_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of the loop has failed: end, so that no session waits for what was left out."""
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else context["message"]
        log(f"a bug in carpool: {text}", "error")
        self._exit = 1
        self._stopped.set()


async def be_node(directory: str, config: NodeConfig, lifeline: int) -> int:
    """Be a node until told to stop. Returns the exit code."""
    settings = config.settings
    nats: EmbeddedNats | None = None
    living: asyncio.Task[None] | None = None
    try:
        url = settings.cluster.url
        if url == NEW:
            state = paths.state_dir(os.environ, directory)
            nats = EmbeddedNats(os.path.join(state, "nats", paths.runtime_id(directory)))
            await nats.start()
            url = nats.url
        link = make_link(settings, url, config.home)
        node = NodeProcess(directory, config, link=link, url=url)
        if lifeline >= 0:
            living = asyncio.create_task(run_lifeline(lifeline, node.stop, asyncio.sleep(0)))
        return await node.serve(nats)
    except LinkError as error:
        log(str(error), "error")
        own = NodeOffer(node=settings.node, epoch="", release=RELEASE)
        ended = NodeFacts(pid=0, cluster=settings.cluster.name, problem=str(error), own=own)
        with contextlib.suppress(OSError):
            write_facts(directory, ended)
        return EXIT_CONFIG
    except TimeoutError:  # of the NATS server's start: the launcher starts this process again
        log(f"the NATS server of carpool does not start: {NO_ANSWER}", "error")
        return 1
    finally:
        if living is not None:
            living.cancel()
        if nats is not None:
            nats.stop()


async def _keep_up(nats: EmbeddedNats) -> None:
    """Start the NATS server again whenever it has ended. The log has each reason once, not for each try."""
    told = ""
    while True:
        await asyncio.sleep(LOOK_S)
        if nats.is_running():
            told = ""
            continue
        if not told:
            log("the NATS server of carpool ended; it is started again", "warning")
        try:
            await nats.start_again()  # at the address that other nodes know
        except (LinkError, TimeoutError) as error:
            nats.stop()
            why = str(error) or NO_ANSWER
            if why != told:
                log(f"the NATS server of carpool does not start: {why}", "warning")
            told = why
