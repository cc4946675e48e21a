"""mcporter and the inspector see through carpool what they see of the server itself."""

from collections.abc import Iterator
from typing import Final

import pytest

from carpool_protocol.wire.tool_name_resolver import qualify
from tests.behaviours import behaviour
from tests.programs.command_line_clients import CLIENTS, INSPECTOR, MCPORTER, call, list_tools
from tests.programs.installed import require
from tests.programs.loopback import Loopback
from tests.programs.stage import ProgramStage

KINDS: Final = {
    MCPORTER: ("structured_alone", "rejects"),
    INSPECTOR: ("structured", "links", "image", "fails"),
}
"""Each client calls other kinds of answers: a call takes a process of node that starts."""


@pytest.fixture(scope="module")
def direct(loopback: Loopback) -> Iterator[ProgramStage]:
    with ProgramStage("direct", loopback) as stage:
        yield stage


@pytest.fixture(scope="module")
def through(loopback: Loopback) -> Iterator[ProgramStage]:
    with ProgramStage("carpool", loopback) as stage:
        stage.up(http=True)
        yield stage


@behaviour("programs:clients")
@pytest.mark.parametrize("name", [MCPORTER, INSPECTOR])
def test_a_client_lists_the_tools_of_both_servers_with_their_descriptions_and_schemas(
    direct: ProgramStage, through: ProgramStage, name: str
) -> None:
    require(name)
    client = CLIENTS[name]
    expected = {
        qualify(server, tool): told
        for server in direct.servers
        for tool, told in list_tools(direct, client, server).items()
    }
    assert list_tools(through, client) == expected
    assert len(expected) == 22


@behaviour("programs:clients")
@pytest.mark.parametrize("name", [MCPORTER, INSPECTOR])
def test_a_client_lists_the_same_tools_over_http(through: ProgramStage, name: str) -> None:
    require(name)
    client = CLIENTS[name]
    assert list_tools(through, client, http=True) == list_tools(through, client)


@behaviour("programs:clients")
@pytest.mark.parametrize(("name", "tool"), [(name, tool) for name, tools in KINDS.items() for tool in tools])
def test_a_client_prints_the_same_of_every_kind_of_answer(
    direct: ProgramStage, through: ProgramStage, name: str, tool: str
) -> None:
    require(name)
    client = CLIENTS[name]
    assert call(through, client, tool) == call(direct, client, tool)
    assert [each["tool"] for each in through.events("odd", "answered")][-1] == tool


@behaviour("programs:clients")
def test_nothing_of_a_client_is_left_behind_its_last_command(through: ProgramStage) -> None:
    require(MCPORTER)
    call(through, CLIENTS[MCPORTER], "pid")
    assert through.left_by_program() == {}
