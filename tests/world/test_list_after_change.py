"""A list that an agent asks for after the answer to the call that changed it."""

from pathlib import Path
from typing import Final

import pytest

from tests.kit.in_process_daemon import in_process_daemon
from tests.kit.in_process_servers import InProcessServer, Json, loads, tool

SERVERS: Final[dict[str, Json]] = {"grows": {"command": "a", "args": ["grows"]}}


class OldListError(AssertionError):
    """The agent has read the list of before the change."""


class GrowingServer:
    """A server with the tool `grow`, which adds a tool. It tells of the change before it answers the call.

    Once it has grown it keeps requests for its list until `release`.
    """

    def __init__(self) -> None:
        self.has_grown = False
        self._kept: list[tuple[InProcessServer, Json]] = []

    def take(self, process: InProcessServer, message: Json) -> None:
        match message.get("method"):
            case "initialize":
                result = {
                    "protocolVersion": message["params"]["protocolVersion"],
                    "capabilities": {"tools": {"listChanged": True}},
                    "serverInfo": {"name": "grows", "version": "1"},
                }
            case "tools/list" if self.has_grown:
                self._kept.append((process, message))
                return
            case "tools/list":
                result = {"tools": [tool("grow")]}
            case "tools/call":
                self.has_grown = True
                process.say({"method": "notifications/tools/list_changed"})
                result = {"content": [{"type": "text", "text": "has grown"}]}
            case _:
                return
        process.say({"id": message["id"], "result": result})

    def release(self) -> None:
        """Answer the lists that were asked for; there must be one."""
        assert self._kept, "nobody has asked for the new list"
        for process, message in self._kept:
            process.say({"id": message["id"], "result": {"tools": [tool("grow"), tool("grown")]}})


@pytest.mark.xfail(
    reason="the server tells of the change before it answers the call, and carpool asks it for its list at "
    "once, but answers the agent from the list that it knows while that request is open: "
    "the agent reads the old list, and the new one only after `list_changed`",
    raises=OldListError,
    strict=True,
)
def test_a_list_after_the_answer_of_the_call_that_changed_it_is_the_new_one(tmp_path: Path) -> None:
    server = GrowingServer()
    with in_process_daemon(tmp_path, SERVERS, {"grows": server.take}) as carpool:
        agent = carpool.connect()
        agent.greet()
        assert "grown" not in _names(agent.ask("tools/list"))
        called = agent.ask("tools/call", name="grows__grow", arguments={})
        assert called["result"]["content"][0]["text"] == "has grown"
        agent.send(b'{"jsonrpc":"2.0","id":99,"method":"tools/list"}\n')
        server.release()
        carpool.settle()
        [listed] = [found for line in agent.lines if (found := loads(line)).get("id") == 99]
    if _names(listed) != ["grows__grow", "grows__grown"]:
        raise OldListError(_names(listed))


def _names(listed: Json) -> list[str]:
    return [each["name"] for each in listed["result"]["tools"]]
