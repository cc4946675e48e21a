"""Processes of instances: starts and ends them as the core decides, and reports their starts and exits.

An instance of a server at another node is a session there in place of a process (`spawn.node_sessions`).

Owns the starts that wait for a spawner or for the PATH, and the next spawner after one has died. Each
instance that the core has requested is reported exactly once, even if it was never started.

Knows nothing of: calls, MCP, why an instance starts or ends, how a process is started (`spawner_client`).
"""

import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

import trio

from carpool_protocol.ids import Epoch, InstanceId, PoolKey, WireId
from carpool_protocol.link.messages import PoolSpec
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.metrics.adopted import SpawnedProcesses
from carpool_supervisor.spawn.exit_messages import exit_text
from carpool_supervisor.spawn.node_sessions import NodeSessionStarter
from carpool_supervisor.spawn.request import AtLimitError, Pipes, SpawnRefusedError
from carpool_supervisor.spawn.spawner_client import Spawner
from carpool_supervisor.stdio.instance_io import InstanceIos

log = logging.getLogger("carpool.supervisor")

SPAWNER_RETRY_S: Final = 1.0
"""The pause between attempts to start a spawner when the machine is at a limit."""


class Processes:
    """The processes of all instances."""

    def __init__(
        self,
        ready: ReadySet,
        runtime_id: str,
        epoch: Epoch,
        instance_ios: InstanceIos,
        *,
        node_socket: str,
        spec_of: Callable[[PoolKey], PoolSpec | None],
        feed: Callable[[Iterable[events.OwnEvent]], None],
        search_path: Callable[[], str],
    ) -> None:
        """`node_socket`: the socket of the node's process. `spec_of`: None if the instance's configuration is
        gone. `feed`: takes events for the core. `search_path`: the PATH of servers without one of their own.
        """
        self._instance_ios = instance_ios
        self._spec_of = spec_of
        self._feed = feed
        self._search_path = search_path
        self._spawner = Spawner(
            ready,
            runtime_id,
            epoch,
            on_spawned=self._spawned,
            on_spawn_failed=self._spawn_failed,
            on_exited=self._exited,
            on_lost=self._spawner_lost,
        )
        self._node_sessions = NodeSessionStarter(
            ready,
            node_socket,
            on_opened=self._session_opened,
            on_failed=self._session_refused,
            on_ended=self._session_ended,
        )
        self._spawner_gone = trio.Event()
        self._is_spawner_away = False
        self._is_held = False
        self._later: dict[InstanceId, effects.Spawn] | None = None
        """Starts that wait for a spawner, or for `release`."""
        self.handlers: dict[type, Callable[..., None]] = {
            effects.Spawn: self._spawn,
            effects.CloseStdin: self._close_stdin,
            effects.SignalGroup: self._signal,
        }
        """The handler of each effect on a process."""

    async def start(self) -> None:
        """Start the first spawner. Raises `OSError` or `trio.TooSlowError` if that fails."""
        await self._spawner.start()

    async def close(self, patience_s: float) -> None:
        """End all processes and the spawner within this time."""
        self._node_sessions.close()
        await self._spawner.close(patience_s)

    def spawned(self) -> SpawnedProcesses:
        """The spawner and the instances that it has started."""
        return SpawnedProcesses(self._spawner.pid, self._spawner.leaders())

    def hold(self) -> None:
        """Start nothing until `release`, because the PATH of servers is not known yet."""
        self._is_held = True
        self._later = {} if self._later is None else self._later

    def release(self) -> None:
        """Start the held instances."""
        self._is_held = False
        self._start_later()

    def _start_later(self) -> None:
        if self._is_held or self._is_spawner_away:
            return
        later, self._later = self._later or {}, None
        for effect in later.values():
            self._spawn(effect)

    def _spawn(self, effect: effects.Spawn) -> None:
        instance = effect.instance
        if self._later is not None:
            self._later[instance] = effect
            return
        spec = self._spec_of(effect.key)
        if spec is None:  # its pool is being removed; its last calls need no instance
            self._feed((events.SpawnFailed(instance, "its configuration is gone", random.random()),))  # noqa: S311
            return
        try:
            pipes = self._start(instance, spec)
        except SpawnRefusedError as error:
            why = self._instance_ios.masked(instance, str(error), spec)
            is_short, is_remote = isinstance(error, AtLimitError), spec.target is not None
            self._report_spawn_failure(instance, why, passing=is_remote, shortage=is_short)
            return
        self._instance_ios.open(instance, spec, effect.era, pipes, effect.version)
        text = f"{effect.server} #{instance} starts (generation {effect.generation})"
        log.info("%s", text, extra={"server": effect.server, "instance": instance})
        self._instance_ios.log_line(effect.server, instance, text)

    def _start(self, instance: InstanceId, spec: PoolSpec) -> Pipes:
        """Start the process, or the session, of an instance. Raises `SpawnRefusedError`."""
        if spec.target is not None:
            return self._node_sessions.open(instance, spec.target)
        search_path = self._search_path()
        env = {**({"PATH": search_path} if search_path else {}), **spec.env}
        return self._spawner.spawn(instance, spec.argv, env, spec.cwd)

    def _spawned(self, instance: InstanceId, pid: int) -> None:
        self._feed((events.InstanceSpawned(instance, pid),))
        self._instance_ios.greet(instance)

    def _session_opened(self, instance: InstanceId, node: str, number: int) -> None:
        self._feed((events.InstanceSpawned(instance, 0, node, number),))
        self._instance_ios.greet(instance)

    def _session_refused(self, instance: InstanceId, text: str, is_final: bool) -> None:
        text = f"got no session: {text}"
        self._feed((events.SpawnFailed(instance, text, random.random(), not is_final),))  # noqa: S311

    def _session_ended(self, instance: InstanceId, text: str, is_final: bool) -> None:
        how = f"lost its session: {text}" if text else "ended with its session"
        self._ended(instance, how, is_final=is_final)

    def _spawn_failed(self, instance: InstanceId, text: str, shortage: bool) -> None:
        text = self._instance_ios.masked(instance, text)
        if self._is_spawner_away:  # not the command's fault: a retry may help
            self._feed((events.InstanceExited(instance, text, (), "", random.random()),))  # noqa: S311
            return
        self._report_spawn_failure(instance, text, shortage=shortage)

    def _report_spawn_failure(
        self, instance: InstanceId, text: str, *, passing: bool = False, shortage: bool = False
    ) -> None:
        text = f"could not be started: {text}"
        self._feed((events.SpawnFailed(instance, text, random.random(), passing, shortage),))  # noqa: S311

    def _exited(self, instance: InstanceId, status: int) -> None:
        how = exit_text(status)
        unread = self._instance_ios.has_unread_stdin(instance)
        text = f"was {how}" if status < 0 else f"ended with {how}"
        self._ended(instance, text, refused_nothing=unread or status < 0)

    def _ended(
        self, instance: InstanceId, how: str, *, is_final: bool = False, refused_nothing: bool = False
    ) -> None:
        def report(unwritten: tuple[WireId, ...], words: str) -> None:
            jitter = random.random()  # noqa: S311
            self._feed(
                (events.InstanceExited(instance, how, unwritten, words, jitter, is_final, refused_nothing),)
            )

        self._instance_ios.process_exited(instance, report)

    def _close_stdin(self, effect: effects.CloseStdin) -> None:
        if not self._cancel_held_start(effect.instance):
            self._instance_ios.close_stdin(effect.instance)

    def _signal(self, effect: effects.SignalGroup) -> None:
        if self._cancel_held_start(effect.instance):
            return
        if self._node_sessions.holds(effect.instance):
            self._node_sessions.end(effect.instance)
        else:
            self._spawner.signal(effect.instance, effect.signal)

    def _cancel_held_start(self, instance: InstanceId) -> bool:
        """End an instance whose start is still held."""
        if not self._later or self._later.pop(instance, None) is None:
            return False
        self._feed((events.InstanceExited(instance, "was never started", (), "", random.random()),))  # noqa: S311
        return True

    def _spawner_lost(self) -> None:
        log.error("the spawner died, and with it every instance; it is started again")
        self._is_spawner_away = True
        self._later = {} if self._later is None else self._later
        self._spawner_gone.set()

    async def run(self, settle: Callable[[], None]) -> None:
        """Restart the spawner each time it has died, until cancelled. `settle`: ends a burst."""
        while True:
            await self._spawner_gone.wait()
            self._spawner_gone = trio.Event()
            await self._start_again()
            self._is_spawner_away = False
            self._start_later()
            settle()

    async def _start_again(self) -> None:
        """Try until a spawner runs: until then calls wait, and are refused after their limit."""
        while True:
            try:
                await self._spawner.start()
            except (OSError, trio.TooSlowError) as error:
                why = error.strerror if isinstance(error, OSError) else "it does not start"
                log.error("the spawner cannot be started (%s); trying again", why)  # noqa: TRY400 - that says all
                await trio.sleep(SPAWNER_RETRY_S)
            else:
                return
