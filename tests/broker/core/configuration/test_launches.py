"""What a server that is no command is run as. Commands: `test_resolve_servers`."""

import json
from typing import Any

import pytest

from carpool_broker.core.configuration.launches import (
    CannotRun,
    Launch,
    LaunchEnvironment,
    launch_of,
    with_decided_values,
)
from carpool_protocol.carrier.remote import Remote, remote_from_environment
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import ServerConfig
from tests.behaviours import behaviour


def launched(*, project: bool = False, **keys: Any) -> Launch | str:
    loaded = read_config(json.dumps({"mcpServers": {"s": keys}}), "f.json", project=project)
    assert loaded.config is not None, loaded.problems
    (server,) = loaded.config.servers.values()
    scope = LaunchEnvironment(
        known={"VENV": "~/venv", "STRICT": "true", "EMPTY": "", "BREAK": "a\nb"},
        project_known={},
        places={"workspace": "/w", "cwd": "/w/deep"},
        named_places={},
        base_environment={"PATH": "/bin"},
        home="/h",
        roots=None,
        interpreter="/usr/bin/python3",
    )
    found = with_decided_values(server, scope)
    launch = launch_of(found, scope) if isinstance(found, ServerConfig) else found
    return launch.text if isinstance(launch, CannotRun) else launch


def argv(**keys: Any) -> list[str]:
    found = launched(**keys)
    assert isinstance(found, Launch), found
    return found.argv


@behaviour("python:run")
def test_a_module_is_run_by_carpools_own_child_in_the_daemons_python() -> None:
    found = launched(python="package.module", env={"A": "b"})
    assert isinstance(found, Launch)
    assert found.argv == ["/usr/bin/python3", "-P", "-m", "carpool.pymodule", "package.module"]
    assert (found.env, found.cwd) == ({"PATH": "/bin", "A": "b"}, "/h")


def test_a_projects_module_is_looked_for_in_the_workspace() -> None:
    found = launched(python="module", project=True)
    assert isinstance(found, Launch)
    assert found.cwd == "/w"


@pytest.mark.parametrize(
    ("written", "word"), [(True, ["--strict"]), ("${STRICT}", ["--strict"]), (False, [])]
)
def test_strict_is_said_to_the_child(written: Any, word: list[str]) -> None:
    assert argv(python="m", strict=written)[4:] == [*word, "m"]


@pytest.mark.parametrize(
    ("written", "run"),
    [
        ("python3.13", "python3.13"),
        ("/opt/bin/python", "/opt/bin/python"),
        (".venv/bin/python", "/w/.venv/bin/python"),
        ("${VENV}/bin/python", "/h/venv/bin/python"),
    ],
)
def test_an_interpreter_is_looked_up_or_meant_from_the_directory(written: str, run: str) -> None:
    assert argv(python="m", cwd="/w", interpreter=written)[0] == run


@pytest.mark.parametrize(
    "name", ["tools.py", "./tools", "-c", "a-b", "a..b", ".a", "", "1a", "a b", "--strict", "a\n"]
)
def test_an_invalid_module_name_is_misconfigured(name: str) -> None:
    assert (
        launched(python=name)
        == "f.json:1: mcpServers.s.python: must be the name of a module, as package.module, not a file"
    )


def test_an_interpreter_that_is_empty_in_the_end_is_misconfigured() -> None:
    assert (
        launched(python="m", interpreter="${EMPTY}")
        == "f.json:1: mcpServers.s.interpreter: is empty once its variables are filled in"
    )


# --- over a URL ----------------------------------------------------------------------------------------


@behaviour("remote:secrets")
def test_a_url_is_reached_by_a_bridge_that_gets_all_settings_in_its_environment() -> None:
    found = launched(
        url="https://h.example/mcp?key=${STRICT}",
        transport="http",
        headers={"Authorization": "Bearer ${VENV}", "X-B": "b"},
        env={"HTTPS_PROXY": "http://p:1"},
    )
    assert isinstance(found, Launch)
    assert found.argv == ["/usr/bin/python3", "-P", "-m", "carpool.bridge"]
    assert found.spec(b"s").bridge, "it is believed what became of a call"
    assert found.cwd == "/h"
    told = remote_from_environment(found.env)
    assert told == Remote(
        server="s",
        url="https://h.example/mcp?key=true",
        transport="http",
        headers={"Authorization": "Bearer ~/venv", "X-B": "b"},
    )
    assert found.env["HTTPS_PROXY"] == "http://p:1"
    assert found.env["CARPOOL_REMOTE_HEADER_X-B"] == "b"


def test_a_projects_url_is_the_same_server_in_every_workspace() -> None:
    found = launched(url="https://h.example/mcp", project=True)
    assert isinstance(found, Launch)
    assert found.cwd == "/h"


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"url": "${EMPTY}"}, "url: must be a URL that begins with http:// or https:// and names a host"),
        ({"url": "${NONE}"}, "url: the environment variable NONE is not set"),
        (
            {"url": "https://x", "headers": {"A": "${BREAK}"}},
            "headers.A: holds a character that no header may hold, or blanks around its value",
        ),
    ],
)
def test_a_key_that_a_variable_made_wrong_is_misconfigured_without_its_value(
    keys: dict[str, Any], says: str
) -> None:
    said = launched(**keys)
    assert isinstance(said, str)
    assert said.startswith(f"f.json:1: mcpServers.s.{says}")
