"""What a scene must not leave behind in a carpool that lives on, and whether its journals replay.

Owns descriptors by process, files of the runtime directory, marked processes, journals. Compared are two
moments at which nobody is there and no server is configured. Knows nothing of scenes.
"""

import os
import re
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
import trio
from msgspec import Struct

from carpool_broker.config.configuration import Configuration
from carpool_broker.core.broker import BrokerCore
from carpool_broker.core.model import events as bv
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import find_config_file
from carpool_protocol.machine.journal import load_journal, replay
from carpool_protocol.machine.machine import Machine
from carpool_supervisor import marks
from carpool_supervisor.core.model import events as sv
from carpool_supervisor.core.supervisor import SupervisorCore
from carpool_supervisor.spawn import orphans as sweep
from tests.kit.broker_rig import broker_core
from tests.kit.line_agent import WAIT_S
from tests.kit.live import Daemon, fd_count
from tests.kit.supervisor_rig import supervisor_core
from tests.kit.waits import until

_ASK: Final = re.compile(rb'"ask":"([0-9a-f]{8})-')
"""What the ids of a supervisor's asks begin with comes from its secret, which no journal tells; the ids are
told."""
_LIFE: Final = re.compile(rb'"session":"s(\d+)-')
"""The number of a broker is told by its launcher and no journal; sessions that came to it are named by it."""


class Traces(Struct, frozen=True):
    """One moment."""

    fds: Mapping[int, int]
    """Of each of the daemon's processes."""
    files: frozenset[str]
    """In the runtime directory; logs are for keeping."""


async def traces(daemon: Daemon) -> Traces:
    """This moment, once nobody is there any more."""
    await trio.to_thread.run_sync(daemon.quiet)
    await daemon.until(lambda facts: not facts["totals"]["instances"], "no instance runs")
    fds = {}
    for pid in daemon.daemons():
        with suppress(OSError):
            fds[pid] = fd_count(pid)
    found = [str(path.relative_to(daemon.directory)) for path in daemon.directory.rglob("*")]
    return Traces(fds, frozenset(path for path in found if not path.startswith("state")))


async def nothing_new(daemon: Daemon, before: Traces) -> None:
    """Fails where a process that survived has more descriptors than before, or the directory more files."""
    await until(lambda: not orphans(daemon), "no instance is left", WAIT_S)
    new: dict[str, Any] = {}

    async def look() -> bool:
        after = await traces(daemon)
        fds = {pid: (before.fds[pid], n) for pid, n in after.fds.items() if n > before.fds.get(pid, n)}
        new.update(fds=fds, files=after.files - before.files)
        return not fds and after.files <= before.files

    with trio.move_on_after(WAIT_S):
        while not await look():  # noqa: ASYNC110  # other processes set no event
            await trio.sleep(0.02)
        return
    raise AssertionError(f"left behind: {new}")


def orphans(daemon: Daemon) -> list[int]:
    """Processes with the mark of an instance, and of it only."""
    runtime = paths.runtime_id(str(daemon.directory))
    theirs = sweep.find(marks.INSTANCE, lambda value: value.startswith(f"{runtime}:"))
    return [pid for pid in theirs if "spawner" not in (marks.value_of(pid, marks.INSTANCE) or "spawner")]


async def journals_replay(daemon: Daemon) -> None:
    """Fresh cores, told what those of the living processes were told, decide the same."""
    facts = await daemon.status()
    bounds = Configuration(find_config_file(daemon.environ, str(daemon.config)), daemon.environ).bounds()

    def broker(data: bytes) -> BrokerCore:
        life = max(map(int, _LIFE.findall(data)), default=0)
        return broker_core(bounds, secret=b"s" * 32, life=life)

    def supervisor(data: bytes) -> SupervisorCore:
        core = supervisor_core()
        if mark := _ASK.search(data):
            core.asks._prefix = mark[1].decode()
        return core

    await _replays(daemon, facts["broker"]["pid"], "broker", broker, bv.AnyEvent)
    for each in facts["supervisors"]:
        await _replays(daemon, each["pid"], f"supervisor-{each['id']}", supervisor, sv.AnyEvent)


async def _replays(
    daemon: Daemon, pid: int, name: str, make: Callable[[bytes], Machine[Any, Any]], known: Any
) -> None:
    path = daemon.logs / f"journal-{name}.jsonl"
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    await until(path.exists, f"{name} writes its journal", WAIT_S)
    data = path.read_bytes()
    lines = [msgspec.json.decode(line) for line in data.splitlines()]
    core = make(data)
    assert lines[0]["seq"] == 0, "the ring is too small for this life"
    decided = [[effect["type"] for effect in line["effects"]] for line in lines]
    again = replay(core, load_journal(data, [known]))
    for line, before, effects in zip(lines, decided, again, strict=True):
        assert [type(each).__name__ for each in effects] == before, f"{name} replays otherwise at {line}"
    core.check()
