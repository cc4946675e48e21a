"""Traces with real processes: one for each call, from the agent through carpool to a server on the SDK."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, Json
from tests.kit.live import Daemon, Make, observer
from tests.kit.waits import until

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from tests.kit.collector import CollectedSpan, Collector, collecting

AGENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = AGENT[:-2] + "00"
SERVER = Path(__file__).parent / "traced_server.py"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def traced(daemon: Make, collector: Collector, **trace: object) -> Daemon:
    """A carpool that exports soon, and a server of which the collector hears too."""
    made = daemon(
        {"sdk": {"command": sys.executable, "args": [str(SERVER), collector.url]}, "plain": observer()},
        up=False,
        trace={"on": True, **trace},
    )
    made.environ |= {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret-of-mine"}
    made.up()
    return made


async def spans(collector: Collector, call: str, count: int) -> dict[str, CollectedSpan]:
    """The spans of the trace in which a call of carpool has this text, by service and kind."""

    def found() -> list[CollectedSpan]:
        traces = {each.trace for each in collector.spans if call in each.name}
        return [each for each in collector.spans if each.trace in traces]

    await until(lambda: len(found()) >= count, f"{count} spans of {call}")
    assert len({each.trace for each in found()}) == 1
    return {f"{each.service} {each.name}" + " by" * (each.kind == 3): each for each in found()}


def params(text: str, tool: str = "sdk__echo", trace: str = "") -> Json:
    meta = {"_meta": {"traceparent": trace}} if trace else {}
    return {"name": tool, "arguments": {"text": text}, **meta}


@behaviour("traces:one")
async def test_a_call_is_one_trace_from_the_agent_to_a_server_on_the_sdk(
    daemon: Make, collector: Collector
) -> None:
    made = traced(daemon, collector, endpoint=collector.url)
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            await agent.ask("tools/call", params("hunter2", trace=AGENT))
            found = await spans(collector, "echo", 4)
        request, waiting = found["carpool tools/call echo"], found["carpool waiting"]
        handed, served = found["carpool tools/call echo by"], found["server tools/call echo"]
        assert (request.trace, request.parent) == (AGENT[3:35], AGENT[36:52])
        assert (waiting.parent, handed.parent, served.parent) == (request.id, request.id, handed.id)
        assert request.start_ns <= waiting.start_ns <= waiting.end_ns <= handed.start_ns
        assert handed.end_ns <= request.end_ns
        assert request.attributes["carpool.server"] == "sdk"
        assert request.attributes["gen_ai.tool.name"] == "echo"
        assert handed.attributes["carpool.instance"] > 0
        assert not any("hunter2" in each.text for each in (request, waiting, handed))


@behaviour("traces:one")
async def test_an_agent_and_a_server_on_the_sdk_share_one_trace(daemon: Make, collector: Collector) -> None:
    made = traced(daemon, collector, endpoint=collector.url)
    agent = [sys.executable, str(SERVER.with_name("traced_agent.py"))]
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(agent, env=made.environ, capture_stdout=True, stdin=b"")
        (own,) = [each for each in json.loads(done.stdout) if each["name"].endswith("tools/call sdk__echo")]
        found = await spans(collector, "echo", 4)
    request, handed = found["carpool tools/call echo"], found["carpool tools/call echo by"]
    assert (request.trace, request.parent) == (own["trace"], own["id"])
    assert found["server tools/call echo"].parent == handed.id


@behaviour("traces:one", "traces:errors")
async def test_a_call_without_a_context_begins_a_trace_and_a_failure_has_its_code(
    daemon: Make, collector: Collector
) -> None:
    made = traced(daemon, collector, endpoint=f"{collector.url}/v1/traces")
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            await agent.ask("tools/call", params("fail"))
            found = await spans(collector, "echo", 4)
            await agent.ask("tools/call", params("x", "sdk__nothing"))
            refused = await spans(collector, "nothing", 1)
        request = found["carpool tools/call echo"]
        assert (request.parent, request.error) == ("", "tool_error")
        assert found["server tools/call echo"].parent == found["carpool tools/call echo by"].id
        assert refused["carpool tools/call sdk__nothing"].error == "unknown_tool"
        facts = await made.until(lambda all_: all_["trace"]["exported"] >= 4, "they are counted")
        assert (facts["trace"]["on"], facts["trace"]["dropped"]) == (True, 0)


@behaviour("traces:sampling", "traces:variables")
async def test_the_agent_decides_for_its_own_trace_and_the_variables_of_up_name_the_collector(
    daemon: Make, collector: Collector
) -> None:
    made = daemon({"plain": observer()}, up=False, trace={"on": True, "sample": 0})
    made.environ |= {
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret-of-mine",
        "OTEL_SERVICE_NAME": "mine",
    }
    made.up()
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            await agent.ask("tools/call", params("a", "plain__echo"))
            await agent.ask("tools/call", params("b", "plain__echo", NOT_SAMPLED))
            await agent.ask("tools/call", params("c", "plain__echo", AGENT))
            await spans(collector, "echo", 3)
        assert {(each.service, each.trace) for each in collector.spans} == {("mine", AGENT[3:35])}
        assert len(collector.spans) == 3
        assert set(collector.headers) == {"secret-of-mine"}
        assert "secret-of-mine" not in made.log_text()


@behaviour("traces:no-harm")
async def test_a_collector_that_refuses_loses_spans_and_no_call_and_status_says_so(
    daemon: Make, collector: Collector
) -> None:
    collector.status = 400
    made = traced(daemon, collector, endpoint=collector.url)
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            assert await agent.text("plain__echo", {"text": "a"}) == "a"
            facts = await made.until(lambda all_: all_["trace"]["dropped"], "they are lost")
            why = f"the collector at {collector.url.removeprefix('http://')} does not take them"
            assert facts["trace"]["problem"] == why
            _, page, _ = await made.carpool("status")
            assert f"3 spans of traces are lost: {why}" in " ".join(page.split())
            messages = [json.loads(line)["message"] for line in made.log("broker").splitlines()]
            assert [each for each in messages if why in each] == [f"traces are lost: {why}; calls go on"]
            assert any(re.match("OpenTelemetry: .*code: 400", each) for each in messages)
            collector.status = 200
            assert await agent.text("plain__echo", {"text": "b"}) == "b"
            await made.until(lambda all_: all_["trace"]["exported"], "they are exported again")


@behaviour("traces:no-harm", "traces:variables")
async def test_a_dead_collector_leaves_only_lines_of_carpool_in_the_log_and_no_credentials(
    daemon: Make, collector: Collector
) -> None:
    collector.close()
    dead = collector.url.replace("//", "//me:hunter2@") + "/?key=hunter2"
    made = daemon({"plain": observer()}, up=False, trace={"on": True, "endpoint": dead})
    made.environ |= {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    made.up()
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            assert await agent.text("plain__echo", {"text": "a"}) == "a"
            await made.until(lambda all_: all_["trace"]["dropped"] == 3, "all spans are lost")
    log = made.log("broker")
    messages = [json.loads(line)["message"] for line in log.splitlines()]
    at = collector.url.removeprefix("http://")
    assert f"traces are lost: the collector at {at} does not take them; calls go on" in messages
    assert any(each.startswith("OpenTelemetry: ") for each in messages)
    assert "hunter2" not in log


async def test_traces_are_turned_on_and_off_while_carpool_runs(daemon: Make, collector: Collector) -> None:
    made = daemon({"plain": observer()})
    with trio.fail_after(LIMIT_S):
        async with made.shim() as agent:
            await agent.text("plain__echo", {"text": "a"})
            made.configure({"plain": observer()}, trace={"on": True, "endpoint": collector.url})
            await made.reload()
            await agent.text("plain__echo", {"text": "b"})
            made.configure({"plain": observer()})
            await made.reload()
            await agent.text("plain__echo", {"text": "c"})
            await until(lambda: len(collector.spans) == 3, "one call is exported")
            assert not (await made.status())["trace"]["on"]
