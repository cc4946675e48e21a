"""Carpool and its service manager: messages (sd_notify), and the descriptors that it keeps and passes on."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool import launcher_lock
from carpool.launcher.http_door import read_door_url
from carpool.launcher.service_manager import LISTEN, RESTART_STATUS, SOCKET, WATCHDOG, ServiceManager
from carpool_protocol.bootstrap import paths
from tests.behaviours import behaviour
from tests.client.launcher.test_http_handover import accepts
from tests.kit.ports import free_port
from tests.kit.private_daemon import PrivateDaemon, until
from tests.kit.waits import END_LIMIT_S


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
    service.communicate(timeout=END_LIMIT_S)
    assert service.returncode == 0


@behaviour("service:ready")
def test_a_service_that_is_restarted_asks_its_manager_to_start_it(
    house: PrivateDaemon, manager: socket.socket
) -> None:
    service = house.start("up")
    assert states(manager, b"READY=1")
    restart = house.start("restart", "--all")
    service.communicate(timeout=END_LIMIT_S)
    assert service.returncode == RESTART_STATUS
    again = house.start("up")  # as the manager does
    assert states(manager, b"READY=1")
    restart.communicate(timeout=END_LIMIT_S)
    assert restart.returncode == 0
    held = launcher_lock.holder(str(house.directory))
    assert held is not None
    assert (held.pid, held.is_service) == (again.pid, True), "restart has started no other one"
    assert house.run("down").returncode == 0
    again.communicate(timeout=END_LIMIT_S)
    assert again.returncode == 0


@behaviour("restart:down-wins")
def test_down_ends_what_the_manager_starts_for_a_restart_whose_verb_was_killed(
    house: PrivateDaemon, manager: socket.socket
) -> None:
    service = house.start("up")
    assert states(manager, b"READY=1")
    os.kill(house.launcher, signal.SIGUSR1)  # as a verb that is killed right after this
    service.communicate(timeout=END_LIMIT_S)
    assert service.returncode == RESTART_STATUS
    early = house.run("down", "--timeout", "0.1")
    assert (early.returncode, early.stdout) == (1, "")
    assert "a `carpool restart --all` still runs" in early.stderr
    # However long that took.
    Path(paths.lock_file(str(house.directory))).write_text(launcher_lock.awaited_text(), encoding="utf-8")
    down = house.start("down")
    again = house.start("up")  # as the manager does
    assert down.communicate(timeout=END_LIMIT_S)[0] == f"carpool is down in {house.directory}\n".encode()
    again.communicate(timeout=END_LIMIT_S)
    assert not house.launcher


@behaviour("restart:down-wins")
def test_down_waits_no_longer_for_a_launcher_that_the_manager_does_not_start(
    house: PrivateDaemon, manager: socket.socket
) -> None:
    service = house.start("up")
    assert states(manager, b"READY=1")
    os.kill(house.launcher, signal.SIGUSR1)
    service.communicate(timeout=END_LIMIT_S)
    Path(paths.lock_file(str(house.directory))).write_text(launcher_lock.awaited_text(60), encoding="utf-8")
    down = house.run("down", "--timeout", "0.1")
    assert (down.returncode, down.stdout) == (0, f"carpool was not running in {house.directory}\n")


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


def test_descriptors_of_another_process_are_left_alone() -> None:
    for variables in (
        {"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "2"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"},
        {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "9" * 9},
        {"LISTEN_FDS": "2"},
    ):
        environ = {**variables, "HOME": "/h"}
        assert ServiceManager(environ).take_given() == []
        assert environ == {"HOME": "/h"}


class KeepingManager:
    """A service manager with a store of descriptors. It reads messages in a thread, and starts carpool as
    systemd does: with the descriptors from 3 on.
    """

    def __init__(self, house: PrivateDaemon) -> None:
        self._house = house
        self.path = str(house.base / "notify")
        self.states: list[bytes] = []
        self.store: dict[str, int] = {}
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(self.path)
        self._sock.settimeout(0.05)
        self._is_over = threading.Event()
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def close(self) -> None:
        self._is_over.set()
        self._reading.join()
        self._sock.close()
        for fd in self.store.values():
            os.close(fd)

    def _read(self) -> None:
        while not self._is_over.is_set():
            try:
                data, fds, _, _ = socket.recv_fds(self._sock, 4096, 4)
            except TimeoutError:
                continue
            words = dict(line.partition("=")[::2] for line in data.decode().split("\n"))
            if "FDNAME" in words and (fd := self.store.pop(words["FDNAME"], -1)) >= 0:
                os.close(fd)
            if "FDSTORE" in words:
                assert words["FDPOLL"] == "0"
                self.store[words["FDNAME"]] = fds.pop()
            self.states.append(data)
            for fd in fds:  # of a barrier
                os.close(fd)

    def start(self, *arguments: str, given: list[int] | None = None) -> subprocess.Popen[bytes]:
        """Start the service."""
        fds = list(self.store.values()) if given is None else given
        moved = "".join(f"os.dup2({fd}, {90 + at}); " for at, fd in enumerate(fds))
        moved += "".join(f"os.dup2({90 + at}, {3 + at}); " for at in range(len(fds)))
        named = f"{LISTEN[0]}=str(os.getpid()), {LISTEN[1]}={str(len(fds))!r}, {LISTEN[2]}='a:b'"
        command = [sys.executable, "-m", "carpool", "up", *arguments]
        program = f"import os; {moved}os.execve({command[0]!r}, {command!r}, dict(os.environ, {named}))"
        return subprocess.Popen(
            [sys.executable, "-c", program],
            env={**self._house.environ, SOCKET: self.path},
            pass_fds=fds,
            stderr=subprocess.PIPE,
        )

    def ready(self, count: int) -> None:
        until(lambda: self.states.count(b"READY=1") == count, "it is ready")


@pytest.fixture
def keeping(house: PrivateDaemon) -> Iterator[KeepingManager]:
    manager = KeepingManager(house)
    yield manager
    manager.close()


@behaviour("service:handover", "handover:address")
def test_a_service_manager_keeps_the_address_over_a_restart_and_closes_it_in_the_end(
    house: PrivateDaemon, keeping: KeepingManager
) -> None:
    port = free_port()
    service = keeping.start("--http", f"127.0.0.1:{port}", given=[])
    keeping.ready(1)
    until(lambda: "http" in keeping.store, "the listening socket is kept")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n")  # in its middle for now
        restart = house.start("restart", "--all")
        client.sendall(b"\r\n")
        service.communicate(timeout=END_LIMIT_S)
        assert service.returncode == RESTART_STATUS
        assert set(keeping.store) == {"http", "http-connections"}
        assert accepts(port), "the kernel takes connections"
        again = keeping.start("--http", f"127.0.0.1:{port}")
        keeping.ready(2)
        restart.communicate(timeout=END_LIMIT_S)
        assert restart.returncode == 0
        client.settimeout(30)
        assert client.recv(4096).startswith(b"HTTP/1.1 ")
    until(lambda: "http-connections" not in keeping.store, "the next door has the connections")
    for process in house.left():
        assert LISTEN[1] not in house.text(f"/proc/{process[0]}/environ")
    assert house.run("down").returncode == 0
    again.communicate(timeout=END_LIMIT_S)
    until(lambda: not keeping.store, "nothing is kept")
    assert not accepts(port)


@behaviour("service:handover")
def test_a_socket_that_the_service_manager_has_opened_is_used_if_it_has_the_address(
    house: PrivateDaemon, keeping: KeepingManager
) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        service = keeping.start("--http", f"127.0.0.1:{port}", given=[fd])
        keeping.ready(1)
        assert read_door_url(str(house.directory)) == f"http://127.0.0.1:{port}/mcp"
        assert house.run("down").returncode == 0
        service.communicate(timeout=END_LIMIT_S)
        other = free_port()
        service = keeping.start("--http", f"127.0.0.1:{other}", given=[fd])
        keeping.ready(2)
        assert read_door_url(str(house.directory)) == f"http://127.0.0.1:{other}/mcp"
        assert house.run("down").returncode == 0
        service.communicate(timeout=END_LIMIT_S)
