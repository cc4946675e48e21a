"""Conversations with instances, with real pipes: what of one is left when it is over."""

import gc
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs

from carpool_protocol.ids import InstanceId, PoolKey, RawJson, ServerName, WireId
from carpool_protocol.link.messages import Era, EraWish, Policy, PoolSpec
from carpool_protocol.runtime.poller import TURN_LINES, ReadySet
from carpool_supervisor.core.model import effects, events
from carpool_supervisor.era.odd_lines import BATCH_VERSION, MAX_BATCH
from carpool_supervisor.spawn.request import Pipes
from carpool_supervisor.stdio import child_io, instance_io
from carpool_supervisor.stdio.child_io import DRAIN_TURNS, LONG_LINE_BYTES, MAX_ANSWERS, ChildIo
from carpool_supervisor.stdio.flood_limit import BURST_LINES, FloodLimit
from carpool_supervisor.stdio.instance_io import InstanceIos
from carpool_supervisor.stdio.read_budget import HELD_HIGH_BYTES
from carpool_supervisor.stdio.stderr_log import LINE_BYTES, TAIL_LINE_CHARS
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

    def exited(self, instance: InstanceId = ME) -> list[tuple[tuple[WireId, ...], str]]:
        """The process has ended. The list gets what is reported when its output is read."""
        reports: list[tuple[tuple[WireId, ...], str]] = []
        self.instance_ios.process_exited(
            instance, lambda unwritten, words: reports.append((unwritten, words))
        )
        return reports

    def close(self) -> None:
        self.instance_ios.close()
        self.ready.close()
        for fd in (self.stdin, self.stdout, self.stderr):
            os.close(fd)


@behaviour("faults:own-shortage")
def test_the_stdin_of_an_instance_that_could_not_be_started_is_not_closed(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.instance_ios.close_stdin(ME)
    assert not rig.fed
    rig.close()


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
        assert rig.exited()
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
    [(_, words)] = rig.exited()
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
    assert rig.exited()[0][0] == (1, 2, 3)
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


@behaviour("flood:stdout")
@pytest.mark.parametrize("first", [b"{}", b'{"jsonrpc":"2.0","id":99,"result":{"content":[]}}'])
async def test_each_message_in_an_array_counts_as_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(instance_io, "FloodLimit", lambda: FloodLimit(lambda: 0.0))

    def server(request: dict[str, Any]) -> dict[str, Any] | None:
        answer = with_tools(request)
        if answer is not None and "protocolVersion" in answer.get("result", {}):
            answer["result"]["protocolVersion"] = BATCH_VERSION
        return answer

    rig = InstanceIoRig(tmp_path)
    rig.talk(server, "handshake", "handshake")
    array = b"[%b]\n" % b",".join([first] + [b"{}"] * (MAX_BATCH - 1))
    for _ in range(BURST_LINES // MAX_BATCH + 1):
        os.write(rig.stdout, array)
        rig.ready._round()
    assert "it is read slowly" in (tmp_path / "server-s.log").read_text()
    rig.close()


@behaviour("flood:stdout")
def test_many_lines_that_are_no_calls_take_no_line_back_that_calls_have_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_io, "REMEMBERED_LINES", 4)
    so_far: list[int] = []

    class Limit(FloodLimit):
        def pause_after(self, lines: int, calls: int, *_: float) -> float:
            so_far.append(calls)
            return 0.0

    monkeypatch.setattr(instance_io, "FloodLimit", Limit)
    rig = InstanceIoRig(tmp_path)
    rig.talk(with_tools, "handshake", "handshake")
    handlers = rig.instance_ios.handlers
    handlers[effects.WriteCall](effects.WriteCall(ME, WireId(7), call(7)))
    for _ in range(8):
        handlers[effects.WriteCancel](effects.WriteCancel(ME, WireId(7), "the agent cancelled it"))
    rig.instance_ios.flush()
    os.write(rig.stdout, b"{}\n")
    rig.ready._round()
    assert so_far[-1] == 7
    rig.close()


def answer(wire: int, text: str = "") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": wire, "result": {"content": [], "is": text}}).encode() + b"\n"


def progress(token: str, number: int) -> bytes:
    params = {"progressToken": token, "progress": number}
    return (
        json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode() + b"\n"
    )


def log_message(text: str) -> bytes:
    params = {"level": "error", "data": text}
    return (
        json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params}).encode() + b"\n"
    )


def updated(uri: str, number: int) -> bytes:
    message = {
        "jsonrpc": "2.0",
        "method": "notifications/resources/updated",
        "params": {"uri": uri, "n": number},
    }
    return json.dumps(message).encode() + b"\n"


class FloodRig(InstanceIoRig):
    """An instance of which everything that the flood limit counts is recorded. Its clock stands still."""

    def __init__(self, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(logs)
        self.counted: list[tuple[int, int]] = []
        """The messages and the bytes of each burst that was counted."""
        self.works: list[float] = []
        """The time that each of them took."""
        self.floods: list[int] = []
        """Among how many floods that time was shared."""
        self.now = 0.0
        self.tick_s = 0.0
        """So much passes each time the clock is read."""
        rig = self

        def clock() -> float:
            self.now += self.tick_s
            return self.now

        class Limit(FloodLimit):
            def pause_after(
                self, lines: int, calls: int, size_bytes: int = 0, work_s: float = 0.0, floods: int = 1
            ) -> float:
                rig.counted.append((lines, size_bytes))
                rig.works.append(work_s)
                rig.floods.append(floods)
                super().pause_after(lines, 0, size_bytes, work_s, floods)
                return 0.0

        monkeypatch.setattr(instance_io, "FloodLimit", lambda: Limit(clock))
        self.talk(with_tools, "handshake", "handshake")
        self.counted.clear()
        self.works.clear()

    def call(self, wire: int) -> str:
        """Write a call. Returns its progress token."""
        write = self.instance_ios.handlers[effects.WriteCall]
        write(effects.WriteCall(ME, WireId(wire), call(wire)))
        self.instance_ios.flush()
        [line] = self.heard()
        return str(json.loads(line)["params"]["_meta"]["progressToken"])

    def receive(self, *lines: bytes) -> list[events.OwnEvent]:
        """The server writes these lines. Returns what they mean."""
        self.fed.clear()
        os.write(self.stdout, b"".join(lines))
        self.ready._round()
        return self.fed

    def write_on(self, data: bytes) -> None:
        """The server writes all of this, as the pipe takes it."""
        for at in range(0, len(data), 32768):
            os.write(self.stdout, data[at : at + 32768])
            self.ready._round()

    def use_up(self) -> None:
        """Use up the allowance, with junk."""
        self.receive(b"{}\n")
        for _ in range(BURST_LINES // 128 + 1):
            self.receive(b"{}\n" * 128)


@behaviour("flood:stdout")
def test_the_answer_to_an_open_call_is_not_counted_and_a_second_one_or_one_that_was_made_up_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    for wire in (1, 2):
        rig.call(wire)
    rig.receive(answer(1, "x" * 5000))
    assert not rig.counted
    rig.receive(answer(1, "x" * 5000))
    rig.receive(answer(99, "x" * 5000))
    assert rig.counted == [(1, len(answer(1, "x" * 5000)) - 1), (1, len(answer(99, "x" * 5000)) - 1)]
    rig.counted.clear()
    junk = b"j" * 5000
    rig.receive(answer(99), answer(2, "x" * 5000), junk + b"\n")
    [(messages, size_bytes)] = rig.counted
    assert messages == 3
    assert 5000 < size_bytes < 5300, "what an open call waits for is left out"
    rig.close()


@behaviour("flood:stdout")
def test_the_answer_to_a_cancelled_call_and_a_second_answer_to_an_unreadable_one_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    rig.call(1)
    rig.call(2)
    rig.instance_ios.handlers[effects.WriteCancel](effects.WriteCancel(ME, WireId(1), "gone"))
    rig.receive(answer(1))
    rig.receive(b'{"jsonrpc":"2.0","id":2,"result":3}\n')
    rig.receive(answer(2))
    assert [messages for messages, _ in rig.counted] == [1, 1, 1]
    rig.close()


@behaviour("flood:stdout")
def test_of_a_flood_log_messages_are_left_out_and_progress_but_one_of_each_call_in_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    tokens = [rig.call(1), rig.call(2)]
    flood = [log_message("x"), *(progress(token, number) for number in range(3) for token in tokens)]
    assert [type(event) for event in rig.receive(*flood)].count(events.ServerProgressed) == 6
    rig.use_up()
    rig.counted.clear()
    fed = rig.receive(*flood, answer(1))
    assert [type(event) for event in fed] == [events.ServerProgressed] * 2 + [events.ServerAnswered]
    assert [messages for messages, _ in rig.counted] == [3], "what is left out costs no more than its reading"
    assert rig.receive(*flood) == [events.StdoutReceived(ME)], "it is a sign of life"
    rig.now += 1.0
    assert [type(event) for event in rig.receive(*flood)] == [events.ServerProgressed] * 2
    rig.now += 1000.0
    rig.receive(b"{}\n")
    assert len(rig.receive(*flood)) == len(flood), "the flood is over"
    rig.exited()
    written = (tmp_path / "server-s.log").read_text()
    assert written.count("it is read slowly") == 1
    assert "17 log and progress messages of its floods were left out" in written
    rig.close()


SHORT_CAP_BYTES = 2 * LONG_LINE_BYTES
"""For these tests: of a line that shows no result near its beginning."""


@behaviour("flood:endless-line")
def test_a_line_over_the_cap_is_counted_while_it_goes_on_each_byte_once_and_the_log_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_io, "MAX_LINE_BYTES", SHORT_CAP_BYTES)
    rig = FloodRig(tmp_path, monkeypatch)
    rig.tick_s = 0.001
    rig.write_on(b"[" * SHORT_CAP_BYTES)
    assert not rig.counted, "it may still be a message"
    rig.write_on(b"[" * SHORT_CAP_BYTES)
    assert sum(size_bytes for _, size_bytes in rig.counted) == 2 * SHORT_CAP_BYTES
    assert not sum(messages for messages, _ in rig.counted)
    assert min(rig.works) > 0, "the time of its scanner"
    log = tmp_path / "server-s.log"
    assert (
        log.read_text().count("a line that is too long to be read, and goes on with it: it is read sl") == 1
    )
    rig.write_on(b"[\n")
    rig.ready._round()
    assert sum(size_bytes for _, size_bytes in rig.counted) == 2 * SHORT_CAP_BYTES + 1
    rig.write_on(b"[" * 2 * SHORT_CAP_BYTES)
    assert sum(size_bytes for _, size_bytes in rig.counted) == 4 * SHORT_CAP_BYTES + 1
    assert log.read_text().count("it is read slowly") == 1
    assert rig.floods[-1] == 1
    rig.instance_ios.slow_readers.count_floods(cast("ChildIo", object()), rig.now)
    rig.write_on(b"[")
    assert rig.floods[-1] == 2, "they share the time of one"
    rig.close()


@behaviour("flood:endless-line")
def test_the_time_of_a_long_result_counts_only_if_no_call_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_io, "MAX_LINE_BYTES", SHORT_CAP_BYTES)
    rig = FloodRig(tmp_path, monkeypatch)
    rig.tick_s = 1.0
    rig.call(1)
    for line in (answer(1, "x" * 2 * SHORT_CAP_BYTES), b"{}\n", answer(1, "x" * 2 * SHORT_CAP_BYTES)):
        rig.write_on(line)
        rig.ready._round()
    assert [messages for messages, _ in rig.counted] == [1, 1]
    short_s, long_s = rig.works
    pieces = 2 * SHORT_CAP_BYTES // 32768
    assert short_s < 10 < pieces // 2 < long_s
    rig.close()


@behaviour("subscriptions:loops")
def test_the_answers_to_requests_of_carpools_own_are_no_flood_and_made_up_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    handlers, log = rig.instance_ios.handlers, tmp_path / "server-s.log"
    answered: list[bytes] = []
    for number in range(BURST_LINES // 64 + 1):
        handlers[effects.WriteLevel](effects.WriteLevel(ME, "debug"))
        handlers[effects.WriteProbe](effects.WriteProbe(ME, number))
        uris = tuple(f"x:{each}" for each in range(64))
        handlers[effects.WriteSubscriptions](effects.WriteSubscriptions(ME, uris[:32], uris[32:]))
        rig.instance_ios.flush()
        ids = [json.loads(line)["id"] for line in rig.heard()]
        assert len(ids) == 66
        answered = [json.dumps({"jsonrpc": "2.0", "id": each, "result": {}}).encode() + b"\n" for each in ids]
        rig.receive(*answered)
    assert not log.exists(), "nothing is written to it"
    for _ in range(BURST_LINES // 64 + 1):
        rig.receive(*answered)
    assert "it is read slowly" in log.read_text()
    rig.close()


@behaviour("pressure:updates")
def test_of_the_notifications_of_one_resource_in_one_read_the_last_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    rig.call(1)
    fed = rig.receive(*[updated(uri, number) for number in range(50) for uri in ("x:1", "x:2")], answer(1))
    told = [json.loads(event.params) for event in fed if isinstance(event, events.ResourceUpdated)]
    assert told == [{"uri": "x:1", "n": 49}, {"uri": "x:2", "n": 49}]
    assert isinstance(fed[-1], events.ServerAnswered)
    rig.exited()
    rig.close()


@behaviour("pressure:answers-of-carpool")
def test_what_waits_for_a_server_that_pings_and_reads_nothing_is_bounded_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    ping = b'{"jsonrpc":"2.0","id":"%b","method":"ping"}\n' % (b"p" * 500)
    told: list[str] = []
    for _ in range(20 * MAX_ANSWERS // TURN_LINES):
        try:
            os.write(rig.stdout, ping * 100)
        except BlockingIOError:
            break
        rig.fed.clear()
        rig.ready._round()
        rig.instance_ios.flush()
        told += [event.text for event in rig.fed if isinstance(event, events.ServerLineRejected)]
    else:
        pytest.fail("everything is read")
    assert len(told) == 1
    assert told[0].startswith("does not read the answers to its own requests")
    io = rig.instance_ios._held[ME].io
    assert io.unwritten_bytes < (MAX_ANSWERS + 2 * TURN_LINES) * 600
    while io.unwritten_bytes or io.has_unread:
        assert rig.heard()
        rig.ready._round()
        rig.instance_ios.flush()
    assert io.received_bytes > MAX_ANSWERS * 500, "it is read again"
    rig.close()


@behaviour("pressure:answers-of-carpool")
def test_progress_of_an_agent_for_a_question_is_dropped_while_the_stdin_of_the_server_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    progress_of_ask = effects.WriteAskProgress(ME, RawJson(b"1"), RawJson(b'{"progress":1}'))
    write = rig.instance_ios.handlers[effects.WriteAskProgress]
    io = rig.instance_ios._held[ME].io
    write(progress_of_ask)
    rig.instance_ios.flush()
    assert len(rig.heard()) == 1
    io.write(b"x" * 300_000 + b"\n")  # as a call with long arguments
    io.flush()
    before = io.unwritten_bytes
    for _ in range(2 * MAX_ANSWERS):
        write(progress_of_ask)
    assert 0 < io.unwritten_bytes == before
    assert not io.is_behind, "the answers of the server are read"
    rig.close()


def test_no_answer_is_kept_for_a_server_that_has_closed_its_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = FloodRig(tmp_path, monkeypatch)
    os.close(rig.stdin)
    rig.stdin = os.dup(rig.stdout)  # closed at the end
    ping = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
    rig.receive(ping)
    rig.instance_ios.flush()
    io = rig.instance_ios._held[ME].io
    before = io.unwritten_bytes
    rig.receive(ping * 50)
    assert io.unwritten_bytes == before
    rig.close()


@behaviour("pressure:last-lines")
def test_an_exit_is_reported_when_all_output_is_read_a_few_lines_in_a_round(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(with_tools, "handshake", "handshake")
    rig.fed.clear()
    os.write(rig.stdout, b"{}\n" * 1000 + b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}\n')
    reports, rounds, seen = rig.exited(), 0, 0
    while not reports:
        assert len(rig.fed) - seen <= TURN_LINES
        assert not any(isinstance(event, events.ServerAnswered) for event in rig.fed)
        seen = len(rig.fed)
        rig.ready._round()
        rounds += 1
    assert rounds >= 1000 // TURN_LINES
    assert len(rig.fed) == 1001
    assert isinstance(rig.fed[-1], events.ServerAnswered)
    rig.close()


@behaviour("pressure:last-lines")
def test_all_ended_processes_together_have_one_turn_in_a_round(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(with_tools, "handshake", "handshake")
    other = InstanceId(2)
    pairs = [os.pipe() for _ in range(3)]
    for fd in (pairs[0][1], pairs[1][0], pairs[2][0]):
        os.set_blocking(fd, False)
    rig.instance_ios.open(other, spec("handshake"), "handshake", Pipes(pairs[0][1], pairs[1][0], pairs[2][0]))
    for stdout in (rig.stdout, pairs[1][1]):
        os.write(stdout, b"{}\n" * 1000)
    both_reports = [rig.exited(), rig.exited(other)]
    while not all(both_reports):
        rig.fed.clear()
        rig.ready._round()
        assert len(rig.fed) <= TURN_LINES
    for fd in (pairs[0][0], pairs[1][1], pairs[2][1]):
        os.close(fd)
    rig.close()


@behaviour("pressure:last-lines")
def test_lines_of_an_ended_process_that_answer_nothing_are_left_out_after_a_few_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    rig = InstanceIoRig(tmp_path)
    rig.talk(with_tools, "handshake", "handshake")
    rig.fed.clear()
    os.write(rig.stdout, b"0\n" * 25_000 + b'{"jsonrpc":"2.0","id":7,"result":{"content":[]}}\n')
    reports = rig.exited()
    while not reports:
        rig.ready._round()
    assert len(rig.fed) == DRAIN_TURNS * TURN_LINES + 1
    assert isinstance(rig.fed[-1], events.ServerAnswered)
    left_out = 25_000 - DRAIN_TURNS * TURN_LINES
    assert f"{left_out} of the last lines that it wrote" in (tmp_path / "server-s.log").read_text()
    rig.close()


@behaviour("lines:bounded-scan")
def test_of_a_long_log_message_the_beginning_is_masked_and_written(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    told = structs.replace(spec("handshake"), secrets=["hunter2-and-more"])
    rig.instance_ios.open(ME, told, "handshake", rig.pipes)
    said = b"y" * (LINE_BYTES - 20) + b" hunter2-and-more " + b"\xff" * 5_000_000
    rig.instance_ios.handlers[effects.KeepServerLog](effects.KeepServerLog(ME, "info", RawJson(said)))
    line = json.loads((tmp_path / "server-s.log").read_text())["message"]
    assert line.startswith("y" * (LINE_BYTES - 20))
    assert "hunter2" not in line
    assert len(line) <= LINE_BYTES
    rig.close()


@behaviour("secrets:literal-values")
def test_the_log_of_a_server_and_its_errors_mask_the_same_values(tmp_path: Path) -> None:
    rig = InstanceIoRig(tmp_path)
    env = {"API_KEY": "literal-hunter2", "MODE": "production"}
    rig.instance_ios.open(ME, structs.replace(spec("handshake"), env=env), "handshake", rig.pipes)
    said = "literal-hunter2 in production"
    rig.instance_ios.handlers[effects.KeepServerLog](
        effects.KeepServerLog(ME, "info", RawJson(json.dumps(said).encode()))
    )
    told = (tmp_path / "server-s.log").read_text()
    assert ("literal-hunter2" in told, "*** in production" in told) == (False, True)
    assert rig.instance_ios.masked(ME, said) == "*** in production"
    rig.close()


@pytest.mark.parametrize("method", ["feed", "read_on"])
def test_a_bug_that_the_words_of_one_server_meet_ends_its_instance_and_nothing_else(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = InstanceIoRig(tmp_path)
    try:
        rig.talk(with_tools, "handshake", "handshake")
        rig.fed.clear()

        def fail(*_: object) -> None:
            raise UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "as a bug would")

        io = rig.instance_ios._held[ME]
        monkeypatch.setattr(type(io._adapter), method, fail)
        for _ in range(2):
            if method == "feed":
                os.write(rig.stdout, b"{}\n")
            else:
                monkeypatch.setattr(type(io._adapter), "is_reading", True)
                io._read_on()
            rig.ready._round()
        assert [type(event) for event in rig.fed if type(event) is not events.StdoutReceived] == [
            events.StdoutClosed
        ]
        assert "a bug in carpool" in caplog.text
    finally:
        rig.close()
