"""The HTTP arm of the bench: right answers count as right, wrong ones are shown, nothing is left running."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench import http_load
from bench.http_agents import HttpCrowd, StatelessEcho, connected
from bench.http_arms import HttpRelay
from bench.http_load import SCENARIOS, main, measure
from carpool.bench import processes
from carpool.bench.agents import Load
from carpool.bench.attach import AgentDescriptors, BenchError


@contextmanager
def serving(*answers: bytes) -> Iterator[int]:
    """A port where each request of one connection gets the next of these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            one, _ = listener.accept()
            with one:
                for answer in answers:
                    asked = b""
                    while b"\r\n\r\n" not in asked or not asked.endswith(b"}"):
                        if not (data := one.recv(1 << 16)):
                            return
                        asked += data
                    one.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
    thread.join(5)


def plain(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def streamed(*messages: bytes) -> bytes:
    events = [b"event: message\ndata: " + each + b"\n\n" for each in messages]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in events)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def crowd(port: int) -> HttpCrowd:
    found = [AgentDescriptors.of_socket(connected(port))]
    return HttpCrowd(found, "stateless", port, "/mcp", "echo", streams=False)


@pytest.mark.parametrize(
    "arm", [HttpRelay("handshake"), HttpRelay("stateless")], ids=lambda arm: str(arm.name)
)
def test_agents_over_http_count_every_answer_of_the_relay_as_right(
    arm: HttpRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_load, "Load", partial(Load, calls=40))
    arm.start()
    try:
        (pid,) = arm.roles()["relay"]
        sample = measure(arm, SCENARIOS[0], seconds=60.0, warmup_s=0.05, number=0)
    finally:
        arm.stop()
    assert sample.calls > 0
    assert (sample.errors, sample.unanswered) == ({}, 0)
    assert processes.cpu_s(pid) is None, "the relay has ended"


def test_an_answer_that_comes_as_events_is_the_last_of_them() -> None:
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": []}}).encode()
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}'
    with serving(streamed(note, answer)) as port:
        one = crowd(port)
        try:
            one.greet()
        finally:
            one.close()


def test_an_answer_to_another_call_is_shown_and_not_counted_as_right() -> None:
    listed = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}'
    swapped = b'{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"a9-9"}],"isError":false}}'
    with serving(plain(listed), plain(swapped)) as port:
        one = crowd(port)
        try:
            one.greet()
            load = Load(in_flight=1, seconds=20.0, warmup_s=0.02)  # but the connection ends with that answer
            found = one.run_load(StatelessEcho("echo"), load)
        finally:
            one.close()
    assert sum(found.errors.values()) == 1
    assert "the text of another call" in next(iter(found.errors))


def test_a_refused_greeting_ends_the_bench_with_its_reason() -> None:
    refusal = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}'
    with serving(plain(refusal)) as port:
        one = crowd(port)
        try:
            with pytest.raises(BenchError, match="-32602"):
                one.greet()
        finally:
            one.close()


def test_the_command_writes_its_figures_and_prints_ratios(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "http.json"
    words = ["--rounds", "1", "--seconds", "0.1", "--warmup", "0.02", "--out", str(out)]
    arms = "relay-http-handshake,relay-http-stateless"
    assert main([*words, "--arms", arms, "--scenarios", "1x1"]) == 0
    assert set(json.loads(out.read_text())["summary"]["1x1"]) == set(arms.split(","))
    assert "/ relay-http-handshake" in capsys.readouterr().out
