"""The shim as a process, with the test itself as agent and as broker."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import source_from_cache
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

import carpool
import carpool_protocol
from carpool import launcher_lock
from carpool.shim import refusal
from carpool.shim.shim import DEATHS, HANDED_VARIABLE
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION, name_of
from carpool_protocol.carrier.attach_line import (
    Attach,
    ResumeSession,
    RunCommand,
    Settled,
    WorkspaceChanged,
    attached_line,
    ended_line,
    moved_line,
    parse_attach,
    parse_environment,
    refused_line,
    settled_line,
    wanted_line,
)
from carpool_protocol.faults.kinds import KINDS
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.jsonrpc import result_line
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon, until

LIMIT_S = 20


class ShimRig:
    """A broker's socket with the shims that come to it."""

    def __init__(self, house: PrivateDaemon) -> None:
        self.house = house
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(house.directory / "agents.sock"))
        self.listener.listen()
        self.listener.settimeout(LIMIT_S)
        self._open: list[Any] = [self.listener]
        self._shims: list[subprocess.Popen[bytes]] = []

    def attach(self, *arguments: str) -> "tuple[subprocess.Popen[bytes], socket.socket, IO[bytes]]":
        """A shim, the broker's end of its socket, and that end as a file of lines."""
        shim = self.house.start(*(arguments or ("connect",)))
        sock, _ = self.listener.accept()
        sock.settimeout(LIMIT_S)
        lines = sock.makefile("rb")
        self._shims.append(shim)
        self._open += [sock, lines]
        return shim, sock, lines

    def close(self) -> None:
        for each in self._open:
            each.close()
        (self.house.directory / "agents.sock").unlink(missing_ok=True)
        for shim in self._shims:
            if shim.poll() is None:
                shim.kill()
            for pipe in (shim.stdin, shim.stdout, shim.stderr):
                if pipe:
                    pipe.close()
            shim.wait(LIMIT_S)


@pytest.fixture
def desk(house: PrivateDaemon) -> Iterator[ShimRig]:
    desk = ShimRig(house)
    yield desk
    desk.close()


def say(shim: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert shim.stdin
    shim.stdin.write(data)
    shim.stdin.flush()


def hang_up(shim: "subprocess.Popen[bytes]") -> None:
    assert shim.stdin
    shim.stdin.close()


def heard(shim: "subprocess.Popen[bytes]") -> bytes:
    assert shim.stdout
    return shim.stdout.readline()


def end(shim: "subprocess.Popen[bytes]") -> tuple[int, bytes, bytes]:
    """Its exit code and what it still says. Leaves its stdin open: the agent has not hung up."""
    assert shim.stdout
    assert shim.stderr
    out, err = shim.stdout.read(), shim.stderr.read()
    return shim.wait(LIMIT_S), out, err


def test_the_attach_line_comes_first_and_says_who_and_where(desk: ShimRig) -> None:
    shim, _, lines = desk.attach("connect", "--profile", 'a"b')
    attach = parse_attach(lines.readline())
    assert isinstance(attach, Attach)
    assert attach == Attach(
        version=ATTACH_VERSION,
        carrier="shim",
        pid=shim.pid,
        cwd=os.getcwd(),
        profile='a"b',
        keeps=True,
        tells=True,
        mark=attach.mark,
    )


@behaviour("workspaces:attach")
@pytest.mark.parametrize(("named", "said"), [("shop", "shop"), (".", os.getcwd()), ("/usr/../etc", "/etc")])
def test_a_workspace_is_named_as_it_is_and_a_directory_in_full(desk: ShimRig, named: str, said: str) -> None:
    _, _, lines = desk.attach("connect", "--workspace", named)
    attach = parse_attach(lines.readline())
    assert isinstance(attach, Attach)
    assert (attach.version, attach.workspace) == (NAMING_VERSION, said)


@behaviour("names:length")
def test_the_agents_bound_on_names_goes_with_the_attach_line(desk: ShimRig) -> None:
    for arguments in (("connect", "--tool-name-length", "50"), ("run", "--tool-name-length=50", "srv")):
        _, _, lines = desk.attach(*arguments)
        attach = parse_attach(lines.readline())
        assert isinstance(attach, Attach)
        assert attach.tool_name_length == 50


def test_lines_pass_both_ways_untouched_and_our_own_line_is_swallowed(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", []) + b'{"id":1.0,\xff "x":\t2}\n')
    assert heard(shim) == b'{"id":1.0,\xff "x":\t2}\n'
    say(shim, b'{"id":\r"1"}\r\n')
    assert lines.readline() == b'{"id":\r"1"}\r\n'


def test_the_agents_first_lines_do_not_wait_for_the_brokers_yes(desk: ShimRig) -> None:
    shim, _, lines = desk.attach()
    lines.readline()
    say(shim, b"first\n")
    assert lines.readline() == b"first\n"


def test_a_first_line_that_is_not_ours_belongs_to_the_agent(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(b'{"jsonrpc":"2.0","id":1,"result":{}}\n')
    assert heard(shim) == b'{"jsonrpc":"2.0","id":1,"result":{}}\n'


def test_an_agents_end_of_file_ends_the_session_after_what_is_still_to_come(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    say(shim, b"last\n")
    hang_up(shim)
    assert lines.readline() == b"last\n"
    sock.sendall(attached_line("s1", []))
    assert lines.readline() == b""
    sock.sendall(b"answer\n")
    assert heard(shim) == b"answer\n"
    sock.sendall(ended_line(""))
    sock.shutdown(socket.SHUT_RDWR)
    assert end(shim) == (0, b"", b"")


def test_a_last_line_without_a_line_end_gets_one_and_the_variables_follow_it(desk: ShimRig) -> None:
    desk.house.environ["CP_A"] = "1"
    shim, sock, lines = desk.attach()
    attach = parse_attach(lines.readline())
    assert isinstance(attach, Attach)
    say(shim, call(1) + call(2)[:-1])
    hang_up(shim)
    assert [lines.readline(), lines.readline()] == [call(1), call(2)]
    sock.sendall(attached_line("s1", ["CP_A"]))
    assert parse_environment(lines.readline(), attach.mark) == {"CP_A": "1"}
    assert lines.readline() == b""
    sock.sendall(ended_line(""))
    sock.shutdown(socket.SHUT_RDWR)
    assert end(shim) == (0, b"", b"")


@behaviour("piped:answered")
def test_an_agent_that_has_closed_its_input_waits_for_the_next_broker(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", [], "0.secret", "e1"))
    say(shim, call(1))
    hang_up(shim)
    assert lines.read() == call(1)
    sock.shutdown(socket.SHUT_RDWR)
    attach, sock, lines = comes_back(desk)
    assert attach.resume is not None
    assert attach.resume.open == 1
    sock.sendall(attached_line("s1", [], "1.secret", "e1"))
    assert lines.read() == call(1)
    sock.sendall(result_line(RawJson(b"1"), RawJson(b"{}")) + ended_line(""))
    sock.shutdown(socket.SHUT_RDWR)
    assert end(shim) == (0, result_line(RawJson(b"1"), RawJson(b"{}")), b"")


def test_an_agent_whose_answers_are_dropped_after_its_input_is_told_and_fails(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", [], "0.secret", "e1"))
    say(shim, call(1))
    hang_up(shim)
    assert lines.read() == call(1)
    sock.sendall(ended_line("carpool was stopped"))
    sock.shutdown(socket.SHUT_RDWR)
    code, out, err = end(shim)
    assert (code, out) == (1, b"")
    assert b"carpool was stopped" in err


def test_a_broker_that_dies_within_a_line_leaves_no_half_line_with_the_agent(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", []) + b"whole\n" + b"h" * 300_000)
    sock.shutdown(socket.SHUT_RDWR)
    code, out, err = end(shim)
    assert (code, out) == (69, b"whole\n")
    assert b"broker has gone away" in err


def test_a_long_line_that_was_whole_reaches_an_agent_that_reads_late(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    long = b"x" * 5_000_000 + b"\n"
    sock.sendall(attached_line("s1", []) + long)
    sock.shutdown(socket.SHUT_RDWR)
    code, out, _ = end(shim)
    assert code == 69
    assert out == long


def test_an_agent_that_does_not_read_can_still_be_heard(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    flood = attached_line("s1", []) + b"".join(b"%d %s\n" % (n, b"x" * 1000) for n in range(3000))
    sock.settimeout(0.5)
    with pytest.raises(TimeoutError):  # until every buffer on the way is full
        sock.sendall(flood)
    sock.settimeout(LIMIT_S)
    say(shim, b"y" * 100_000 + b"\n")
    assert lines.readline() == b"y" * 100_000 + b"\n"
    # And then nothing is lost or out of order.
    for number in range(100):
        assert heard(shim).startswith(b"%d " % number)


def test_it_does_not_spin_while_the_agent_reads_nothing(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.settimeout(0.3)
    with pytest.raises(TimeoutError):
        sock.sendall(attached_line("s1", []) + b"x" * 1000 + b"\n" + b"z\n" * 3_000_000)
    assert sleeps(shim.pid)
    # The agent's hang-up while the way up is stuck is not a reason to spin either.
    hang_up(shim)
    until(lambda: lines.read(1) == b"", "the half close arrives")
    assert sleeps(shim.pid)


def sleeps(pid: int) -> bool:
    """It uses no processor time over a third of a second, once it has come to rest."""
    clock = Path(f"/proc/{pid}/stat")

    def used() -> list[str]:
        return clock.read_text().rpartition(")")[2].split()[11:13]

    for _ in range(20):
        before = used()
        time.sleep(0.3)
        if used() == before:
            return True
    return False


def test_asked_variables_are_sent_between_two_lines_of_the_agent(desk: ShimRig) -> None:
    desk.house.environ |= {"CP_A": "ä\n1", "CP_OTHER": "secret"}
    shim, sock, lines = desk.attach()
    attach = parse_attach(lines.readline())
    assert isinstance(attach, Attach)
    say(shim, b"begun")
    assert sock.recv(5, socket.MSG_WAITALL) == b"begun"
    sock.sendall(attached_line("s1", ["CP_A", "CP_MISSING"]) + b"go on\n")
    assert heard(shim) == b"go on\n"
    say(shim, b" and ended\nnext\n")
    assert lines.readline() == b" and ended\n"
    assert parse_environment(lines.readline(), attach.mark) == {"CP_A": "ä\n1"}
    assert lines.readline() == b"next\n"


def test_asked_variables_are_sent_at_once_when_the_agent_is_between_lines(desk: ShimRig) -> None:
    desk.house.environ |= {"CP_A": "1"}
    _, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", ["CP_A"]))
    assert json.loads(lines.readline())["params"] == {"CP_A": "1"}


@behaviour("private:environment")
def test_each_shim_has_a_mark_that_its_agent_does_not_know(desk: ShimRig) -> None:
    desk.house.environ |= {"CP_A": "1"}
    marks = set()
    for _ in range(2):
        _, sock, lines = desk.attach()
        attach = parse_attach(lines.readline())
        assert isinstance(attach, Attach)
        marks.add(attach.mark)
        sock.sendall(attached_line("s1", ["CP_A"]))
        told = lines.readline()
        assert parse_environment(told, attach.mark) == {"CP_A": "1"}
        assert parse_environment(told) is None
    assert len(marks) == 2
    assert all(len(mark) == 32 for mark in marks)


@behaviour("workspaces:moved-variables")
def test_variables_that_are_wanted_later_are_said_as_well(desk: ShimRig) -> None:
    desk.house.environ |= {"CP_A": "1", "CP_B": "2"}
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", []) + b"for the agent\n" + wanted_line(["CP_A"]))
    assert heard(shim) == b"for the agent\n"
    assert json.loads(lines.readline())["params"] == {"CP_A": "1"}
    say(shim, b"half")
    assert sock.recv(4, socket.MSG_WAITALL) == b"half"
    sock.sendall(wanted_line(["CP_B"]) + wanted_line(["CP_NONE"]) + b"more\n")
    assert heard(shim) == b"more\n"
    say(shim, b" a line\n")
    assert lines.readline() == b" a line\n"
    assert [json.loads(lines.readline())["params"] for _ in range(2)] == [{"CP_B": "2"}, {}]


@behaviour("workspaces:moved-survives")
def test_where_the_session_has_moved_is_said_to_the_next_broker(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    moves = moved_line(WorkspaceChanged("/first", by_roots=True)) + moved_line(WorkspaceChanged("shop"))
    sock.sendall(attached_line("s1", [], "secret", "E") + moves + b"seen\n")
    assert heard(shim) == b"seen\n"
    sock.shutdown(socket.SHUT_RDWR)
    attach, sock, lines = comes_back(desk)
    assert attach.resume is not None
    assert attach.resume.moved == WorkspaceChanged("shop")


@behaviour("agents:refusal-told")
def test_a_refusal_is_said_on_stderr_and_as_the_answer_to_every_request(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    first = (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n{"jsonrpc":"2.0","method":"n"}\n{"jsonrpc":"2.0",'
    )
    say(shim, first)
    assert lines.readline() == first.split(b"\n")[0] + b"\n", "it has passed already"
    sock.sendall(refused_line("too old: run `carpool restart --all`"))
    sock.shutdown(socket.SHUT_RDWR)
    answer = json.loads(heard(shim))
    assert answer["error"]["message"] == "carpool: too old: run `carpool restart --all`"
    assert (answer["id"], answer["error"]["code"]) == (1, KINDS["attach_refused"].code)
    say(shim, b'"id":"2","method":"ping"}\n')
    assert json.loads(heard(shim)) == {**answer, "id": "2"}, "a line that was half passed is whole again"
    hang_up(shim)
    code, out, err = end(shim)
    assert (code, out) == (2, b""), "69 would say that no broker runs"
    assert b"carpool restart --all" in err


REFUSED = [
    (b'{"jsonrpc":"2.0","id":1.0,"method":"x"}', [b"1.0"]),
    (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"x"}', [b"9" * 5000]),
    (b'{"jsonrpc":"2.0","id":"\\ud800","method":"x"}', [b'"\\ud800"']),
    (
        b'[{"jsonrpc":"2.0","id":1,"method":"x"},{"method":"n"},{"jsonrpc":"2.0","id":2,"method":"y"}]',
        [b"1", b"2"],
    ),
    (b'{"jsonrpc":"2.0","method":"notifications/initialized"}', []),
    (b'{"jsonrpc":"2.0","id":7,"result":{}}', []),
    (b'{"jsonrpc":"2.0","id":null,"method":"x"}', []),
    (b"Content-Length: 12\r", []),
    (b"\xff", []),
    (b"[" * 100_000, []),
    (b"", []),
    (b'{"jsonrpc":"2.0","id":3,"method":"x"}\r', [b"3"]),
]
"""A line, and the ids that are answered."""


def _say_all(sock: socket.socket, said: bytes, piece_bytes: int = 1 << 20) -> None:
    for at in range(0, len(said), piece_bytes):
        sock.sendall(said[at : at + piece_bytes])
    sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("piece_bytes", [7, 1 << 20])
def test_who_is_refused_has_one_answer_to_each_request(piece_bytes: int, blocking: bool) -> None:
    said = b"\n".join(line for line, _ in REFUSED) + b'\n{"jsonrpc":"2.0","id":4,"method":"half"}'
    (theirs, ours), (back, out) = socket.socketpair(), os.pipe()
    os.set_blocking(ours.fileno(), blocking)
    with theirs, ours, open(back, "rb") as heard_:
        talker = threading.Thread(target=_say_all, args=(theirs, said, piece_bytes))
        talker.start()
        reader = threading.Thread(target=lambda: answers.extend(heard_.readlines()))
        answers: list[bytes] = []
        reader.start()
        refusal.refuse("because", refusal.NOT_RUNNING, b"", ours.fileno(), out)
        os.close(out)
        talker.join()
        reader.join()
    error = refusal._error("because", refusal.NOT_RUNNING)
    wanted = [
        b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (name, error) for _, names in REFUSED for name in names
    ]
    wanted.append(b'{"jsonrpc":"2.0","id":4,"error":%b}\n' % error)  # the line without a line end
    assert answers == wanted


def test_a_line_that_is_too_long_has_no_answer_and_the_next_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "LINE_BYTES", 100)
    request = b'{"jsonrpc":"2.0","id":%d,"method":"x","params":{"a":"%b"}}\n'
    said = (
        request % (1, b"x" * 100_000)
        + request % (2, b"")
        + request % (3, b"x" * 200_000)
        + request % (4, b"")
    )
    theirs, ours = socket.socketpair()
    back, out = os.pipe()
    with theirs, ours, open(back, "rb") as heard_:
        talker = threading.Thread(target=_say_all, args=(theirs, said))
        talker.start()
        refusal.refuse("because", refusal.NOT_RUNNING, b"", ours.fileno(), out)
        os.close(out)
        talker.join()
        assert [json.loads(line)["id"] for line in heard_] == [2, 4]


def test_the_faults_of_a_refusal_are_those_of_the_table() -> None:
    for slug, number in (refusal.ATTACH_REFUSED, refusal.NOT_RUNNING):
        assert (KINDS[slug].code, KINDS[slug].delivered) == (number, "no")


def test_a_person_at_a_terminal_is_told_and_not_waited_for(house: PrivateDaemon) -> None:
    code, said = house.answered("", "connect", "--workspace", "/no/such/place")
    assert code == 2
    assert said.count("names no directory that is there") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_without_a_traceback(desk: ShimRig, number: int) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", []) + b"here\n")
    heard(shim)
    shim.send_signal(number)
    assert end(shim) == (0, b"", b"")
    assert lines.readline() == b""


def test_an_agent_that_reads_no_more_ends_it(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", []) + b"here\n")
    heard(shim)
    assert shim.stdout
    shim.stdout.close()
    assert shim.wait(LIMIT_S) == 0


def test_the_agents_pipe_is_given_back_as_it_was(desk: ShimRig) -> None:
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "carpool", "connect"]
    shim = subprocess.Popen(command, env=desk.house.environ, stdin=subprocess.PIPE, stdout=writing)
    sock, _ = desk.listener.accept()
    with sock:
        until(lambda: fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK, "it pumps")
        hang_up(shim)
    assert shim.wait(LIMIT_S) == 0
    assert not fcntl.fcntl(writing, fcntl.F_GETFL) & os.O_NONBLOCK
    os.close(reading)
    os.close(writing)


def test_run_brings_its_command_directory_and_environment(desk: ShimRig) -> None:
    desk.house.environ |= {"CP_A": '"quoted" \x1b ü', "BAD_UTF8": "\udcff"}
    _, _, lines = desk.attach("run", "--name", "mine", "--", "srv", "--profile", "x y")
    attach = parse_attach(lines.readline())
    assert isinstance(attach, Attach)
    assert isinstance(attach.run, RunCommand)
    assert attach.carrier == "run"
    assert attach.run.argv == ["srv", "--profile", "x y"]
    assert (attach.run.name, attach.run.cwd) == ("mine", os.getcwd())
    assert attach.run.env["CP_A"] == '"quoted" \x1b ü'
    assert attach.run.env["PATH"] == desk.house.environ["PATH"]
    assert "BAD_UTF8" not in attach.run.env


@pytest.mark.parametrize(
    "arguments",
    [
        ("connect", "x"),
        ("connect", "--nope"),
        ("connect", "--profile"),
        ("connect", "--tool-name-length", "short"),
        ("connect", "--tool-name-length", "-5"),
        ("run",),
        ("run", "--"),
        ("run", "--workspace", "x", "y"),
    ],
)
def test_wrong_usage_is_said_with_exit_code_2(house: PrivateDaemon, arguments: tuple[str, ...]) -> None:
    done = house.run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "usage: carpool" in done.stderr


def test_a_workspace_that_is_no_directory_is_said_before_anything_starts(house: PrivateDaemon) -> None:
    done = house.run("connect", "--workspace", "/no/such/place")
    assert done.returncode == 2
    assert "--workspace names no directory that is there" in done.stderr


def test_a_runtime_directory_open_to_others_is_refused(house: PrivateDaemon) -> None:
    house.directory.chmod(0o755)
    done = house.run("connect")
    house.directory.chmod(0o700)
    assert done.returncode == 2
    assert "chmod 700" in done.stderr


def test_the_shim_stays_small(desk: ShimRig) -> None:
    code = "import sys; sys.argv = ['carpool', 'connect']; import carpool.shim.shim; print(*sys.modules)"
    environ = desk.house.environ
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environ, capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    heavy = {
        "json",
        "socket",
        "signal",
        "enum",
        "re",
        "typing",
        "subprocess",
        "msgspec",
        "anyio",
        "carpool.api",
        "carpool.shim.refusal",
        "click",
        "trio",
        "zmq",
    }
    assert not loaded & heavy


def call(number: int, blanks: int = 0) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,%b"method":"tools/call"}\n' % (number, b" " * blanks)


def _unread_bytes(sock: socket.socket) -> int:
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


def comes_back(desk: ShimRig) -> "tuple[Attach, socket.socket, IO[bytes]]":
    """The shim's next connection, after the last one has died."""
    sock, _ = desk.listener.accept()
    sock.settimeout(LIMIT_S)
    lines = sock.makefile("rb")
    desk._open += [sock, lines]
    attach = parse_attach(lines.readline())
    assert isinstance(attach, Attach)
    return attach, sock, lines


_COUNTING = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
sys.path[:0] = {paths}
sys.argv = ["carpool", "connect"]
from carpool.entry import main
try:
    main()
except SystemExit:
    pass
ours = [name for name in sys.modules if name.split(".")[0] in ("carpool", "carpool_protocol")]
print(*ours, "|", *opened, file=sys.stderr)
"""


@pytest.mark.parametrize(("deaths", "most"), [(0, 13), (1, 16)])
def test_a_shim_imports_no_more_modules_and_opens_no_more_files_than_before_the_tree_had_folders(
    desk: ShimRig, deaths: int, most: int
) -> None:
    """`most`: modules of ours, and as many files, at revision 9a59d5c; with a death of the broker more."""
    roots = [str(Path(package.__file__ or "").parents[1]) for package in (carpool, carpool_protocol)]
    code = _COUNTING.replace("{paths}", repr(roots))
    environ = desk.house.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    shim = subprocess.Popen(
        [sys.executable, "-S", "-P", "-c", code],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    desk._shims.append(shim)
    _, sock, lines = comes_back(desk)
    for _ in range(deaths):
        sock.shutdown(socket.SHUT_RDWR)
        _, sock, lines = comes_back(desk)
    hang_up(shim)
    sock.sendall(attached_line("s1", []))
    assert lines.read() == b""
    sock.sendall(ended_line(""))
    sock.shutdown(socket.SHUT_RDWR)
    _, _, said = end(shim)
    names, _, files = said.decode().splitlines()[-1].partition(" | ")
    sources = {
        Path(source_from_cache(each) if each.endswith(".pyc") else each)
        for each in files.split()
        if each.startswith(tuple(roots)) and each.endswith((".py", ".pyc"))
    }
    assert len(names.split()) <= most, names
    assert len(sources) <= most, sources


def test_a_dead_broker_is_a_pause_and_what_is_open_is_said_to_the_next(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    first = parse_attach(lines.readline())
    assert isinstance(first, Attach)
    sock.sendall(attached_line("s1", [], "0.secret", "e1"))
    say(shim, call(1) + call(2) + b"ha")
    assert [lines.readline(), lines.readline(), lines.read(2)] == [call(1), call(2), b"ha"]
    sock.sendall(result_line(RawJson(b"1"), RawJson(b"{}")) + b'{"jsonrpc":"2.0","id":2,"resu')
    assert heard(shim) == result_line(RawJson(b"1"), RawJson(b"{}"))
    sock.shutdown(socket.SHUT_RDWR)
    attach, sock, lines = comes_back(desk)
    last = f"{name_of(call(2)[:-1]):x}"
    resume = ResumeSession(session="s1", secret="0.secret", supervisor="e1", open=1, last=last)
    assert attach == msgspec.structs.replace(first, resume=resume)
    sock.sendall(attached_line("s1", [], "1.secret", "e1"))
    say(shim, b"lf\n")
    assert [lines.readline(), lines.readline()] == [call(2), b"half\n"]
    sock.sendall(result_line(RawJson(b"2"), RawJson(b"{}")))
    assert heard(shim) == result_line(RawJson(b"2"), RawJson(b"{}"))
    hang_up(shim)
    assert lines.read() == b""
    sock.shutdown(socket.SHUT_RDWR)
    assert end(shim) == (0, b"", b"")


def test_what_the_dead_broker_cannot_have_had_is_new_to_the_next(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", [], "0.secret", "e1"))
    said = [call(number, 10_000) for number in range(100)]  # more than a socket holds that nobody reads
    writing = threading.Thread(target=say, args=(shim, b"".join(said)), daemon=True)
    writing.start()
    until(lambda: _unread_bytes(sock) > 100_000, "the shim has written")
    sock.shutdown(socket.SHUT_RDWR)
    attach, sock, lines = comes_back(desk)
    sock.sendall(attached_line("s1", [], "1.secret", "e1"))
    assert [lines.readline() for _ in said] == said
    writing.join(LIMIT_S)
    assert attach.resume is not None
    assert 100_000 <= attach.resume.open * len(said[0]) <= 500_000, "about what a socket holds"


def test_a_broker_that_died_without_a_word_has_had_nothing(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", [], "0.secret", "e1"))
    say(shim, call(1))
    lines.readline()
    sock.shutdown(socket.SHUT_RDWR)
    for _ in range(2):
        attach, sock, lines = comes_back(desk)
        assert attach.resume is not None
        assert attach.resume.open == 1, "only this one may have been run"
        assert lines.readline() == call(1)
        say(shim, call(2))
        assert lines.readline() == call(2)
        sock.shutdown(socket.SHUT_RDWR)


def test_settled_lines_are_taken_out_wherever_they_come_and_what_is_settled_is_not_said_again(
    desk: ShimRig,
) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", [], "0.secret", "e1"))
    say(shim, call(1) + b"\n" + call(2) + call(3))
    for _ in range(4):  # nothing is settled before it has come
        lines.readline()
    first, last = name_of(call(1)[:-1]), name_of(call(3)[:-1])
    settled = settled_line(Settled("e2", last, 1, [last], [first], [], []))
    sock.sendall(b"one\n" + settled + b'{"text":' + settled[:-1] + b"}\n" + settled[:9])
    assert heard(shim) == b"one\n"
    assert heard(shim) == b'{"text":' + settled[:-1] + b"}\n"
    sock.shutdown(socket.SHUT_RDWR)
    attach, sock, lines = comes_back(desk)
    assert attach.resume == ResumeSession(
        session="s1", secret="0.secret", supervisor="e2", kept=1, open=1, last=f"{last:x}"
    )
    assert [lines.readline(), lines.readline()] == [call(1), call(3)]


def test_an_end_that_is_meant_is_the_shims_end_and_says_why(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    sock.sendall(attached_line("s1", [], "0.secret", "e1") + b"last\n" + ended_line("carpool was stopped"))
    sock.shutdown(socket.SHUT_RDWR)
    code, out, err = end(shim)
    assert (code, out) == (69, b"last\n")
    assert b"carpool was stopped" in err


def test_while_there_is_no_broker_the_agents_end_is_the_shims(desk: ShimRig) -> None:
    with lock_of(desk.house):
        shim, sock, lines = desk.attach()
        lines.readline()
        sock.sendall(attached_line("s1", [], "0.secret", "e1") + b"here\n")
        heard(shim)
        desk.listener.close()
        sock.shutdown(socket.SHUT_RDWR)
        say(shim, b"x" * 10_000 + b"\n")
        hang_up(shim)
        assert end(shim) == (0, b"", b"")


def test_a_broker_that_dies_of_what_it_is_told_is_told_it_so_often_and_not_for_ever(desk: ShimRig) -> None:
    shim, sock, lines = desk.attach()
    lines.readline()
    for _ in range(DEATHS):
        sock.sendall(attached_line("s1", [], "0.secret", "e1"))
        sock.shutdown(socket.SHUT_RDWR)
        _attach, sock, lines = comes_back(desk)
    sock.shutdown(socket.SHUT_RDWR)
    code, _out, err = end(shim)
    assert code == 69
    assert b"broker has gone away" in err


@contextmanager
def lock_of(house: PrivateDaemon) -> Iterator[None]:
    """A launcher seems to run here."""
    held = launcher_lock.take_lock(str(house.directory), "")
    assert held is not None
    try:
        yield
    finally:
        launcher_lock.release_lock(held)


def test_a_shim_that_cannot_read_the_session_of_the_version_before_ends(house: PrivateDaemon) -> None:
    house.environ[HANDED_VARIABLE] = "9999"
    done = house.run("connect", stdin='{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
    assert (done.returncode, done.stdout) == (2, "")
    assert "the session of the version before cannot be read" in done.stderr
