"""The Python client against a broker that is played by hand, under asyncio and trio."""

import json
import logging
import threading
from typing import Any

import anyio
import pytest

from carpool import (
    BadCall,
    Lost,
    NotRunning,
    Outcome,
    Progress,
    ServerError,
    TimedOut,
    ToolError,
    Unavailable,
)
from carpool.api.session import MOST_CALLS
from tests.behaviours import behaviour
from tests.kit.scripted_broker import Json, ScriptedBroker, carpool, happened, play

BACKENDS = ("asyncio", "trio")
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def fault(code: str, delivered: str = "no", **more: Any) -> Json:
    meta = {"code": code, "delivered": delivered, "retry_after_s": None, "server": "s", "tool": "t", **more}
    return {
        "content": [{"type": "text", "text": "Said."}],
        "isError": True,
        "_meta": {"carpool/error": {**meta, "call": "c1"}},
    }


@behaviour("client:concurrent")
def test_answers_that_come_in_another_order_reach_their_own_callers(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        calls = [desk.expect("tools/call") for _ in range(20)]
        for call in reversed(calls):
            desk.text(call, call["params"]["arguments"]["at"])
        desk.until_gone()

    async def client(directory: str) -> None:
        async def one(at: int) -> None:
            assert (await agent.call("s__t", {"at": str(at)})).text == str(at)

        async with carpool(directory) as agent, anyio.create_task_group() as tasks:
            for at in range(20):
                tasks.start_soon(one, at)

    play(backend, client, script)


@behaviour("client:concurrent")
def test_no_more_calls_are_said_at_once_than_the_broker_takes_and_a_callback_is_not_held_up(
    backend: str,
) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        calls = [desk.expect("tools/call") for _ in range(MOST_CALLS)]
        desk.say({"id": "a1", "method": "sampling/createMessage", "params": {}})
        own = desk.expect("tools/call")
        assert own["params"]["name"] == "within"
        desk.text(own, "inner")
        assert desk.hear() == {"jsonrpc": "2.0", "id": "a1", "result": {"said": "inner"}}
        desk.text(calls[0], "0")
        desk.text(desk.expect("tools/call"), "last")
        for call in calls[1:]:
            desk.text(call, "0")
        desk.until_gone()

    async def client(directory: str) -> None:
        async def sample(_: Json) -> Json:
            return {"said": (await agent.call("within")).text}

        async def one() -> None:
            said.append((await agent.call("s__t")).text)

        said: list[str] = []
        async with carpool(directory, on_sampling=sample) as agent, anyio.create_task_group() as tasks:
            for _ in range(MOST_CALLS + 1):
                tasks.start_soon(one)
        assert sorted(said) == ["0"] * MOST_CALLS + ["last"]

    play(backend, client, script)


@behaviour("client:cancel")
def test_a_call_whose_scope_is_cancelled_is_cancelled_and_its_late_answer_dropped(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        call = desk.expect("tools/call")
        came.set()
        assert desk.expect("notifications/cancelled")["params"] == {"requestId": call["id"]}
        desk.text(call, "late")
        desk.text(desk.expect("tools/call"), "next")
        desk.until_gone()

    async def client(directory: str) -> None:
        async def give_up() -> None:
            await happened(came)
            scope.cancel()

        async with carpool(directory) as agent, anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            with anyio.CancelScope() as scope:
                await agent.call("s__t")
            assert scope.cancelled_caught
            assert (await agent.call("s__t")).text == "next"

    came = threading.Event()
    play(backend, client, script)


@behaviour("client:timeout")
def test_a_call_that_takes_longer_than_it_may_is_cancelled_and_a_timeout_error(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        call = desk.expect("tools/call")
        assert desk.expect("notifications/cancelled")["params"] == {"requestId": call["id"]}
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            with pytest.raises(TimeoutError, match="may have been executed") as caught:
                await agent.call("s__t", timeout_s=0.5)
            assert isinstance(caught.value, TimedOut)
            assert (caught.value.kind, caught.value.delivered, caught.value.whose) == (
                "timed_out",
                "maybe",
                "caller",
            )

    play(backend, client, script)


@behaviour("client:errors")
def test_each_way_to_fail_is_its_own_exception(backend: str) -> None:
    answers: list[tuple[Json, type[Exception], str, str]] = [
        ({"result": fault("disabled")}, PermissionError, "no", "user"),
        ({"result": fault("a_slug_of_a_later_release")}, Unavailable, "no", "carpool"),
        ({"result": fault("a_slug_of_a_later_release", "maybe")}, Lost, "maybe", "carpool"),
        ({"result": fault("timed_out", "maybe")}, TimeoutError, "maybe", "server"),
        ({"result": fault("given_up", retry_after_s=2.5)}, Unavailable, "no", "server"),
        (
            {
                "error": {
                    "code": -32602,
                    "message": "Said.",
                    "data": fault("not_permitted")["_meta"]["carpool/error"],
                }
            },
            PermissionError,
            "no",
            "user",
        ),
        (
            {
                "error": {
                    "code": -32602,
                    "message": "Said.",
                    "data": fault("bad_params")["_meta"]["carpool/error"],
                }
            },
            BadCall,
            "no",
            "caller",
        ),
        ({"error": {"code": -1, "message": "Said.", "data": [1]}}, ServerError, "yes", "server"),
    ]

    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        for answer, *_ in answers:
            desk.say({"id": desk.expect("tools/call")["id"], **answer})
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            for _, which, delivered, whose in answers:
                with pytest.raises(which) as caught:
                    await agent.call("s__t")
                error: Any = caught.value
                assert (str(error), error.delivered, error.whose) == ("Said.", delivered, whose)
                assert error.retry_after_s == (2.5 if error.kind == "given_up" else None)

    play(backend, client, script)


@behaviour("client:results")
def test_a_tool_that_says_it_failed_is_a_result_and_an_exception_only_on_request(backend: str) -> None:
    raw = {
        "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "such file"}],
        "isError": True,
        "structuredContent": {"errno": 2},
        "_meta": {"theirs": 1},
        "unheardOf": 3,
    }

    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        for _ in range(2):
            desk.answer(desk.expect("tools/call"), raw)
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            result = await agent.call("s__t")
            assert (result.is_error, result.structured, result.meta) == (True, {"errno": 2}, {"theirs": 1})
            assert (result.text, result.raw) == ("no\nsuch file", raw)
            with pytest.raises(ToolError, match="such file") as caught:
                result.or_raise()
            assert caught.value.result is result
            assert await agent.call("s__t", flat=True) == {"success": False, "output": "no\nsuch file"}

    play(backend, client, script)


@behaviour("client:results")
def test_half_a_surrogate_pair_in_an_answer_stays_what_it_is(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        for _ in range(2):
            number = desk.expect("tools/call")["id"]
            body = b'{"content":[{"type":"text","text":"cut \\ud83d"}]}'
            desk.write(b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (number, body))
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            assert (await agent.call("s__t")).content[0]["text"] == "cut \ud83d"
            assert (await agent.call("s__t")).text == "cut \ufffd"

    play(backend, client, script)


@behaviour("client:asks")
def test_questions_are_answered_by_callbacks_and_without_one_with_an_error(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.accept()
        hello = desk.expect("initialize")
        assert set(hello["params"]["capabilities"]) == {"sampling", "elicitation", "roots"}
        desk.answer(hello, {})
        desk.expect("notifications/initialized")
        asks: list[tuple[str, Json, Json]] = [
            ("ping", {}, {"result": {}}),
            ("roots/list", {}, {"result": {"roots": [{"uri": "file:///tmp/a%20b"}, {"uri": "x://y"}]}}),
            ("sampling/createMessage", {"n": 1}, {"result": {"n": 1}}),
            ("sampling/createMessage", {}, {"error": -1}),
            ("sampling/createMessage", {"raise": 1}, {"error": -32603}),
            ("sampling/createMessage", {"odd": 1}, {"error": -32603}),
            ("elicitation/create", {}, {"result": {"action": "decline"}}),
            ("elicitation/create", {"message": "who?"}, {"result": {"action": "accept"}}),
            ("no/such", {}, {"error": -32601}),
        ]
        call = desk.expect("tools/call")
        for number, (method, params, wanted) in enumerate(asks):
            desk.say({"id": f"a{number}", "method": method, "params": params})
            said = desk.hear()
            assert said.pop("id") == f"a{number}"
            if "error" in said:
                assert "secret" not in json.dumps(said)
                said["error"] = said["error"]["code"]
            assert said == {"jsonrpc": "2.0", **wanted}, method
        desk.text(call, "done")
        desk.until_gone()

    async def client(directory: str) -> None:
        async def sample(params: Json) -> Json | None:
            await anyio.lowlevel.checkpoint()
            if "raise" in params:
                raise ValueError("secret")
            return {"odd": object()} if "odd" in params else params or None

        def elicit(params: Json) -> Json | None:
            return {"action": "accept"} if params else None

        settings: Json = {"on_sampling": sample, "on_elicitation": elicit, "roots": ["/tmp/a b", "x://y"]}
        async with carpool(directory, **settings) as agent:
            assert (await agent.call("s__t")).text == "done"

    with caplog.at_level(logging.ERROR, "carpool.client"):
        play(backend, client, script)
    assert len(caplog.records) == 2


@behaviour("client:progress")
def test_progress_is_told_in_order_by_the_task_that_calls_and_may_end_the_call(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        call = desk.expect("tools/call")
        token = call["params"]["_meta"]["progressToken"]
        for at in range(3):
            desk.tell("notifications/progress", {"progressToken": token, "progress": at, "total": 3})
        desk.text(call, "done")
        call = desk.expect("tools/call")
        token = call["params"]["_meta"]["progressToken"]
        desk.tell("notifications/progress", {"progressToken": token, "progress": 9.5, "message": "far"})
        assert desk.expect("notifications/cancelled")["params"] == {"requestId": call["id"]}
        desk.until_gone()

    async def client(directory: str) -> None:
        told: list[Progress] = []

        async def slowly(progress: Progress) -> None:
            await anyio.lowlevel.checkpoint()
            told.append(progress)

        def enough(progress: Progress) -> None:
            raise RuntimeError(f"{progress.progress} {progress.total} {progress.message}")

        async with carpool(directory) as agent:
            assert (await agent.call("s__t", on_progress=slowly)).text == "done"
            assert told == [Progress(float(at), 3.0) for at in range(3)]
            with pytest.raises(RuntimeError, match=r"9\.5 None far"):
                await agent.call("s__t", on_progress=enough)

    play(backend, client, script)


@behaviour("client:no-daemon")
def test_without_a_carpool_and_without_leave_to_start_one_it_is_a_connection_error(backend: str) -> None:
    async def client(directory: str) -> None:
        with pytest.raises(ConnectionError, match="carpool up"):
            async with carpool(f"{directory}/none"):
                pytest.fail("it is not open")

    play(backend, client, lambda _: None)


def test_what_the_broker_refuses_at_the_door_is_told_in_its_words(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.accept(greet=False)
        assert (desk.hello["carrier"], desk.hello["keeps"], desk.hello["profile"]) == ("client", True, "p")
        assert desk.hello["tool_name_length"] == 50
        desk.tell("carpool/refused", {"text": "there is no profile p; there are: q"})
        desk.die()

    async def client(directory: str) -> None:
        with pytest.raises(BadCall, match=r"There is no profile p; there are: q\."):
            async with carpool(directory, profile="p", tool_name_length=50):
                pytest.fail("it is not open")

    play(backend, client, script)


@pytest.mark.parametrize(
    "wrong", [(5, {}), (("s",), {}), (("s", 5), {}), ("s__t", ["text"]), ("s__t", "text")]
)
def test_a_name_or_arguments_of_another_type_are_told_in_words(backend: str, wrong: Any) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            with pytest.raises(TypeError, match=r"a tool is named by|arguments are a mapping"):
                await agent.call(*wrong)
            with pytest.raises(TypeError, match="a pair needs no resolving"):
                await agent.resolve(("s", "t"))  # type: ignore[arg-type]

    play(backend, client, script)


def test_what_the_body_raises_comes_out_as_it_is(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.until_gone()

    async def client(directory: str) -> None:
        with pytest.raises(KeyError, match="mine"):
            async with carpool(directory):
                raise KeyError("mine")

    play(backend, client, script)


def test_calls_of_others_end_when_the_session_is_left(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.expect("tools/call")
        came.set()
        desk.until_gone()

    async def client(directory: str) -> None:
        async def other() -> None:
            with pytest.raises(Lost, match="session was closed"):
                await agent.call("s__t")
            ended.set()

        ended = anyio.Event()
        async with anyio.create_task_group() as tasks:
            async with carpool(directory) as agent:
                tasks.start_soon(other)
                await happened(came)
            await ended.wait()
        with pytest.raises(RuntimeError, match="not open"):
            await agent.ping()
        with pytest.raises(NotRunning):
            async with carpool(f"{directory}/none") as agent:
                pass

    came = threading.Event()
    play(backend, client, script)


@behaviour("client:operates")
def test_an_operators_request_whose_broker_dies_is_lost_and_the_session_is_another_matter(
    backend: str,
) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        own = desk.take_off()
        desk.accept()
        assert (desk.hello["control"], desk.hello["keeps"]) == (True, False)
        assert desk.expect("carpool/operate")["params"] == {"verb": "start", "servers": ["s"]}
        desk.die()
        desk.put_on(own)
        desk.answer(desk.expect("ping"), {})
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            with pytest.raises(Lost, match="broker has gone away"):
                await agent.start("s")
            await agent.ping()

    play(backend, client, script)


@behaviour("client:operates")
def test_all_servers_are_started_and_stopped_with_an_outcome_for_each(backend: str) -> None:
    done = [{"server": "a", "ok": True, "text": "serving"}, {"server": "b", "ok": False, "text": "unset: B"}]

    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        own = desk.take_off()
        for verb in ("start", "stop"):
            desk.accept()
            asked = desk.expect("carpool/operate")
            assert asked["params"] == {"verb": verb, "servers": None}
            desk.answer(asked, {"results": done})
            desk.until_gone()
        desk.put_on(own)
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            for operate in (agent.start_all, agent.stop_all):
                assert await operate() == [Outcome("a", True, "serving"), Outcome("b", False, "unset: B")]

    play(backend, client, script)
