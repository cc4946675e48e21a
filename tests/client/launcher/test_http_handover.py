"""The handover of an HTTP door between two launchers: who gets it, and when nothing listens any more."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.http.left_connections import LeftConnection, pack
from carpool.launcher.http_address import bind, has_address
from carpool.launcher.http_door import read_door_url
from carpool.launcher.http_handover import OFFER_S, HandoverOffer, HttpHandover, take_offer
from carpool.launcher.http_refusal import refuse_handover
from carpool_protocol.bootstrap import paths, peer_credentials
from tests.behaviours import behaviour
from tests.kit.ports import free_port
from tests.kit.private_daemon import LIMIT_S, PrivateDaemon, until

WAIT_S = 20.0


@pytest.fixture
def place(house: PrivateDaemon) -> str:
    """A runtime directory whose name is short enough for a socket."""
    return str(house.directory)


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A listening socket and a Unix socket, as a door leaves them."""
    ours, theirs = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener, ours, theirs:
        yield listener, ours


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return False
    return True


def handover(*sockets: socket.socket) -> HttpHandover:
    return HttpHandover([each.detach() for each in sockets])


def test_descriptors_are_told_apart_by_what_they_are(
    sockets: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    listener, left = sockets
    strange = [os.open(tmp_path, os.O_RDONLY), socket.socket().detach(), socket.socket(type=2).detach()]
    second, third = (socket.create_server(("127.0.0.1", 0)).detach() for _ in range(2))
    found = HttpHandover([strange[0], left.fileno(), *strange[1:], listener.fileno(), second, third])
    assert (found.listener, found.connections) == (listener.detach(), left.detach())
    assert found.arguments == {
        "--listener": found.listener,
        "--other-listener": second,
        "--connections": found.connections,
    }
    for fd in (*strange, third):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    found.set_listener(os.dup(found.listener))
    assert found.arguments.keys() == {"--listener", "--connections"}, "a door has chosen"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second)
    found.close()
    assert (found.descriptors, found.arguments) == ([], {})


@behaviour("handover:address")
def test_the_next_launcher_gets_what_the_last_one_offers(
    place: str, sockets: tuple[socket.socket, socket.socket]
) -> None:
    port = sockets[0].getsockname()[1]
    offer = HandoverOffer(place, handover(*sockets))
    assert os.stat(paths.handover_socket(place)).st_mode & 0o777 == 0o600
    giving = threading.Thread(target=offer.serve, args=(WAIT_S,))
    giving.start()
    found = HttpHandover(take_offer(place))
    giving.join()
    assert len(found.descriptors) == 2
    assert not any(map(os.get_inheritable, found.descriptors))
    assert accepts(port)
    found.close()
    assert not accepts(port)
    assert not os.path.exists(paths.handover_socket(place))


@behaviour("handover:ends")
def test_an_offer_that_nobody_takes_ends_and_nothing_listens(
    place: str, sockets: tuple[socket.socket, socket.socket]
) -> None:
    port, offered = sockets[0].getsockname()[1], handover(*sockets)
    assert not HandoverOffer(place, offered).serve(0.05)
    assert not os.path.exists(paths.handover_socket(place))
    assert take_offer(place) == []
    refuse_handover(offered, dict(os.environ))
    assert not accepts(port)


@behaviour("handover:ends")
def test_a_process_of_another_user_gets_nothing(
    place: str, sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_credentials, "is_ours", lambda _: False)
    offered = handover(*sockets)
    giving = threading.Thread(target=HandoverOffer(place, offered).serve, args=(0.3,))
    giving.start()
    assert take_offer(place) == []
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(WAIT_S)
        other.connect(paths.handover_socket(place))
        assert socket.recv_fds(other, 1, 2)[:2] == (b"", [])
    giving.join()
    offered.close()


@behaviour("handover:address")
def test_processes_that_connect_and_go_or_stay_silent_do_not_take_the_offer(
    place: str, sockets: tuple[socket.socket, socket.socket]
) -> None:
    port = sockets[0].getsockname()[1]
    offer = HandoverOffer(place, handover(*sockets))
    silent: list[socket.socket] = []
    for number in range(9):  # before anybody accepts: all of them come first, and fill the queue
        silent.append(socket.socket(socket.AF_UNIX))
        silent[-1].connect(paths.handover_socket(place))
        if number % 2:
            silent.pop().close()
    giving = threading.Thread(target=offer.serve, args=(WAIT_S,))
    giving.start()
    found = HttpHandover(take_offer(place))
    giving.join()
    assert len(found.descriptors) == 2
    assert accepts(port)
    assert not os.path.exists(paths.handover_socket(place))
    found.close()
    for each in silent:
        each.close()
    assert not accepts(port)


def test_connections_that_the_kernel_does_not_pass_on_do_not_cost_the_address(
    place: str, sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where more descriptors are on their way than the process may have open."""
    send = socket.send_fds

    def send_one(sock: socket.socket, data: list[bytes], fds: list[int]) -> int:
        if len(fds) > 1:
            raise OSError(109, "Too many references")
        return send(sock, data, fds)

    monkeypatch.setattr(socket, "send_fds", send_one)
    port = sockets[0].getsockname()[1]
    giving = threading.Thread(target=HandoverOffer(place, handover(*sockets)).serve, args=(WAIT_S,))
    giving.start()
    found = HttpHandover(take_offer(place))
    giving.join()
    assert (found.connections, accepts(port)) == (-1, True)
    found.close()


def test_the_socket_of_a_launcher_that_was_killed_offers_nothing_and_goes(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(paths.handover_socket(place))
    assert take_offer(place) == []
    assert not os.path.exists(paths.handover_socket(place))


@pytest.mark.parametrize("port", [0, None])
def test_an_address_is_kept_if_it_would_be_bound_again(port: int | None) -> None:
    with bind("127.0.0.1", 0) as sock:
        wished = sock.getsockname()[1] if port is None else port
        assert has_address(sock, "127.0.0.1", wished)
        assert not has_address(sock, "127.0.0.1", sock.getsockname()[1] % 60_000 + 1)
        assert not has_address(sock, "0.0.0.0", wished)
        assert not has_address(sock, "no such name", wished)


# --- launchers that run: with the real door, over fakes of broker and supervisor ---


def doored(house: PrivateDaemon) -> int:
    """A carpool with a door; its port."""
    port = free_port()
    assert house.run("up", "--detach", "--http", f"127.0.0.1:{port}").returncode == 0
    assert accepts(port)
    return port


def door_pid(house: PrivateDaemon, not_this: int = 0) -> int:
    """The pid of the door that listens, or will in a moment; waits for another one than this."""

    def found() -> list[int]:
        return [pid for pid, command in house.left() if "carpool.http" in command and pid != not_this]

    until(lambda: read_door_url(str(house.directory)) and found(), "the door listens")
    return found()[0]


@behaviour("handover:address")
def test_the_address_takes_connections_while_a_killed_door_is_replaced(house: PrivateDaemon) -> None:
    port = doored(house)
    before = door_pid(house)
    os.kill(before, signal.SIGSTOP)  # it accepts nothing, and the kernel does
    assert accepts(port)
    os.kill(before, signal.SIGKILL)
    until(lambda: accepts(port) and before not in dict(house.left()), "the door is gone")
    assert accepts(port)
    assert door_pid(house, before)
    assert accepts(port)


@behaviour("handover:ends")
def test_nothing_listens_after_down(house: PrivateDaemon) -> None:
    port = doored(house)
    assert house.run("down").returncode == 0
    assert not accepts(port)


@behaviour("handover:ends")
def test_nothing_listens_after_the_death_of_the_launcher(house: PrivateDaemon) -> None:
    port = doored(house)
    os.kill(house.launcher, signal.SIGKILL)
    until(lambda: not house.left(), "all processes have ended")
    assert not accepts(port)


@behaviour("handover:ends")
def test_nothing_listens_where_the_configuration_wants_no_door_any_more(house: PrivateDaemon) -> None:
    port, file = free_port(), house.base / "carpool.json"
    file.write_text(f'{{"http": {{"port": {port}}}}}')
    assert house.run("up", "--detach", "--config", str(file)).returncode == 0
    until(lambda: accepts(port), "the door listens")
    file.write_text("{}")
    until(lambda: not accepts(port), "the door is closed")
    file.write_text(f'{{"http": {{"port": {port}}}}}')
    until(lambda: accepts(port), "the door listens again")


@behaviour("handover:ends", "handover:address")
def test_another_address_takes_the_place_of_the_first_one(house: PrivateDaemon) -> None:
    port, other, file = free_port(), free_port(), house.base / "carpool.json"
    file.write_text(f'{{"http": {{"port": {port}}}}}')
    assert house.run("up", "--detach", "--config", str(file)).returncode == 0
    until(lambda: accepts(port), "the door listens")
    file.write_text(f'{{"http": {{"port": {other}}}}}')
    until(lambda: accepts(other), "the door listens at the other address")
    until(lambda: not accepts(port), "nothing listens at the first address any more")


@behaviour("handover:ends")
def test_a_door_that_cannot_serve_as_configured_leaves_nothing_that_listens(house: PrivateDaemon) -> None:
    port, file = free_port(), house.base / "carpool.json"
    file.write_text(f'{{"http": {{"port": {port}}}}}')
    assert house.run("up", "--detach", "--config", str(file)).returncode == 0
    until(lambda: accepts(port), "the door listens")
    pid = door_pid(house)
    file.write_text(f'{{"http": {{"port": {port}, "host": "0.0.0.0", "tokens": false}}}}')
    os.kill(pid, signal.SIGKILL)
    until(lambda: not accepts(port), "nothing listens")


@behaviour("handover:requests")
def test_requests_that_wait_for_a_door_that_cannot_start_are_refused(house: PrivateDaemon) -> None:
    broken = house.base / "broken"
    (broken / "carpool_broker").mkdir(
        parents=True
    )  # what holds nothing of carpool is not on the daemon's path
    (broken / "sitecustomize.py").write_text("import sys\nsys.modules['carpool.http.process'] = None\n")
    house.environ["PYTHONPATH"] += os.pathsep + str(broken)
    ours, client = socket.socketpair()
    kept = pack([LeftConnection(ours.detach(), b"waits")])
    offer = HandoverOffer(str(house.directory), handover(kept))
    giving = threading.Thread(target=offer.serve, args=(WAIT_S,))
    giving.start()
    with client, house.start("up", "--http", f"127.0.0.1:{free_port()}") as launcher:
        try:
            client.settimeout(LIMIT_S)
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 503 ")
        finally:
            launcher.send_signal(signal.SIGTERM)
            launcher.communicate(timeout=LIMIT_S)
    giving.join()


@behaviour("handover:address")
def test_the_address_takes_connections_through_a_restart_of_everything(house: PrivateDaemon) -> None:
    port = doored(house)
    refused: list[int] = []
    over = threading.Event()

    def knock() -> None:
        count = 0
        while not over.wait(0.01):
            count += 1
            if not accepts(port):
                refused.append(count)

    knocking = threading.Thread(target=knock)
    knocking.start()
    before = house.launcher
    try:
        for _ in range(2):
            assert house.run("restart", "--all").returncode == 0
    finally:
        over.set()
        knocking.join()
    assert not refused
    assert house.launcher != before
    assert not list(house.directory.glob("http.sock"))


@behaviour("handover:ends")
def test_nothing_listens_after_a_restart_into_a_carpool_that_does_not_start(house: PrivateDaemon) -> None:
    port = doored(house)
    house.behave("broker", "crash")
    done = house.run("restart", "--all")
    assert done.returncode == 1
    assert "broker does not start" in done.stderr
    until(lambda: not house.launcher, "the launcher has given up")
    until(lambda: not accepts(port), "nothing listens")


@behaviour("handover:ends")
def test_down_takes_the_address_from_a_launcher_that_waits_for_the_next_one(house: PrivateDaemon) -> None:
    port = doored(house)
    os.kill(house.launcher, signal.SIGUSR1)  # as a verb that is killed right after this
    until(lambda: not house.launcher, "the launcher has given up its lock")
    assert accepts(port), "it waits for the next one"
    assert house.run("down").returncode == 0
    assert not accepts(port)
    assert not list(house.directory.glob("*.sock"))


def request(sock: socket.socket) -> None:
    sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def waiting_clients(house: PrivateDaemon) -> list[socket.socket]:
    """Clients whose requests wait while a launcher that has ended offers its HTTP door's sockets: one on a
    connection that the door has left, one on a connection that no door has taken.
    """
    port = doored(house)
    clients = [socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)]
    request(clients[0])
    assert clients[0].recv(65536).startswith(b"HTTP/1.1 "), "the door has taken it"
    os.kill(house.launcher, signal.SIGUSR1)  # as a verb that is killed right after this
    until(lambda: not house.launcher, "the launcher has given up its lock")
    clients.append(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
    for each in clients:
        request(each)
    return clients


@behaviour("handover:requests")
def test_requests_that_wait_for_the_next_launcher_are_refused_by_down(house: PrivateDaemon) -> None:
    clients = waiting_clients(house)
    assert house.run("down").returncode == 0
    for client in clients:
        with client:
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 503 ")


@behaviour("handover:requests")
def test_a_request_that_comes_while_carpool_ends_is_refused(house: PrivateDaemon) -> None:
    port = doored(house)
    door = door_pid(house)
    os.kill(door, signal.SIGSTOP)  # it accepts nothing more, and the kernel does
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
        request(client)
        os.kill(house.launcher, signal.SIGTERM)
        until(lambda: "stopping: " in (house.logs / "launcher.log").read_text(), "carpool ends")
        os.kill(door, signal.SIGKILL)
        assert client.makefile("rb").read().startswith(b"HTTP/1.1 503 ")
    until(lambda: not house.launcher, "the launcher has ended")
    assert not accepts(port)


@behaviour("handover:requests")
def test_requests_that_wait_for_a_launcher_that_never_starts_are_refused(house: PrivateDaemon) -> None:
    clients = waiting_clients(house)
    for client in clients:
        with client:
            client.settimeout(OFFER_S + LIMIT_S)
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 503 ")


@behaviour("handover:address")
def test_a_carpool_that_an_agent_starts_goes_on_at_the_address(house: PrivateDaemon) -> None:
    """The one that the verb would have started comes too late, or never."""
    port, file = free_port(), house.base / "carpool.json"
    file.write_text(f'{{"http": {{"port": {port}}}}}')
    house.environ["CARPOOL_CONFIG"] = str(file)
    assert house.run("up", "--detach").returncode == 0
    until(lambda: accepts(port), "the door listens")
    before = door_pid(house)
    os.kill(house.launcher, signal.SIGUSR1)
    until(lambda: not house.launcher, "the launcher has given up its lock")
    assert house.run("up", "--quiet", "--detach").returncode == 0
    assert accepts(port)
    assert door_pid(house, before)
    assert not list(house.directory.glob("http.sock"))
