"""The messages of carpool to its service manager: ready, alive, stopping (sd_notify)."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.launcher.service_manager import RESTART_STATUS, SOCKET, WATCHDOG, ServiceManager
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon, until


@pytest.fixture
def manager(house: PrivateDaemon) -> Iterator[socket.socket]:
    """A socket that stands for a service manager; carpool finds its address in the environment."""
    path = str(house.base / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        sock.settimeout(30)
        house.environ |= {SOCKET: path, WATCHDOG: "60000000"}
        yield sock


def states(sock: socket.socket, last: bytes) -> list[bytes]:
    """The messages up to `last`."""
    found = [sock.recv(4096)]
    while found[-1] != last:
        found.append(sock.recv(4096))
    return found


@behaviour("service:ready")
def test_a_service_is_ready_once_sessions_are_taken_alive_while_it_runs_and_says_that_it_ends(
    house: PrivateDaemon, manager: socket.socket
) -> None:
    service = house.start("up")
    assert states(manager, b"READY=1")
    held = launcher_lock.holder(str(house.directory))
    assert held is not None
    assert held.is_service
    assert manager.recv(4096) == b"WATCHDOG=1"
    for name in ("broker", "sup1"):
        until(lambda name=name: house.lives(name), f"{name} runs")  # type: ignore[misc]  # mypy: lambda default
        assert SOCKET not in house.text(f"lives-{name}")
    os.kill(held.pid, signal.SIGTERM)
    assert states(manager, b"STOPPING=1")
    service.communicate(timeout=30)
    assert service.returncode == 0


@behaviour("service:ready")
def test_a_service_that_is_restarted_asks_its_manager_to_start_it(
    house: PrivateDaemon, manager: socket.socket
) -> None:
    service = house.start("up")
    assert states(manager, b"READY=1")
    restart = house.start("restart", "--all")
    service.communicate(timeout=30)
    assert service.returncode == RESTART_STATUS
    again = house.start("up")  # as the manager does
    assert states(manager, b"READY=1")
    restart.communicate(timeout=30)
    assert restart.returncode == 0
    held = launcher_lock.holder(str(house.directory))
    assert held is not None
    assert (held.pid, held.is_service) == (again.pid, True), "restart has started no other one"
    assert house.run("down").returncode == 0
    again.communicate(timeout=30)
    assert again.returncode == 0


@behaviour("service:ready")
def test_a_manager_that_does_not_listen_and_none_at_all_hold_nothing_up(tmp_path: Path) -> None:
    environ = {SOCKET: str(tmp_path / "gone"), WATCHDOG: "1", "HOME": "/h"}
    gone = ServiceManager(environ)
    assert environ == {"HOME": "/h"}
    assert gone.is_there
    for manager in (gone, ServiceManager({})):
        manager.ready()
        manager.alive()
        manager.stopping()


def test_an_abstract_address_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"carpool-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        sock.settimeout(10)
        ServiceManager({SOCKET: f"@{name}"}).ready()
        assert sock.recv(100) == b"READY=1"
