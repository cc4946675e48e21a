"""Warnings of `carpool check` about secrets that go over the network unencrypted."""

import json
from typing import Any

import pytest

from carpool.check.urls import url_warnings
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.expand import MissingValue, expand
from carpool_protocol.config.schema.model import ServerConfig
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

KEY = {"Authorization": "Bearer ${TOKEN}"}


def warned(**server: Any) -> list[str]:
    known = {"HOST": "far.example", "HERE": "127.0.0.1"}

    def expanded(_: ServerConfig, text: str) -> str | None:
        value = expand(text, known, {})
        return None if isinstance(value, MissingValue) else value

    loaded = read_config(json.dumps({"mcpServers": {"a": server}}), "c.json")
    assert loaded.config is not None, loaded.problems
    return url_warnings(loaded.config, expanded)


@behaviour("remote:plain-http")
@pytest.mark.parametrize(
    ("server", "told"),
    [
        ({"url": "http://far.example/mcp", "headers": KEY}, "Authorization"),
        ({"url": "HTTP://10.0.0.1:80/mcp", "headers": {"x-api-key": "k", "X-A": "b"}}, "x-api-key"),
        ({"url": "http://${HOST}/mcp", "headers": KEY}, "Authorization"),
        ({"url": "http://${UNSET}/mcp", "headers": KEY}, "Authorization"),
        ({"url": "http://localhost.far.example/mcp", "headers": KEY}, "Authorization"),
        ({"url": "http://far.example/mcp", "oauth": {"client_id": "x"}}, "its login"),
    ],
)
def test_a_secret_for_another_machine_over_plain_http_is_warned_of(server: dict[str, Any], told: str) -> None:
    (said,) = warned(**server)
    assert said.startswith(f"c.json:1: mcpServers.a.url: {told} would cross the network unencrypted")


@behaviour("remote:plain-http")
@pytest.mark.parametrize(
    "server",
    [
        {"url": "https://far.example/mcp", "headers": KEY},
        {"url": "http://127.0.0.1:8000/mcp", "headers": KEY},
        {"url": "http://[::1]/mcp", "headers": KEY},
        {"url": "http://localhost/mcp", "headers": KEY},
        {"url": "http://${HERE}/mcp", "headers": KEY},
        {"url": "http://far.example/mcp"},
        {"url": "http://far.example/mcp", "headers": {"Accept-Language": "en"}},
        {"url": "http://far.example/mcp", "headers": KEY, "disabled": True},
        {"command": "serve"},
    ],
)
def test_a_server_that_sends_no_secret_openly_is_not_mentioned(server: dict[str, Any]) -> None:
    assert warned(**server) == []


@behaviour("remote:plain-http")
def test_check_warns_of_it_and_tells_no_value(house: PrivateDaemon) -> None:
    file = house.base / "c.json"
    headers = {"Authorization": "Bearer hunter2"}
    file.write_text(json.dumps({"mcpServers": {"a": {"url": "http://far.example/mcp", "headers": headers}}}))
    done = house.run("check", "--config", str(file))
    assert done.returncode == 0
    assert "Authorization would cross the network unencrypted" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
