"""The Python client when its broker dies: what the next one is told, and what its callers hear."""

from typing import Any

import anyio
import pytest

from carpool import Carpool, Lost, NotRunning
from carpool.shim.kept_lines import KEEP_BYTES
from carpool.shim.shim import DEATHS
from tests.behaviours import behaviour
from tests.kit.scripted_broker import ScriptedBroker, carpool, play

pytestmark = pytest.mark.parametrize("backend", ["asyncio", "trio"])


async def gather(agent: Carpool, texts: list[str]) -> dict[str, str]:
    """The answers to these calls, all at once."""
    found: dict[str, str] = {}

    async def one(text: str) -> None:
        found[text] = (await agent.call("s__t", {"text": text})).text

    async with anyio.create_task_group() as tasks:
        for text in texts:
            tasks.start_soon(one, text)
    return found


@behaviour("client:reattach")
def test_a_broker_that_dies_is_a_pause_and_only_what_has_no_answer_is_said_again(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        calls = [desk.expect("tools/call") for _ in range(4)]
        desk.settle(4, open=[3, 4], kept=[1, 2])
        desk.text(calls[0], "first")
        desk.text(calls[3], "first")
        desk.write(b'{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","te')
        desk.die()
        desk.accept(session="s1")
        resume = desk.hello["resume"]
        assert (resume["session"], resume["secret"], resume["supervisor"]) == ("s1", "0.x", "e1")
        assert (resume["kept"], resume["open"]) == (2, 2)
        assert [desk.hear()["method"] for _ in range(2)] == ["initialize", "notifications/initialized"]
        again = [desk.expect("tools/call") for _ in range(2)]
        assert again == calls[1:3]
        for call in again:
            desk.text(call, "second")
        desk.until_gone()
        assert len(desk.heard) == 4

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            found = await gather(agent, ["a", "b", "c", "d"])
        assert sorted(found.values()) == ["first", "first", "second", "second"]

    play(backend, client, script)


@behaviour("client:reattach")
def test_what_is_said_while_no_broker_is_there_reaches_the_next_one_as_new(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        held = desk.expect("tools/call")
        desk.settle(3, open=[3], kept=[1, 2])
        desk.die()
        desk.accept()
        resume = desk.hello["resume"]
        assert (resume["kept"], resume["open"]) == (2, 1)
        kinds = [desk.hear() for _ in range(3)]
        assert kinds[2] == held
        desk.text(held, "held")
        later = desk.expect("tools/call")
        desk.text(later, "later")
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            assert await gather(agent, ["a"]) == {"a": "held"}
            assert await gather(agent, ["b"]) == {"b": "later"}

    play(backend, client, script)


@behaviour("client:reattach")
def test_what_a_broker_that_restarts_has_not_answered_is_new_at_the_next_one(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        calls = [desk.expect("tools/call") for _ in range(2)]
        desk.settle(4, open=[3, 4], kept=[1, 2])
        desk.text(calls[0], "before")
        desk.tell("carpool/ended", {"text": "carpool restarts", "again": True})
        desk.die()
        desk.accept(session="s2")
        assert (desk.hello["resume"]["kept"], desk.hello["resume"]["open"]) == (2, 0)
        said = [desk.hear() for _ in range(3)]
        assert said[2] == calls[1]
        desk.text(calls[1], "after")
        desk.until_gone()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            assert sorted((await gather(agent, ["a", "b"])).values()) == ["after", "before"]
            assert agent.session == "s2"

    play(backend, client, script)


@behaviour("client:reattach")
def test_where_carpool_is_stopped_open_calls_are_lost_and_later_ones_a_connection_error(
    backend: str,
) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.expect("tools/call")
        desk.tell("carpool/ended", {"text": "carpool was stopped"})
        desk.die()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            with pytest.raises(Lost, match=r"^Carpool was stopped\. The call may have been") as caught:
                await agent.call("s__t")
            assert (caught.value.kind, caught.value.delivered) == ("cut_off", "maybe")
            with pytest.raises(ConnectionError, match=r"^Carpool was stopped\.$") as gone:
                await agent.call("s__t")
            assert isinstance(gone.value, NotRunning)
            assert gone.value.delivered == "no"

    play(backend, client, script)


@behaviour("client:reattach")
def test_brokers_that_die_again_and_again_of_what_they_are_told_are_given_up(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.expect("tools/call")
        desk.settle(3, open=[3], kept=[1, 2])
        desk.die()
        for _ in range(DEATHS + 1):
            desk.accept()
            desk.die()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            with pytest.raises(Lost, match="those before it died as well"):
                await agent.call("s__t")

    play(backend, client, script)


@behaviour("client:reattach")
def test_more_that_is_open_than_is_kept_is_lost_with_the_broker(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.greeted()
        desk.expect("tools/call")
        desk.die()

    async def client(directory: str) -> None:
        async with carpool(directory) as agent:
            with pytest.raises(Lost, match="more was open than is kept"):
                await agent.call("s__t", {"text": "x" * (KEEP_BYTES + 1)})

    play(backend, client, script)


@behaviour("client:reattach")
def test_variables_are_told_whenever_they_are_wanted_and_are_no_lines_of_the_agent(backend: str) -> None:
    def script(desk: ScriptedBroker) -> None:
        desk.accept(env=("ONE", "NONE", "HALF"))
        assert {desk.hear()["method"] for _ in range(2)} == {"initialize", "carpool/environment"}
        said = {message["method"]: message for message in desk.heard}
        assert said["carpool/environment"]["params"] == {"ONE": "1"}
        desk.answer(said["initialize"], {})
        desk.expect("notifications/initialized")
        call = desk.expect("tools/call")
        desk.tell("carpool/wanted", {"env": ["TWO"]})
        assert desk.expect("carpool/environment")["params"] == {"TWO": "zwei"}
        desk.tell("carpool/moved", {"workspace": "shop", "by_roots": False})
        desk.settle(3, open=[3], kept=[1, 2])
        desk.die()
        desk.accept()
        assert desk.hello["resume"]["moved"] == {"workspace": "shop", "by_roots": False}
        assert [desk.hear().get("method") for _ in range(3)] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
        desk.text(call, "done")
        desk.until_gone()

    async def client(directory: str) -> None:
        environ: dict[str, Any] = {"ONE": "1", "TWO": "zwei", "HALF": "\ud83d", "HOME": directory}
        async with carpool(directory, environ=environ) as agent:
            assert (await agent.call("s__t")).text == "done"

    play(backend, client, script)
