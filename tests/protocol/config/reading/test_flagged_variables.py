"""Variables of a server's `env` that the trust question points out."""

import json
from typing import Any

import pytest

from carpool_protocol.config.reading.flagged_variables import flagged
from carpool_protocol.config.reading.parse import read_config
from tests.behaviours import behaviour


def flags(env: list[str], command: str = "serve", args: tuple[str, ...] = ()) -> list[str]:
    server: dict[str, Any] = {"command": command, "args": list(args), "env": dict.fromkeys(env, "x")}
    config = read_config(json.dumps({"mcpServers": {"s": server}}), "/h/carpool.json").config
    assert config is not None
    return flagged(next(iter(config.servers.values())))


@behaviour("trust:flags")
@pytest.mark.parametrize(
    "names",
    [
        "PATH LD_PRELOAD GIT_DIR OPENSSL_CONF AWS_CONFIG_FILE DOTNET_STARTUP_HOOKS no_proxy BASH_ENV",
        "SSLKEYLOGFILE GOFLAGS GEM_HOME LUA_PATH_5_4 PHPRC BUN_OPTIONS CARGO_HOME REQUESTS_CA_BUNDLE",
        "JAVA_HOME MAVEN_OPTS VIRTUAL_ENV CONTAINER_HOST PYENV_ROOT MISE_CONFIG_FILE NVM_DIR DOTNET_ROOT",
        "JULIA_LOAD_PATH ERL_FLAGS R_PROFILE ANTHROPIC_BASE_URL GOAL TERM LOCPATH TERMINFO x_unheard_of",
        "PERLLIB MY_URL node_options",
    ],
)
def test_a_variable_is_flagged_unless_its_name_is_known_to_be_harmless(names: str) -> None:
    assert flags(names.split()) == names.split()


@behaviour("trust:flags")
def test_credentials_language_and_time_zone_are_not_flagged() -> None:
    harmless = (
        "TOKEN GOOGLE_API_KEY GITHUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_PROFILE NODE_ENV DOCKER_USERNAME TZ LANG"
    )
    assert flags([*harmless.split(), "LC_ALL", "LOG_LEVEL", "AWS_REGION"]) == []


@behaviour("trust:flags")
@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("-c", "exec $A_TOKEN"), ["A_TOKEN"]),
        (("-c", 'eval "$(printenv A_TOKEN)"'), ["A_TOKEN"]),
        (("-c", "import os; os.system(os.environ['A_TOKEN'])"), ["A_TOKEN"]),
        (("run", "-e", "A_TOKEN", "--env=A_TOKEN", "image"), []),
        (("-c", "exec $ANOTHER_A_TOKEN"), []),
    ],
)
def test_a_harmless_name_is_flagged_where_the_command_itself_reads_it(
    args: tuple[str, ...], told: list[str]
) -> None:
    assert flags(["A_TOKEN"], "sh", args) == told


@behaviour("trust:flags")
@pytest.mark.parametrize(
    "name", ["BASH_FUNC_echo%%", "BASH_FUNC_echo()", "A B", "1A", "A.B", "\u00c4", "", "A\n"]
)
def test_a_name_that_is_no_identifier_is_refused(name: str) -> None:
    text = json.dumps({"mcpServers": {"s": {"command": "serve", "env": {name: "() { evil; }"}}}})
    loaded = read_config(text, "/h/carpool.json")
    assert "is not the name of an environment variable" in loaded.problems[0].render()
    project = read_config(text, "/p/.mcp.json", project=True)
    assert project.config is None or not project.config.servers
