"""The node's process: wires the link, the near ends of sessions, and the core; keeps the files it writes.

Owns its life: lifeline, changes of the configuration, the embedded NATS server. Decides nothing about
channels, sessions or offers (`core`).

Knows nothing of: MCP, what a link is made of.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from carpool.api.attach import AttachTarget
from carpool.cluster.core.node import (
    DrainingAsked,
    EndSession,
    NodeCore,
    NodeEffect,
    NoNodeError,
    OffersChanged,
    OpenAtBroker,
    PassBytes,
    ReadOn,
    Report,
    SessionName,
)
from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.core.own_servers import node_servers_text
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links.link import LinkError, LinkEvents, NodeLink
from carpool.cluster.log import log
from carpool.cluster.near_ends import BrokerEnd, NearEnd, NearEndEvents, PipesEnd, attach_line
from carpool.cluster.own_offer import OwnOffer
from carpool.cluster.settings import NEW, NodeSettings, make_link, node_settings
from carpool.cluster.supervisor_socket import SessionRequest, SupervisorConnection, SupervisorSocket
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.config.reading.load import ConfigFile, find_config_file, home_of, load_layer
from carpool_protocol.files import private_files
from carpool_protocol.files.log_rotation import rotate_in_use
from carpool_protocol.runtime import core_dumps
from carpool_protocol.runtime.node_join import read_join
from carpool_protocol.runtime.wallclock import unix_s

EXIT_CONFIG, EXIT_UNWANTED = 2, 3
PUBLISH_S: Final = 5.0
"""The offer is published again after this time."""
LOOK_S: Final = 2.0
"""How often the configuration file is looked at."""
SETTLE_S: Final = 3.0
"""The time in which a process that was started again hears the other nodes."""
ALIVE_S: Final = 1.0
_FAREWELL_S: Final = 2.0
"""The longest time to take the offer back at the end."""


def run(arguments: list[str]) -> int:
    """Be a node until told to stop. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="carpool.cluster", description="carpool's node of a cluster")
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--config", default=None)
    parser.add_argument("--lifeline", type=int, default=-1)
    told = parser.parse_args(arguments)
    core_dumps.turn_off()
    file = find_config_file(os.environ, told.config)
    join = read_join(told.runtime_dir)
    home = home_of(os.environ)
    config = load_layer(file, home).loaded.config
    if config is None:
        log("the configuration is broken, so this machine is in no cluster: see `carpool check`", "error")
        return EXIT_CONFIG
    settings = node_settings(config, join, home)
    if settings is None:
        return EXIT_UNWANTED
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    process = NodeProcess(told.runtime_dir, file, settings, home)
    return _run_on_the_fastest_loop(process.serve(told.lifeline))


def _run_on_the_fastest_loop(main: Coroutine[Any, Any, int]) -> int:
    run_loop: Callable[[Coroutine[Any, Any, int]], int]
    try:
        from uvloop import run as run_loop  # not on every platform
    except ImportError:
        run_loop = asyncio.run
    return run_loop(main)


class NodeProcess:
    """The process of one node."""

    def __init__(self, directory: str, file: ConfigFile, settings: NodeSettings, home: str) -> None:
        self._directory = directory
        self._file = file
        self._settings = settings
        self._home = home
        self._epoch = os.urandom(6).hex()
        self._last_id = 0
        self._core = NodeCore(settings.node, self._new_id)
        self._own = OwnOffer(directory, file, settings, home)
        self._ends: dict[SessionName, NearEnd] = {}
        self._asked: dict[tuple[SupervisorConnection, int], SessionName] = {}
        self._link: NodeLink
        self._nats: EmbeddedNats | None = None
        self._address = settings.cluster.url
        self._is_draining = False
        self._is_flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = asyncio.Event()
        self._exit = 0
        self._soon: set[asyncio.Task[None]] = set()
        """Tasks that end by themselves."""
        self._offers_changed = asyncio.Event()

    def _new_id(self) -> int:
        """Return an id of this end of a channel: greater than all of earlier processes, by the clock."""
        self._last_id = max(self._last_id + 1, int(unix_s() * 1000))
        return self._last_id

    # --- its life --------------------------------------------------------------------------------------

    async def serve(self, lifeline: int) -> int:
        """Be a node until stopped. Returns the exit code."""
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopped.set)
        living = asyncio.create_task(self._run_lifeline(lifeline)) if lifeline >= 0 else None
        local: SupervisorSocket | None = None
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._prepare_link()
            local = SupervisorSocket(
                paths.node_socket(self._directory), self._requested, self._supervisor_gone
            )
            work = (self._run_link(), self._publish(), self._watch_config(), self._write_servers())
            tasks = [asyncio.create_task(each) for each in work]
            stopping = asyncio.create_task(self._stopped.wait())
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            for each in tasks:
                if each.done():
                    each.result()
        except LinkError as error:
            log(str(error), "error")
            self._exit = EXIT_CONFIG
        finally:
            await self._leave(local, [*tasks, *([living] if living else [])])
        return self._exit

    async def _prepare_link(self) -> None:
        if self._settings.cluster.url == NEW:
            state = paths.state_dir(os.environ, self._directory)
            self._nats = EmbeddedNats(os.path.join(state, "nats", paths.runtime_id(self._directory)))
            await self._nats.start()
            self._address = self._nats.url
        self._link = make_link(self._settings, self._address, self._home)
        now = self._loop.time()
        for peer in self._link.peers:
            self._core.introduce(peer, now)

    async def _run_link(self) -> None:
        await self._link.run(LinkEvents(self._frame_received, self._offer_received, self._link_restored, log))

    async def _leave(self, local: SupervisorSocket | None, tasks: list[asyncio.Task[None]]) -> None:
        if local is not None:
            with contextlib.suppress(TimeoutError, Exception):
                async with asyncio.timeout(_FAREWELL_S):
                    await self._link.leave()
            for name, end in list(self._ends.items()):
                self._core.close(name, "the node is leaving the cluster")
                end.end("the node is leaving the cluster")
            self._flush()
            await asyncio.sleep(0)  # the link's task sends what was flushed
            local.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for path in (paths.node_servers_file(self._directory), paths.node_file(self._directory)):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._nats is not None:
            self._nats.stop()

    async def _run_lifeline(self, fd: int) -> None:
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
        writer.write(b"ready\n")

        async def hear() -> None:
            with contextlib.suppress(OSError):
                while line := await reader.readline():
                    if line.split()[:1] == [b"stop"]:
                        break
            self._stopped.set()

        hearing = asyncio.create_task(hear())
        try:
            while True:
                await asyncio.sleep(ALIVE_S)
                if writer.transport.get_write_buffer_size() == 0:
                    writer.write(b"alive\n")
        finally:
            hearing.cancel()
            writer.close()

    async def _watch_config(self) -> None:
        """End when the settings of the cluster change: the launcher starts another process with them."""
        places = (self._file.path, paths.node_join_file(self._directory))
        seen = list(map(_stamp, places))
        daemon_log = paths.daemon_log(paths.log_dir(os.environ, self._directory), "node")
        while True:
            await asyncio.sleep(LOOK_S)
            rotate_in_use(daemon_log)
            if self._nats is not None and not self._nats.is_running():
                log("the NATS server of carpool ended; it is started again", "warning")
                await self._nats.start()
            if (stamp := list(map(_stamp, places))) == seen:
                continue
            seen = stamp
            config = load_layer(self._file, self._home).loaded.config
            if config is None:
                log("the configuration is broken; the node goes on with the last one", "warning")
                continue
            fresh = node_settings(config, read_join(self._directory), self._home)
            if fresh != self._settings:
                log("the settings of the cluster have changed; the node's process starts again")
                self._exit = EXIT_UNWANTED if fresh is None else 0
                self._stopped.set()
                return
            self._own.config_changed()
            await self._publish_once()

    # --- offers ----------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            await self._publish_once()
            await asyncio.sleep(PUBLISH_S)

    async def _publish_once(self) -> None:
        offered, kept = await self._own.read()
        offer = NodeOffer(
            node=self._settings.node,
            epoch=self._epoch,
            release=RELEASE,
            labels=sorted(self._settings.cluster.labels),
            load=self._core.served,
            open_calls=self._own.open_calls,
            is_draining=self._is_draining,
            servers=offered,
            kept_local=kept,
            sent_at=f"{unix_s():.3f}",
        )
        data = msgspec.json.encode(offer)
        if not self._link.stores_offers:
            self._core.set_offer(data)
            self._plan_flush()
        elif self._link.is_up:
            await self._link.publish(data)
        self._write_node_file(offer)

    def _write_node_file(self, own: NodeOffer) -> None:
        """Write what `carpool cluster status` shows."""
        core = self._core
        reached = set(core.reached())
        facts = {
            "pid": os.getpid(),
            "cluster": self._settings.cluster.name,
            "url": _without_password(self._address),
            "join": self._address if self._nats is not None else "",
            "is_up": self._link.is_up,
            "own": own,
            "nodes": [
                {"offer": offer, "is_reached": name in reached, "sessions": core.sessions_of(name)}
                for name, offer in core.offers.items()
            ],
        }
        with contextlib.suppress(OSError):  # a full disk, or the directory is being put back
            private_files.replace(paths.node_file(self._directory), msgspec.json.encode(facts))

    async def _write_servers(self) -> None:
        """Keep the file with the servers of other nodes, which the broker reads."""
        path = paths.node_servers_file(self._directory)
        if _content(path):  # of a process that died: its servers stay until the others are heard again
            await asyncio.sleep(SETTLE_S)
        while True:
            own = frozenset(self._own.names)
            servers = {
                name: ("*" if name == each.offer.name else each.nodes[0], each.offer)
                for name, each in self._core.servers(own).items()
            }
            text = node_servers_text(self._settings.node, servers).encode()
            if _content(path) != text:
                with contextlib.suppress(OSError):
                    private_files.replace(path, text)
            self._offers_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PUBLISH_S):
                    await self._offers_changed.wait()

    def _offer_received(self, node: str, data: bytes) -> None:
        if node == self._settings.node and data:
            self._own_offer_seen(data)
        self._perform(self._core.offer_received(node, data, self._loop.time()))
        self._plan_flush()

    def _own_offer_seen(self, data: bytes) -> None:
        with contextlib.suppress(msgspec.MsgspecError):
            other = msgspec.json.decode(data, type=NodeOffer)
            if other.epoch != self._epoch and float(other.sent_at or 0) > unix_s() - PUBLISH_S / 2:
                log(
                    f"another node is called {self._settings.node} too: give one another name "
                    "(`cluster.node`, `carpool up --node NAME`)",
                    "error",
                )

    # --- sessions --------------------------------------------------------------------------------------

    def _requested(
        self, supervisor: SupervisorConnection, request: SessionRequest, fds: tuple[int, ...]
    ) -> None:
        if request.act:
            self._act(supervisor, request)
            return
        if request.end:
            name = self._asked.get((supervisor, request.end))
            if name is not None:
                self._core.close(name)
                self._end(name, "", told=False)
                self._plan_flush()
            return
        try:
            name = self._core.open_session(request.node, request.server)
        except NoNodeError as error:
            for fd in fds:
                os.close(fd)
            supervisor.tell({"failed": request.open, "text": str(error)})
            return
        self._asked[supervisor, request.open] = name
        supervisor.tell({"opened": request.open})
        self._ends[name] = PipesEnd(fds, self._events_of(name))
        self._plan_flush()

    def _act(self, asker: SupervisorConnection, request: SessionRequest) -> None:
        """Do what `carpool cluster` asks for."""
        own = self._settings.node
        node = request.node or own
        if request.act == "leave":
            self._exit = EXIT_UNWANTED
            asker.tell({"said": f"{own} leaves the cluster; `carpool restart --all` joins again"})
            self._stopped.set()
            return
        is_on = request.act == "drain"
        if node == own:
            self._set_draining(is_on=is_on)
        elif not self._core.ask_to_drain(node, is_on=is_on):
            asker.tell({"refused": f"node {node} is not reached (`carpool cluster status`)"})
            return
        self._plan_flush()
        asker.tell(
            {
                "said": f"{node} takes no further sessions of other nodes; those that are open go on"
                if is_on
                else f"{node} takes sessions of other nodes again"
            }
        )

    def _set_draining(self, *, is_on: bool) -> None:
        self._is_draining = is_on
        self._publish_soon()

    def _publish_soon(self) -> None:
        task = asyncio.create_task(self._publish_once())
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)

    def _supervisor_gone(self, supervisor: SupervisorConnection) -> None:
        for key in [key for key in self._asked if key[0] is supervisor]:
            name = self._asked.pop(key)
            self._core.close(name)
            if (end := self._ends.pop(name, None)) is not None:
                end.end("")
        self._plan_flush()

    def _events_of(self, name: SessionName) -> NearEndEvents:
        def send(data: bytes) -> None:
            self._core.send(name, data)
            self._plan_flush()

        def passed(size_bytes: int) -> None:
            self._core.bytes_passed(name, size_bytes)
            self._plan_flush()

        def ended(text: str) -> None:
            self._core.close(name, text)
            self._end(name, text, told=True)
            self._plan_flush()

        return NearEndEvents(lambda: self._core.room_bytes(name), send, passed, ended)

    def _end(self, name: SessionName, text: str, *, told: bool) -> None:
        """The session is over. `told`: its near end has said so itself."""
        end = self._ends.pop(name, None)
        if end is not None and not told:
            end.end(text)
        for key, each in list(self._asked.items()) if name.number > 0 else []:
            if each == name:
                del self._asked[key]
                key[0].tell({"ended": key[1], "text": text or "ended"})

    def _open_at_broker(self, name: SessionName, server: str) -> None:
        why = "the node is draining" if self._is_draining else self._own.refusal(server)
        if why:
            log(f"node {name.node} asked for {server}, and was refused: {why}", "warning")
            self._core.close(name, why)
            return
        place = AttachTarget(self._directory, {})
        line = attach_line(name.node, server, self._settings.cluster.profile)
        self._ends[name] = BrokerEnd(place, line, self._events_of(name))

    def _perform(self, effects: list[NodeEffect]) -> None:
        for effect in effects:
            match effect:
                case PassBytes():
                    if (end := self._ends.get(effect.session)) is not None:
                        end.pass_bytes(effect.data)
                case ReadOn():
                    if (end := self._ends.get(effect.session)) is not None:
                        end.read_on()
                case OpenAtBroker():
                    self._open_at_broker(effect.session, effect.server)
                case EndSession():
                    self._end(effect.session, effect.text, told=False)
                case DrainingAsked():
                    word = "drain" if effect.is_on else "take sessions again"
                    log(f"node {effect.node} asks this one to {word}")
                    self._set_draining(is_on=effect.is_on)
                case OffersChanged():
                    self._offers_changed.set()
                case Report():
                    log(effect.text, effect.level)

    # --- the link --------------------------------------------------------------------------------------

    def _frame_received(self, node: str, data: bytes) -> None:
        if node != self._settings.node:
            self._perform(self._core.frame_received(node, data, self._loop.time()))
            self._plan_flush()

    def _link_restored(self) -> None:
        self._core.link_restored(self._loop.time())
        self._publish_soon()
        self._plan_flush()

    def _plan_flush(self) -> None:
        """Send what follows from everything that this turn of the loop brings, at its end."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        now = self._loop.time()
        self._perform(self._core.tick(now))
        for node, frame in self._core.take_frames(now):
            self._link.send(node, frame)
        if self._timer is not None:
            self._timer.cancel()
        due = self._core.next_deadline()
        self._timer = self._loop.call_at(min(due, now + 1.0), self._plan_flush)


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
