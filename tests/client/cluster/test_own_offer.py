"""The servers that a node offers, as the files of its configuration change."""

import asyncio
import json
from pathlib import Path

import pytest

from carpool.cluster import own_offer
from carpool.cluster.own_offer import OwnOffer
from carpool.cluster.settings import NodeSettings
from carpool.control.control_client import ControlClientError
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.reading.parse import read_config
from tests.behaviours import behaviour


def offer_of(file: Path, profile: str = "") -> OwnOffer:
    profiles = {profile: {"allow": ["mcp:git:*"]}} if profile else {}
    text = json.dumps({"cluster": {"url": "ipc:///nowhere", "profile": profile}, "profiles": profiles})
    config = read_config(text, "carpool.json").config
    assert config is not None
    settings = NodeSettings(node="alpha", cluster=config.cluster, key_file="")
    return OwnOffer(str(file.parent), ConfigFile(str(file), asked_for=True), settings, str(file.parent))


@behaviour("cluster:environment")
def test_a_server_of_an_included_file_and_one_with_a_new_variable_are_offered_at_once(tmp_path: Path) -> None:
    """The file itself, which the node's process watches, stays the same."""
    file, variables = tmp_path / "carpool.json", tmp_path / "variables.env"
    variables.write_text("")
    server = {"command": "/bin/cat", "env": {"TOKEN": "${OF_THE_ENV_FILE}"}}
    file.write_text(
        json.dumps({"include": ["more/*.json"], "env_file": str(variables), "mcpServers": {"a": server}})
    )
    (tmp_path / "more").mkdir()
    own = offer_of(file)

    async def names() -> list[str]:
        servers, _ = await own.read()
        return [each.name for each in servers]

    async def run() -> None:
        assert await names() == []
        (tmp_path / "more" / "b.json").write_text(json.dumps({"mcpServers": {"b": {"command": "/bin/cat"}}}))
        assert await names() == ["b"]
        variables.write_text("OF_THE_ENV_FILE=x\n")
        assert await names() == ["a", "b"]
        (tmp_path / "more" / "b.json").unlink()
        assert await names() == ["a"]

    asyncio.run(run())


def test_while_the_file_is_broken_its_last_good_reading_is_offered(tmp_path: Path) -> None:
    """The node's process may die and start again just then."""
    file = tmp_path / "carpool.json"
    file.write_text('{"mcpServers": {"a": {"command": "/bin/cat"}}}')
    good = load_layer(ConfigFile(str(file), asked_for=True), str(tmp_path))
    LastGoodReadings(paths.last_good_file(str(tmp_path))).save(good)
    file.write_text("{")
    own = offer_of(file)

    async def run() -> None:
        servers, _ = await own.read()
        assert [each.name for each in servers] == ["a"]
        file.write_text('{"mcpServers": {"b": {"command": "/bin/cat"}}}')
        servers, _ = await own.read()
        assert [each.name for each in servers] == ["b"]

    asyncio.run(run())


@behaviour("cluster:environment")
def test_a_variable_of_carpool_s_own_environment_makes_no_server_one_for_other_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker does not fill it in for agents without it, so their calls would find no such tool."""
    monkeypatch.setenv("HOME", "/home/me")
    file = tmp_path / "carpool.json"
    server = {"command": "/bin/cat", "env": {"A": "${HOME}"}}
    file.write_text(json.dumps({"mcpServers": {"a": server, "b": {"command": "/bin/cat"}}}))
    servers, kept = asyncio.run(offer_of(file).read())
    assert [each.name for each in servers] == ["b"]
    assert kept["a"] == "it needs values from its agent's environment: HOME"


class AnsweringBroker:
    """A broker that says, to each question, which servers a profile grants; None: it does not answer."""

    def __init__(self, granted: list[str] | None) -> None:
        self.granted = granted

    def client(self, *_: object, **_settings: object) -> "AnsweringBroker":
        """A connection."""
        if self.granted is None:
            raise ControlClientError("carpool is not running here")
        return self

    def __enter__(self) -> "AnsweringBroker":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, method: str, _: object) -> bytes:
        """Answer."""
        if method == "carpool/status":
            return json.dumps({"servers": {}, "totals": {"in_flight": 0}}).encode()
        assert method == "carpool/servers"
        return json.dumps({"servers": [{"name": name} for name in self.granted or ()]}).encode()


@behaviour("cluster:rights")
def test_nothing_is_offered_before_the_broker_has_said_what_the_profile_of_other_nodes_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offers tell names, tags and names of tools, which are nothing for nodes without that right."""
    broker = AnsweringBroker(None)
    monkeypatch.setattr(own_offer, "ControlClient", broker.client)
    file = tmp_path / "carpool.json"
    servers = {name: {"command": "/bin/cat"} for name in ("git", "payroll")}
    file.write_text(json.dumps({"mcpServers": servers}))
    own = offer_of(file, "others")

    async def run() -> None:
        assert await own.read() == ([], {})
        assert not own.refusal("git").is_final, "it is asked for again"
        broker.granted = ["git"]
        own.config_changed()
        offered, kept = await own.read()
        assert [each.name for each in offered] == ["git"]
        assert list(kept) == ["payroll"]
        broker.granted = None
        file.write_text(json.dumps({"mcpServers": {**servers, "salaries": {"command": "/bin/cat"}}}))
        own.config_changed()
        offered, kept = await own.read()
        assert [each.name for each in offered] == ["git"], "a new server is not granted without an answer"

    asyncio.run(run())


@behaviour("cluster:rights")
def test_an_offer_is_not_complete_while_the_broker_has_not_said_what_the_profile_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not published then, and read again soon. The broker may answer one question and end."""

    class EndingBroker(AnsweringBroker):
        def request(self, method: str, parameters: object) -> bytes:
            if method == "carpool/servers" and self.granted == []:
                raise ControlClientError("it has ended")
            return super().request(method, parameters)

    broker = EndingBroker([])
    monkeypatch.setattr(own_offer, "ControlClient", broker.client)
    file = tmp_path / "carpool.json"
    file.write_text(json.dumps({"mcpServers": {"git": {"command": "/bin/cat"}}}))
    own = offer_of(file, "others")

    async def run() -> None:
        await own.read()
        assert not own.is_decided
        broker.granted = ["git"]
        own.config_changed()
        await own.read()
        assert own.is_decided

    asyncio.run(run())
