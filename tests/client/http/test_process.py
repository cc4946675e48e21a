"""What the door's process takes from the configuration and from the door before, and what it says where it
cannot.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carpool.http import process
from carpool.http.core.access import hash_of
from carpool.http.door_config import UnservableError, read_door, read_first
from carpool.http.left_connections import LeftConnection, pack
from carpool.http.process import EarlierDoor, LauncherLine, listen
from carpool.launcher.http_address import bind
from carpool.launcher.http_door import EXIT_CONFIG, EXIT_TAKEN, EXIT_UNWANTED
from carpool.launcher.http_handover import LISTENS, LISTENS_NOT
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.door_tokens import admitted_by
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.config.schema.model import HttpConfig
from carpool_protocol.config.text.file_stamps import stamp
from carpool_protocol.runtime import core_dumps
from tests.behaviours import behaviour
from tests.client.http.test_left_connections import few_descriptors, many_left
from tests.kit.ports import free_port

WAIT_S = 20.0


def test_a_broken_configuration_is_told_as_people_read_it(tmp_path: Path) -> None:
    path = tmp_path / "carpool.json"
    path.write_text('{\n "http": {"prt": 0} }', encoding="utf-8")
    with pytest.raises(UnservableError) as error:
        read_first(ConfigFile(str(path), asked_for=True), "", str(tmp_path))
    where = f"{path}:2: http.prt: unknown key; did you mean `port`?"
    assert str(error.value) == f"the configuration is broken, no door is opened: {where}"


def settings(tmp_path: Path, port: int) -> HttpConfig:
    path = tmp_path / "carpool.json"
    path.write_text(f'{{"http": {{"port": {port}}}}}')
    found = read_door(ConfigFile(str(path), asked_for=True), "").settings
    assert found is not None
    return found


def left(data: bytes) -> tuple[int, socket.socket]:
    """What an earlier door has left, and the client of the only connection in it."""
    ours, client = socket.socketpair()
    return pack([LeftConnection(ours.detach(), data)]).detach(), client


@pytest.mark.parametrize("slow", ["stamp", "read_door"])
def test_a_configuration_on_a_disk_that_does_not_answer_holds_up_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    asked, answers = threading.Event(), threading.Event()
    was_served: list[bool] = []
    read = getattr(process, slow)

    def read_slowly(*arguments: object) -> object:
        asked.set()
        was_served.append(answers.wait(WAIT_S / 4))  # the loop sets it, unless it is held up
        return read(*arguments)

    async def run() -> None:
        file = ConfigFile(str(tmp_path / "carpool.json"), asked_for=True)
        config = process.DoorConfig(file, "", wished, stamp(file.path), admitted_by(wished))
        door = process._HttpDoor(str(tmp_path), config, LauncherLine(-1), begin)
        if slow == "read_door":
            monkeypatch.setattr(process, "stamp", lambda _: object())  # the file changes all the time
        monkeypatch.setattr(process, slow, read_slowly)
        watching = asyncio.create_task(door._watch_config())
        while not was_served:
            await asyncio.sleep(0.01)
            if asked.is_set():
                answers.set()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    wished = settings(tmp_path, free_port())
    monkeypatch.setattr(process, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(process, "_LOOK_UNUSED_S", 0.01)
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin = process.EarlierDoor(listener, goes_on=False, connections=[])
        asyncio.run(asyncio.wait_for(run(), WAIT_S))
    assert was_served[0]


@behaviour("handover:address")
@pytest.mark.parametrize("any_port", [False, True])
def test_a_door_goes_on_with_the_socket_and_the_connections_of_the_one_before(
    tmp_path: Path, any_port: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connections, client = left(b"waits")
        wished = settings(tmp_path, 0 if any_port else port)
        begin = listen(wished, LauncherLine(-1), [listener.dup().detach()], connections)
        assert begin.goes_on
        assert begin.listener.getsockname() == listener.getsockname()
        (found,) = begin.connections
        assert found.data == b"waits"
        os.close(found.fd)
        begin.listener.close()
        client.close()


@behaviour("handover:requests", "handover:ends")
@pytest.mark.parametrize(
    ("config", "lacks", "code"),
    [
        ("{}", "", EXIT_UNWANTED),
        ('{"http": {"host": "0.0.0.0", "tokens": false}}', "", EXIT_CONFIG),
        ('{"http": {"port": 0}}', "httptools", EXIT_CONFIG),
    ],
    ids=["no door is wanted", "it needs tokens", "the extra is not installed"],
)
def test_a_door_that_cannot_go_on_answers_requests_of_the_one_before(
    tmp_path: Path, config: str, lacks: str, code: int
) -> None:
    (tmp_path / "carpool.json").write_text(config)
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{lacks!r}] = None\n" * bool(lacks))
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    options = ["--runtime-dir", str(tmp_path), "--config", str(tmp_path / "carpool.json")]
    (idle, idle_client), (waits, client) = socket.socketpair(), socket.socketpair()
    with pack([LeftConnection(idle.detach(), b""), LeftConnection(waits.detach(), b"waits")]) as kept:
        done = subprocess.run(
            [sys.executable, "-m", "carpool.http", *options, "--connections", str(kept.fileno())],
            env={**os.environ, "PYTHONPATH": paths, "XDG_STATE_HOME": str(tmp_path)},
            pass_fds=[kept.fileno()],
            check=False,
            timeout=60,
        )
        assert done.returncode == code
        client.settimeout(WAIT_S)
        answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"not delivered")
        assert idle_client.recv(100) == b""
    client.close()
    idle_client.close()


@behaviour("handover:address", "handover:keep-alive")
@pytest.mark.parametrize("own_is", [0, 1])
def test_of_two_listening_sockets_the_one_with_the_configured_address_is_chosen(
    tmp_path: Path, own_is: int
) -> None:
    ours, launcher = socket.socketpair()
    address = ("127.0.0.1", 0)
    with socket.create_server(address) as own, socket.create_server(address) as other, ours, launcher:
        connections, client = left(b"waits")
        port = own.getsockname()[1]
        given = [other.dup().detach(), other.dup().detach()]
        os.close(given[own_is])
        given[own_is] = own.dup().detach()
        line = LauncherLine(ours.fileno())
        begin = listen(settings(tmp_path, port), line, given, connections)
        line.close()
        assert begin.goes_on
        assert begin.listener.getsockname()[1] == port
        assert [each.data for each in begin.connections] == [b"waits"]
        launcher.settimeout(WAIT_S)
        told, (fd,), _, _ = socket.recv_fds(launcher, 100, 4)
        assert told == f"{LISTENS}\n".encode()
        with socket.socket(fileno=fd) as kept:
            assert kept.getsockname()[1] == port
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(given[1 - own_is])
        begin.listener.close()
        os.close(begin.connections[0].fd)
        client.close()


@behaviour("handover:keep-alive")
def test_a_low_limit_of_descriptors_costs_no_connection(tmp_path: Path) -> None:
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = many_left(200, clients).detach()
        wished, given = settings(tmp_path, listener.getsockname()[1]), listener.dup().detach()
        with few_descriptors(20):
            begin = listen(wished, LauncherLine(-1), [given], connections)
        assert len(begin.connections) == 200
        for each in begin.connections:
            os.close(each.fd)
        begin.listener.close()
    for client in clients:
        client.close()


@behaviour("handover:ends", "handover:requests")
def test_a_door_at_another_address_gives_the_socket_up_and_tells_clients_that_wait(tmp_path: Path) -> None:
    ours, launcher = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, ours, launcher:
        connections, client = left(b"waits")
        port = free_port()
        line = LauncherLine(ours.fileno())
        begin = listen(settings(tmp_path, port), line, [listener.dup().detach()], connections)
        line.close()
        assert not begin.goes_on
        assert begin.connections == []
        client.settimeout(WAIT_S)
        assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
        client.close()
        launcher.settimeout(WAIT_S)
        told, fds = b"", []
        while told.count(b"\n") < 2:
            data, more, _, _ = socket.recv_fds(launcher, 100, 4)
            told += data
            fds += more
        assert told == f"{LISTENS_NOT}\n{LISTENS}\n".encode()
        with socket.socket(fileno=fds[0]) as kept:
            begin.listener.close()
            with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S):
                kept.accept()[0].close()


def test_a_port_that_the_launcher_still_holds_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where another host at the same port is configured."""
    monkeypatch.setattr(process, "_CLOSE_LOOKS", 1000)
    port = free_port()
    held = socket.create_server(("127.0.0.1", port))
    looked = threading.Event()

    def look(host: str, port: int, backlog: int) -> socket.socket:
        try:
            return bind(host, port, backlog)
        finally:
            looked.set()

    monkeypatch.setattr(process, "bind", look)

    def close() -> None:
        looked.wait(WAIT_S)
        held.close()

    closing = threading.Thread(target=close)
    closing.start()
    with socket.create_server(("127.0.0.1", 0)) as other:
        begin = listen(settings(tmp_path, port), LauncherLine(-1), [other.dup().detach()], -1)
    closing.join()
    assert begin.listener.getsockname()[1] == port
    begin.listener.close()


@pytest.mark.parametrize(("host", "code"), [("127.0.0.1", EXIT_TAKEN), ("no such name\udcff", EXIT_CONFIG)])
def test_an_address_that_cannot_be_bound_is_told_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, code: int
) -> None:
    monkeypatch.setattr(process, "_CLOSE_LOOK_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as held, socket.create_server(("127.0.0.1", 0)) as other:
        wished = settings(tmp_path, held.getsockname()[1])
        values = {name: getattr(wished, name) for name in wished.__struct_fields__}
        with pytest.raises(UnservableError, match="cannot listen") as error:
            listen(HttpConfig(**{**values, "host": host}), LauncherLine(-1), [other.dup().detach()], -1)
    assert error.value.code == code


@behaviour("http:tokens:verbs")
def test_a_change_of_the_file_while_the_door_starts_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token may be revoked just then, and nobody changes the file again."""
    file = tmp_path / "carpool.json"
    file.write_text(f'{{"http": {{"port": {free_port()}}}}}')

    def listen_late(*arguments: Any) -> EarlierDoor:
        found = listen(*arguments)
        file.write_text("{}")
        return found

    def run_for_a_while(main: Coroutine[Any, Any, int], _: str) -> int:
        return asyncio.run(asyncio.wait_for(main, WAIT_S))

    monkeypatch.setattr(process, "listen", listen_late)
    monkeypatch.setattr(process, "run_on_the_fastest_loop", run_for_a_while)
    monkeypatch.setattr(process, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    monkeypatch.setattr(core_dumps, "turn_off", lambda: None)
    monkeypatch.setattr(process, "_LOOK_EVERY_S", 0.05)
    assert process.run(["--runtime-dir", str(tmp_path), "--config", str(file)]) == EXIT_UNWANTED


@behaviour("http:tokens:verbs")
def test_a_token_that_expires_while_the_file_stays_as_it_is_is_shut_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    file = tmp_path / "carpool.json"
    tokens = {
        "early": {"hash": hash_of("early"), "expires": "1970-01-01T00:20:00Z"},
        "late": {"hash": hash_of("late"), "expires": "1970-01-01T00:30:00Z"},
    }
    file.write_text(json.dumps({"http": {"port": 0, "tokens": tokens}}))
    monkeypatch.setattr(process, "unix_s", lambda: now[0])
    monkeypatch.setattr(process, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(process, "_LOOK_UNUSED_S", 0.01)
    monkeypatch.setenv(paths.STATE_VARIABLE, str(tmp_path / "state"))

    async def run() -> None:
        config = ConfigFile(str(file), asked_for=True)
        wished = read_door(config, "").settings
        assert wished is not None
        served = process.DoorConfig(config, "", wished, stamp(config.path), admitted_by(wished))
        door = process._HttpDoor(str(tmp_path), served, LauncherLine(-1), begin)

        def comes_in(token: str) -> bool:
            headers = {"host": "localhost", "authorization": f"Bearer {token}"}
            return isinstance(door._core.body_bound("/mcp", headers, 1), int)

        watching = asyncio.create_task(door._watch_config())
        for at, those in ((1199.0, ["early", "late"]), (1200.0, ["late"]), (1800.0, [])):
            now[0] = at
            while True:
                found = [each for each in ("early", "late", "unknown") if comes_in(each)]
                if found == those:
                    break
                await asyncio.sleep(0.01)
        assert not isinstance(door._core.body_bound("/mcp", {"host": "localhost"}, 1), int)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        begin = process.EarlierDoor(listener, goes_on=False, connections=[])
        asyncio.run(asyncio.wait_for(run(), WAIT_S))
