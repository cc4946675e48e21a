"""Every instance's conversation with its server, and what the core has decided to say there.

Owns which conversation is which instance's, which of them have something to flush, and the file that keeps
each server's stderr. An era adapter is chosen here, as the instance's pool wants it.

Knows nothing of: the link, the spawner, why anything is said.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.remote import secrets_of
from carpool_protocol.ids import InstanceId, ServerName, WireId
from carpool_protocol.link.messages import Era, PoolSpec
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.era.adapter import Adapter
from carpool_supervisor.era.era_detection import Detection
from carpool_supervisor.era.handshake import Handshake
from carpool_supervisor.era.server_requests import Declared
from carpool_supervisor.era.stateless import Stateless
from carpool_supervisor.spawn.request import Pipes
from carpool_supervisor.stdio.child_io import PipeBudget
from carpool_supervisor.stdio.instance_io import Conversation, mask_of
from carpool_supervisor.stdio.read_budget import Intake
from carpool_supervisor.stdio.stderr_log import StderrLog

log = logging.getLogger("carpool.supervisor")

Feed = Callable[[Iterable[events.OwnEvent]], None]


class Conversations:
    """The conversations of one supervisor. `life`: its secret, in what it mints to know it again."""

    def __init__(self, ready: ReadySet, logs: Path, release: str, life: bytes, feed: Feed) -> None:
        self._ready = ready
        self._logs = logs
        self._release = release
        self._life = life
        self._feed = feed
        self._budget = PipeBudget()
        self.intake = Intake()
        """How much is read from all of them."""
        self._held: dict[InstanceId, Conversation] = {}
        self._stderr: dict[ServerName, StderrLog] = {}
        self._dirty: list[Conversation] = []
        held = self._held
        self.ways: Mapping[type, Callable[..., None]] = {
            effects.WriteCall: lambda e: held[e.instance].call(e.wire, e.call),
            effects.WriteCancel: lambda e: held[e.instance].cancel(e.wire, e.reason),
            effects.WriteLevel: lambda e: held[e.instance].level(e.level),
            effects.WriteWatch: lambda e: held[e.instance].watch(e.add, e.drop),
            effects.WriteWatchTasks: lambda e: held[e.instance].watch_tasks(e.tasks),
            effects.WriteTaskCancel: lambda e: held[e.instance].cancel_task(e.task),
            effects.WriteAskAnswer: lambda e: held[e.instance].answer_ask(
                e.id, is_error=e.is_error, body=e.body
            ),
            effects.WriteAskProgress: lambda e: held[e.instance].ask_progress(e.token, e.params),
            effects.WriteAgain: lambda e: held[e.instance].again(e.wire),
            effects.KeepLog: lambda e: held[e.instance].keep_log(e.level, e.params),
            effects.Probe: lambda e: held[e.instance].probe(),
            effects.GreetOtherwise: lambda e: held[e.instance].greet_otherwise(),
            effects.Relist: lambda e: held[e.instance].relist(),
            effects.GiveUpList: lambda e: held[e.instance].give_up_list(e.after_s),
            effects.Forget: self._forget,
        }

    def open(self, instance: InstanceId, spec: PoolSpec, era: Era, pipes: Pipes) -> None:
        """A process of this pool is on its way; `era`: the one it is greeted in first."""
        self._held[instance] = Conversation(
            instance,
            self._adapter(instance, spec, era),
            pipes,
            ready=self._ready,
            budget=self._budget,
            log=self._stderr_of(spec.server),
            given=_given(spec),
            variables=spec.secrets,
            feed=self._feed,
            on_dirty=self._dirty.append,
            intake=self.intake,
        )

    def note(self, server: ServerName, instance: InstanceId, text: str) -> None:
        """A line of ours for the log of a server: what `carpool logs SERVER` shows beside its stderr."""
        self._stderr_of(server).note(instance, f"[carpool] {text}")

    def masked(self, instance: InstanceId, text: str, spec: PoolSpec | None = None) -> str:
        """A sentence about an instance without the values it was given. `spec`: of one not opened yet."""
        conversation = self._held.get(instance)
        if conversation is not None:
            return conversation.masked(text)
        return text if spec is None else mask_of(_given(spec)).over(text)

    def greet(self, instance: InstanceId) -> None:
        """Its process runs."""
        if (conversation := self._held.get(instance)) is not None:
            conversation.greet()

    def exited(self, instance: InstanceId) -> tuple[tuple[WireId, ...], str]:
        """Its process is gone: which calls it never got, and its last words."""
        conversation = self._held.get(instance)
        return conversation.exited() if conversation is not None else ((), "")

    def close_stdin(self, instance: InstanceId) -> None:
        """It is asked to end."""
        self._held[instance].io.close_stdin()

    def flush(self) -> None:
        """Hand over what was written since the last flush."""
        while self._dirty:  # a stdin that breaks may have calls written elsewhere
            dirty = self._dirty.copy()
            self._dirty.clear()
            for conversation in dirty:
                conversation.flush()

    def close(self) -> None:
        """Let go of the logs."""
        for stderr in self._stderr.values():
            stderr.close()

    def _adapter(self, instance: InstanceId, spec: PoolSpec, first: Era) -> Adapter | Detection:
        roots = None if spec.roots is None else tuple(spec.roots)
        declared = Declared(asking=spec.asking, roots=roots, life=self._life)

        def make(era: Era) -> Adapter:
            if era == "stateless":
                return Stateless(instance, spec.key, self._release, declared, bridge=spec.bridge)
            max_total_s = spec.policy.max_total_s
            return Handshake(
                instance, spec.key, self._release, declared, max_total_s=max_total_s, bridge=spec.bridge
            )

        return Detection(instance, make, first) if spec.era in ("auto", "newest") else make(first)

    def _forget(self, effect: effects.Forget) -> None:
        conversation = self._held.pop(effect.instance, None)
        if conversation is not None:
            conversation.close()

    def _stderr_of(self, server: ServerName) -> StderrLog:
        found = self._stderr.get(server)
        if found is None:
            path = Path(paths.server_log(str(self._logs), server))
            found = self._stderr[server] = StderrLog(
                self._ready, path, on_trouble=lambda text: log.error("%s: %s", server, text)
            )
        return found


def _given(spec: PoolSpec) -> set[str]:
    """The values that a server was given: of its environment, and of variables in all its texts."""
    own = {name: value for name, value in spec.env.items() if os.environ.get(name) != value}
    return secrets_of(own) | set(spec.secrets)
