"""Unreadable and missing answers to list requests: in the greeting and later, in both eras."""

import json
from typing import Any

import pytest

from carpool_protocol.ids import InstanceId, PoolKey
from carpool_protocol.wire.lines import OverlongLine
from carpool_supervisor.core.list_throttle import GREETING_ANSWER_S, MAX_LOST
from carpool_supervisor.core.model import events as ev
from carpool_supervisor.core.model.effects import GiveUpListRequest, RereadLists
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.behaviours import behaviour
from tests.supervisor.core.test_supervisor import KEY, ONE, CoreRig, call, catalog, serving, spec

ERAS = [HandshakeAdapter, StatelessAdapter]
KINDS = ["no message", "not JSON", "overlong"]
SAID: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "resources": {}},
        "serverInfo": {"name": "x", "version": "1"},
    },
    "server/discover": {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "resources": {}},
    },
    "tools/list": {"tools": [{"name": "t", "inputSchema": {}}]},
    "prompts/list": {"prompts": [{"name": "p"}]},
    "resources/list": {"resources": [{"uri": "r:1", "name": "r"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "r:{x}", "name": "t"}]},
}
REST = ["prompts/list", "resources/list", "resources/templates/list"]


def garbled(request: dict[str, Any], kind: str) -> bytes | OverlongLine:
    """An answer to this request that nobody can read."""
    request_id = json.dumps(request["id"]).encode()
    if kind == "overlong":
        return OverlongLine(request_id, True, 65 << 20)  # type: ignore[arg-type]
    if kind == "not JSON":
        return b'{"jsonrpc":"2.0","id":%b,"result":{"tools":[{"name":}]}}' % request_id
    return b'{"jsonrpc":"2.0","id":%b}' % request_id


class ListServer:
    """An adapter, and a server that answers everything but some methods."""

    def __init__(self, era: type) -> None:
        self.adapter = era(ONE, PoolKey("s:1"), "1")
        self.unread: dict[str, str] = {}
        """How it answers these methods; empty: not at all."""
        self.said = SAID
        self.asked: list[str] = []
        self.events: list[Any] = []

    def greet(self) -> None:
        self.hear(self.adapter.greeting_line())

    def hear(self, *written: bytes) -> None:
        for line in b"".join(written).splitlines():
            request = json.loads(line)
            method = request["method"]
            if "id" not in request or method == "subscriptions/listen":
                continue
            self.asked.append(method)
            kind = self.unread.get(method)
            if kind is None:
                result = {"resultType": "complete", **self.said[method]}
                self.say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())
            elif kind:
                self.say(garbled(request, kind))

    def time_out(self, after_s: float) -> None:
        events, out = self.adapter.list_timed_out(after_s)
        self.events += events
        self.hear(*out)

    def say(self, line: bytes | OverlongLine) -> None:
        events, out = self.adapter.feed([line])
        self.events += events
        self.hear(*out)

    def of(self, kind: type) -> list[Any]:
        return [each for each in self.events if isinstance(each, kind)]


@behaviour("lists:lost-answers")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("era", ERAS)
def test_tools_that_cannot_be_read_end_the_greeting_at_once_with_the_fault(era: type, kind: str) -> None:
    server = ListServer(era)
    server.unread = {"tools/list": kind}
    server.greet()
    [failed] = server.of(ev.GreetingFailed)
    assert failed.text.startswith("answered tools/list with an invalid message: ")
    assert not server.of(ev.InstanceGreeted)


@behaviour("lists:lost-answers")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("era", ERAS)
def test_another_list_that_cannot_be_read_is_left_out_told_and_read_again(era: type, kind: str) -> None:
    server = ListServer(era)
    server.unread = {"prompts/list": kind}
    server.greet()
    [greeted] = server.of(ev.InstanceGreeted)
    assert [offer.name for offer in greeted.catalog.tools] == ["t"]
    assert greeted.catalog.prompts == []
    [misspoke] = server.of(ev.ServerLineRejected)
    assert misspoke.text.startswith("answered prompts/list with an invalid message: ")
    assert server.of(ev.ListAnswerLost) == [ev.ListAnswerLost(ONE, 1, "")]
    server.unread = {}
    server.hear(server.adapter.relist_line())
    assert [offer.name for offer in server.of(ev.CatalogRead)[-1].catalog.prompts] == ["p"]
    assert len(server.of(ev.ListAnswerLost)) == 1


@behaviour("lists:lost-answers")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["tools/list", "prompts/list"])
@pytest.mark.parametrize("era", ERAS)
def test_a_later_list_that_cannot_be_read_keeps_what_was_known_and_is_read_again(
    era: type, method: str, kind: str
) -> None:
    server = ListServer(era)
    server.greet()
    server.unread = {method: kind}
    for times in (1, 2):
        server.events.clear()
        server.hear(server.adapter.relist_line())
        known = server.of(ev.CatalogRead)[-1].catalog
        assert ([each.name for each in known.tools], [each.name for each in known.prompts]) == (["t"], ["p"])
        assert server.of(ev.ListAnswerLost) == [ev.ListAnswerLost(ONE, times, "")]
        assert server.of(ev.ServerLineRejected)
    server.unread = {}
    server.events.clear()
    server.asked.clear()
    server.hear(server.adapter.relist_line())
    assert server.asked == ["tools/list", *REST]
    assert not server.of(ev.ListAnswerLost)


@behaviour("lists:lost-answers")
@pytest.mark.parametrize("era", ERAS)
def test_an_answer_that_never_comes_is_given_up_and_one_that_comes_late_says_nothing(era: type) -> None:
    server = ListServer(era)
    server.greet()
    assert server.adapter.open_list_request == (b"", "")
    assert server.adapter.list_timed_out(60.0) == ([], [])
    server.unread = {"tools/list": ""}
    server.hear(server.adapter.relist_line())
    request, method = server.adapter.open_list_request
    assert method == "tools/list"
    assert server.adapter.relist_line() == b"", "one is out"
    text = "did not answer tools/list within 60 s"
    assert server.adapter.list_timed_out(60.0) == ([ev.ListAnswerLost(ONE, 1, text)], [])
    assert server.adapter.open_list_request == (b"", "")
    server.events.clear()
    late = {"jsonrpc": "2.0", "id": json.loads(request), "result": SAID["tools/list"]}
    server.say(json.dumps(late).encode())
    server.say(garbled({"id": json.loads(request)}, "overlong"))
    assert server.events == []
    server.unread = {}
    server.hear(server.adapter.relist_line())
    assert server.of(ev.CatalogRead)


@behaviour("lists:optional-late")
@pytest.mark.parametrize("silent", [["prompts/list"], ["resources/list"], ["resources/templates/list"], REST])
@pytest.mark.parametrize("era", ERAS)
def test_a_server_serves_its_tools_while_other_lists_are_not_answered(era: type, silent: list[str]) -> None:
    server = ListServer(era)
    server.unread = dict.fromkeys(silent, "")
    server.greet()
    assert not server.of(ev.InstanceGreeted)
    server.time_out(3.0)
    [greeted] = server.of(ev.InstanceGreeted)
    assert [offer.name for offer in greeted.catalog.tools] == ["t"]
    for _ in silent[1:]:
        server.time_out(60.0)
    assert not server.of(ev.GreetingFailed)
    assert server.of(ev.ListAnswerLost) == [
        ev.ListAnswerLost(ONE, 1, f"did not answer {silent[0]} within 3 s")
    ]
    newest = [*server.of(ev.InstanceGreeted), *server.of(ev.CatalogRead)][-1].catalog
    assert bool(newest.prompts) == ("prompts/list" not in silent)
    assert bool(newest.resources) == ("resources/list" not in silent)
    assert bool(newest.templates) == ("resources/templates/list" not in silent)
    server.unread = {}
    server.hear(server.adapter.relist_line())
    whole = server.of(ev.CatalogRead)[-1].catalog
    assert whole.prompts
    assert whole.resources
    assert whole.templates


@behaviour("lists:optional-late")
@pytest.mark.parametrize("era", ERAS)
def test_a_server_without_tools_serves_although_its_first_list_is_not_answered(era: type) -> None:
    server = ListServer(era)
    server.said = {method: _without_tools(result) for method, result in SAID.items()}
    server.unread = {"prompts/list": ""}
    server.greet()
    server.time_out(3.0)
    [greeted] = server.of(ev.InstanceGreeted)
    assert "tools" not in greeted.catalog.features
    assert server.of(ev.CatalogRead)[-1].catalog.resources


def _without_tools(result: dict[str, Any]) -> dict[str, Any]:
    features = result.get("capabilities")
    kept = {name: each for name, each in (features or {}).items() if name != "tools"}
    return result if features is None else {**result, "capabilities": kept}


# --- the core ----------------------------------------------------------------------------------------------


@behaviour("lists:lost-answers")
def test_lost_lists_are_read_again_after_longer_and_longer_and_not_for_ever() -> None:
    rig = serving(idle_s=10_000.0, probe_s=10_000.0)
    pauses = []
    for times in range(1, MAX_LOST + 1):
        rig.feed(ev.ListAnswerLost(ONE, times, f"loss {times}"))
        assert rig.core.pools[KEY].last_error == f"loss {times}"
        began = rig.now
        while RereadLists(ONE) not in rig.wait(1.0):
            assert rig.now - began < 100.0
        pauses.append(rig.now - began)
    assert pauses == sorted(pauses)
    assert 1.0 < pauses[0] < 4.0
    assert 30.0 < pauses[-1] < 35.0
    rig.feed(ev.ListAnswerLost(ONE, MAX_LOST + 1, ""))
    assert not [each for each in rig.wait(1000.0) if isinstance(each, RereadLists)]
    rig.feed(ev.ListAnswerLost(ONE, 1, ""))
    assert RereadLists(ONE, is_calm=True) in rig.wait(3.0)


@behaviour("lists:lost-answers")
def test_a_list_request_that_is_out_for_too_long_is_given_up_unless_its_answer_may_lie_unread() -> None:
    rig = serving(timeout_s=80.0, idle_s=10_000.0, probe_s=10_000.0)
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    assert rig.wait(79.0) == []
    assert rig.wait(1.0) == [GiveUpListRequest(ONE, 80.0)]
    assert rig.wait(500.0) == []
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    rig.feed(ev.ListRequestChanged(ONE, ""))
    assert rig.wait(500.0) == []
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    rig.feed(ev.StdoutPaused(ONE, True))
    assert rig.wait(500.0) == []
    rig.feed(ev.StdoutPaused(ONE, False))
    assert GiveUpListRequest(ONE, 80.0) in rig.wait(80.0)


@behaviour("lists:lost-answers")
def test_a_greeting_that_misses_its_limit_says_which_list_was_not_answered() -> None:
    rig = CoreRig(spec(first_start_s=20.0))
    rig.feed(call(1))
    rig.feed(ev.InstanceSpawned(InstanceId(1), 9))
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    rig.wait(20.0)
    rig.ended()
    assert rig.core.pools[KEY].last_error == "did not greet within 20 s: it has not answered tools/list"


@behaviour("lists:optional-late")
@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list"])
def test_a_greeting_waits_a_few_seconds_for_another_list_than_tools(method: str) -> None:
    rig = CoreRig(spec(first_start_s=900.0))
    rig.feed(call(1))
    rig.feed(ev.InstanceSpawned(InstanceId(1), 9))
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    rig.feed(ev.ListRequestChanged(ONE, method))
    assert GiveUpListRequest(ONE, GREETING_ANSWER_S) in rig.wait(GREETING_ANSWER_S)
    rig.feed(ev.InstanceGreeted(ONE, catalog()))
    rig.feed(ev.ListRequestChanged(ONE, "resources/list"))
    assert GiveUpListRequest(ONE, 60.0) in rig.wait(60.0)


def test_tools_have_no_limit_of_their_own_in_the_greeting() -> None:
    rig = CoreRig(spec(first_start_s=900.0))
    rig.feed(call(1))
    rig.feed(ev.InstanceSpawned(InstanceId(1), 9))
    rig.feed(ev.ListRequestChanged(ONE, "tools/list"))
    assert GiveUpListRequest(ONE, 60.0) not in rig.wait(500.0)
    rig.feed(ev.InstanceGreeted(ONE, catalog()))
    rig.feed(ev.ListRequestChanged(ONE, ""))
    assert rig.core.instances.by_id[ONE].list_request == ""
