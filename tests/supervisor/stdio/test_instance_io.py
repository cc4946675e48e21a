"""Conversations with instances, with real pipes: what of one is left when it is over."""

import gc
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from carpool_protocol.ids import InstanceId, PoolKey, ServerName, WireId
from carpool_protocol.link.messages import Era, EraWish, Policy, PoolSpec
from carpool_protocol.runtime.poller import ReadySet
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.spawn.request import Pipes
from carpool_supervisor.stdio.child_io import LONG_LINE_BYTES
from carpool_supervisor.stdio.instance_io import InstanceIos
from carpool_supervisor.stdio.read_budget import HELD_HIGH_BYTES
from carpool_supervisor.stdio.stderr_log import TAIL_LINE_CHARS
from tests.behaviours import behaviour
from tests.supervisor.core.test_supervisor import call
from tests.supervisor.era.test_era_detection import both, old_server

ME = InstanceId(1)


def spec(era: EraWish) -> PoolSpec:
    return PoolSpec(
        key=PoolKey("s:1"), server=ServerName("s"), argv=["x"], env={}, cwd="/", policy=Policy(), era=era
    )


def with_tools(request: dict[str, Any]) -> dict[str, Any] | None:
    if request["method"] == "tools/list":
        return {"result": {"tools": []}}
    answer = old_server(request)
    if answer is not None and "result" in answer:
        answer["result"]["capabilities"] = {"tools": {}}
    return answer


class InstanceIoRig:
    """One instance's conversation, and the far ends of its pipes."""

    def __init__(self, logs: Path) -> None:
        self.ready = ReadySet()
        self.fed: list[events.OwnEvent] = []
        self.instance_ios = InstanceIos(self.ready, logs, "1.0", b"life", self.fed.extend)
        pairs = [os.pipe() for _ in range(3)]
        for pair in pairs:
            for fd in pair:
                os.set_blocking(fd, False)
        (self.stdin, near_in), (near_out, self.stdout), (near_err, self.stderr) = pairs
        self.pipes = Pipes(near_in, near_out, near_err)

    def talk(self, server: Any, era: Era, wish: EraWish) -> None:
        """Open the conversation and have this server answer until it has nothing more to say."""
        self.instance_ios.open(ME, spec(wish), era, self.pipes)
        self.instance_ios.greet(ME)
        self.instance_ios.flush()
        while lines := self.heard():
            for line in lines:
                request = json.loads(line)
                answer = server(request)
                if answer is not None and "id" in request:
                    message = {"jsonrpc": "2.0", "id": request["id"], **answer}
                    os.write(self.stdout, json.dumps(message).encode() + b"\n")
            self.ready._round()
            self.instance_ios.flush()

    def heard(self) -> list[bytes]:
        try:
            return os.read(self.stdin, 65536).splitlines()
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.instance_ios.close()
        self.ready.close()
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


def parts() -> Counter[str]:
    """All objects that hold pipes and adapters of instances."""
    ours = ("carpool_supervisor.era", "carpool_supervisor.stdio.instance_io")
    return Counter(
        type(each).__name__ for each in gc.get_objects() if str(type(each).__module__).startswith(ours)
    )


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("server", "first", "wish"),
    [
        (old_server, "handshake", "handshake"),
        (both, "stateless", "stateless"),
        (old_server, "stateless", "auto"),
    ],
)
def test_a_conversation_that_is_over_leaves_nothing_to_the_collector(
    server: Any, first: Era, wish: EraWish, tmp_path: Path
) -> None:
    """In a daemon that comes after hundreds of instances."""
    rig = InstanceIoRig(tmp_path)
    with no_collector():
        before = parts()
        rig.talk(server, first, wish)
        assert any(isinstance(each, events.InstanceGreeted) for each in rig.fed)
        rig.instance_ios.process_exited(ME)
        assert parts().total() > before.total() + 3
        rig.fed.clear()
        rig.instance_ios.handlers[effects.ReleaseInstance](effects.ReleaseInstance(ME))
        assert parts() == before
    rig.close()


def test_quoted_stderr_holds_no_value_of_the_environment_whole_or_cut(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    key = "first-line-of-it\nsecond-line-of-it"
    env = {"TOKEN": "hunter2-and-more", "KEY": key}
    rig.instance_ios.open(ME, structs.replace(spec("handshake"), env=env), "handshake", rig.pipes)
    long = "x" * (TAIL_LINE_CHARS - 7) + "hunter2-and-more"
    os.write(rig.stderr, f"{key}\n{key!r}\n{long}\n".encode())
    _, words = rig.instance_ios.process_exited(ME)
    assert words.split("\n") == ["***", "'***'", long[:-16] + "***"]
    rig.close()


@behaviour("silence:only-while-read")
def test_output_written_during_a_reading_pause_is_a_sign_of_life_once_it_is_read(
    tmp_path: Path,
) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(old_server, "handshake", "handshake")
    intake = rig.instance_ios.read_budget
    for is_written in (False, True):
        rig.fed.clear()
        assert intake.settle(HELD_HIGH_BYTES + 1)
        if is_written:
            os.write(rig.stdout, b"{")
        assert intake.settle(0)
        told = [events.StdoutPaused(ME, True), events.StdoutPaused(ME, False)]
        assert rig.fed == told + [events.StdoutReceived(ME)] * is_written
    rig.close()


@behaviour("silence:probed-then-replaced")
def test_each_part_of_a_long_line_is_a_sign_of_life(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(old_server, "handshake", "handshake")
    rig.fed.clear()
    for _ in range(2 * LONG_LINE_BYTES // 32768):
        os.write(rig.stdout, b"x" * 32768)
        rig.ready._round()
    assert events.StdoutReceived(ME) in rig.fed
    rig.close()


@behaviour("failure:broken-stdin", "calls:honest-delivery")
def test_each_call_that_a_closed_stdin_does_not_take_is_told_as_never_delivered(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(old_server, "handshake", "handshake")
    rig.fed.clear()
    os.close(rig.stdin)
    rig.stdin = os.dup(rig.stdout)  # closed at the end
    write = rig.instance_ios.handlers[effects.WriteCall]
    for wire in (1, 2):
        write(effects.WriteCall(ME, WireId(wire), call(wire)))
    rig.instance_ios.flush()
    assert rig.fed == [events.StdinBroken(ME, (WireId(1), WireId(2)))]
    write(effects.WriteCall(ME, WireId(3), call(3)))
    assert rig.fed[1:] == [events.StdinBroken(ME, (WireId(3),))]
    assert rig.instance_ios.process_exited(ME)[0] == (1, 2, 3)
    rig.close()


@behaviour("lists:lost-answers")
def test_a_list_request_is_told_as_out_until_its_answer_comes_or_it_is_given_up(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(with_tools, "handshake", "handshake")
    told = [each for each in rig.fed if isinstance(each, events.ListRequestChanged)]
    assert told == [events.ListRequestChanged(ME, "tools/list"), events.ListRequestChanged(ME, "")]
    rig.fed.clear()
    rig.instance_ios.handlers[effects.RereadLists](effects.RereadLists(ME))
    rig.instance_ios.handlers[effects.GiveUpListRequest](effects.GiveUpListRequest(ME, 60.0))
    assert rig.fed == [
        events.ListRequestChanged(ME, "tools/list"),
        events.ListAnswerLost(ME, 1, "did not answer tools/list within 60 s"),
        events.ListRequestChanged(ME, ""),
    ]
    rig.close()
