"""The fixture for the conformance suite over stdio: it is of the era it is told to be, and asks in both.

Over HTTP the suite itself proves it (`python -m tests.conformance.run`), but for names that are missing: some
of its scenarios pass with the error that an SDK server answers to an unknown tool.
"""

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.conformance.through import FIXTURE
from tests.kit.line_agent import WAIT_S, Json, LineAgent, spoken

ENVELOPE: Json = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "live", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}, "sampling": {}},
}
_ROUND = "test_input_required_result_"
TOOLS = {
    *(f"test_{kind}" for kind in ("simple_text", "image_content", "audio_content", "embedded_resource")),
    *(
        "test_multiple_content_types",
        "test_error_handling",
        "test_tool_with_logging",
        "test_tool_with_progress",
    ),
    *("test_sampling", "test_elicitation", "test_elicitation_sep1034_defaults"),
    *("test_elicitation_sep1330_enums", "test_reconnection", "json_schema_2020_12_tool"),
    *("test_missing_capability", "test_streaming_elicitation", "test_logging_tool"),
    *("test_trigger_tool_change", "test_trigger_prompt_change"),
    *(f"{_ROUND}{kind}" for kind in ("elicitation", "sampling", "list_roots", "request_state")),
    *(f"{_ROUND}{kind}" for kind in ("multiple_inputs", "multi_round", "tampered_state", "capabilities")),
}
PROMPTS = {
    *("test_simple_prompt", "test_prompt_with_arguments", "test_prompt_with_embedded_resource"),
    *("test_prompt_with_image", f"{_ROUND}prompt"),
}
RESOURCES = {"test://static-text", "test://static-binary", "test://watched-resource"}
ROUNDS = "test_input_required_result_multi_round"
ACCEPTED = {"step1": {"name": "Ann"}, "step2": {"color": "red"}}


@asynccontextmanager
async def fixture(*arguments: str) -> AsyncIterator[LineAgent]:
    """The fixture, spoken to directly; it ends with its stdin."""
    process = await trio.lowlevel.open_process(
        [sys.executable, str(FIXTURE), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with spoken(process.stdin, process.stdout, process.pid) as agent:
            yield agent
        with trio.fail_after(WAIT_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def modern(more: Json | None = None) -> Json:
    return {"_meta": ENVELOPE, **(more or {})}


def accepted(key: str) -> Json:
    return {"action": "accept", "content": ACCEPTED[key]}


async def test_the_legacy_fixture_refuses_a_probe_then_greets_and_asks_during_the_call() -> None:
    async with fixture("--era", "legacy") as agent:
        assert "error" in await agent.ask("server/discover", modern())
        greeted = await agent.greet("2025-11-25", {"elicitation": {}, "sampling": {}})
        assert greeted["protocolVersion"] == "2025-11-25"
        assert greeted["capabilities"]["resources"]["subscribe"] is True
        assert greeted["capabilities"]["tools"]["listChanged"] is True

        def says(ask: Json) -> Json:
            step = re.match(r"Step (\d)", ask["params"]["message"])
            assert step is not None
            return {"result": accepted(f"step{step[1]}")}

        agent.says = says
        assert await agent.text(ROUNDS) == "Ann likes red."
        assert [ask["method"] for ask in agent.asks] == ["elicitation/create"] * 2


async def test_the_modern_fixture_refuses_a_handshake_then_asks_by_its_answers() -> None:
    async with fixture("--era", "modern") as agent:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "live", "version": "1"},
        }
        refused = (await agent.ask("initialize", params))["error"]
        assert refused["code"] == -32022
        assert refused["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        found = await agent.result("server/discover", modern())
        assert found["supportedVersions"] == ["2026-07-28"]

        more: Json = {}
        steps = []
        while True:
            said = await agent.result("tools/call", modern({"name": ROUNDS, "arguments": {}, **more}))
            if said["resultType"] == "complete":
                break
            [step] = said["inputRequests"]
            steps.append(step)
            more = {"inputResponses": {step: accepted(step)}, "requestState": said["requestState"]}
        assert steps == ["step1", "step2"]
        assert said["content"][0]["text"] == "Ann likes red."
        assert agent.asks == []


async def test_the_fixture_has_every_name_that_the_suite_asks_for_and_describes_it() -> None:
    async with fixture() as agent:
        tools = (await agent.result("tools/list", modern()))["tools"]
        prompts = (await agent.result("prompts/list", modern()))["prompts"]
        resources = (await agent.result("resources/list", modern()))["resources"]
        assert {each["name"] for each in tools} >= TOOLS
        assert {each["name"] for each in prompts} >= PROMPTS
        assert {each["uri"] for each in resources} >= RESOURCES
        for each in [*tools, *prompts]:
            assert re.fullmatch(r"[A-Za-z0-9_./-]{1,64}", each["name"])
            assert each["description"]
