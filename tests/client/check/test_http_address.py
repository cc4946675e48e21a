"""What `check` says of the HTTP door: written faults are problems, a port in use is a fact of the moment."""

import json
import socket
from typing import Any

import pytest

from carpool.check.http_address import http_address_faults, why_not_bound
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon

HASH = f"sha256:{'0' * 64}"
OPEN = {"tokens": False}


def read(http: Any) -> Any:
    return read_config(json.dumps({"http": http} if http is not None else {}, indent=1), "f")


def config(http: Any) -> Config:
    found: Config | None = read(http).config
    assert found is not None
    return found


def taken(host: str, port: int) -> str:
    return f"{host}:{port} is taken"


@behaviour("http:check")
@pytest.mark.parametrize(
    ("http", "listen", "own_url", "problem", "now"),
    [
        (None, "", "", "", ""),
        ({}, "", "", "", "127.0.0.1:8808 is taken"),
        ({"port": 1}, "127.0.0.1:2", "", "", "127.0.0.1:2 is taken"),
        ({"port": 1}, "", "http://127.0.0.1:1/mcp", "", ""),
        ({"port": 1}, "", "http://127.0.0.1:2/mcp", "", "127.0.0.1:1 is taken"),
        (None, "127.0.0.1:1", "http://127.0.0.1:1/mcp", "", ""),
        (None, "nonsense", "", "CARPOOL_HTTP: --http and CARPOOL_HTTP want HOST:PORT", ""),
        (OPEN, "0.0.0.0:1", "", "CARPOOL_HTTP: the HTTP door does not listen on 0.0.0.0 without tokens", ""),
        ({"host": "0.0.0.0", **OPEN}, "", "", "f:3: http.host: the HTTP door does not listen on 0.0.0.0", ""),
        ({"host": "0.0.0.0"}, "", "", "", "0.0.0.0:8808 is taken"),
        ({"host": "::", **OPEN}, "", "", "f:3: http.host: the HTTP door does not listen on :: without", ""),
        ({"host": "0.0.0.0", **OPEN}, "127.0.0.1:1", "", "", "127.0.0.1:1 is taken"),
        ({"host": "0.0.0.0", "tokens": {"a": HASH}}, "", "", "", "0.0.0.0:8808 is taken"),
        ({"tokens": {"a": HASH}}, "0.0.0.0:1", "", "", "0.0.0.0:1 is taken"),
    ],
)
def test_what_keeps_a_door_from_opening(http: Any, listen: str, own_url: str, problem: str, now: str) -> None:
    faults = http_address_faults(config(http), listen, own_url, taken)
    said = faults.problem.render() if faults.problem else ""
    assert said.startswith(problem)
    assert bool(said) == bool(problem)
    assert faults.now == now


def test_a_port_in_use_is_found_and_left_as_it_was() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert "end the program that listens there" in why_not_bound("127.0.0.1", port)
    assert why_not_bound("127.0.0.1", 0) == ""
    assert "http.host" in why_not_bound(f"{'a' * 64}.example", 1)


@behaviour("http:check")
def test_check_tells_faults_of_the_door(house: PrivateDaemon) -> None:
    file = house.base / "carpool.json"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        file.write_text(json.dumps({"http": {"port": other.getsockname()[1]}}))
        done = house.run("check", "--config", str(file))
        assert (done.returncode, "not all right: the HTTP door cannot open now" in done.stdout) == (1, True)
        assert "end the program that listens there" in done.stderr
        told = json.loads(house.run("check", "--config", str(file), "--json").stdout)
        assert (told["ok"], "end the program" in told["door"]) == (False, True)
    file.write_text('{"http": {"host": "0.0.0.0", "tokens": false}}')
    done = house.run("check", "--config", str(file))
    assert (done.returncode, "without tokens" in done.stderr) == (2, True)
    house.environ["CARPOOL_HTTP"] = "nonsense"
    done = house.run("check")
    assert (done.returncode, "want HOST:PORT" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("http", "text"),
    [
        ({"port": "8090"}, "http.port: must be a whole number, found text (write it without quotes)"),
        ({"port": "${MCP_PORT}"}, "set CARPOOL_HTTP=HOST:PORT where `carpool up` runs"),
        ({"host": "${MCP_HOST}"}, "set CARPOOL_HTTP=HOST:PORT where `carpool up` runs"),
        ({"host": ""}, "http.host: must be a name or an address alone"),
        ({"host": "http://x"}, "http.host: must be a name or an address alone"),
        ({"host": "two words"}, "http.host: must be a name or an address alone"),
    ],
)
def test_an_address_that_is_none_is_refused_with_a_way_out(http: Any, text: str) -> None:
    problems = read(http).problems
    assert len(problems) == 1
    assert text in problems[0].render()
