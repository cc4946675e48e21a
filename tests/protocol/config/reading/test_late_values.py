"""A `${VAR}` where a number or a switch is wanted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.config.pages.describe import describe
from carpool_protocol.config.reading.late_values import fill_late_values
from carpool_protocol.config.reading.parse import read_config
from carpool_protocol.config.schema.model import Config, ServerConfig, variables
from carpool_protocol.config.text.problems import KeyPath
from carpool_protocol.ids import ServerName
from tests.behaviours import behaviour


def config_of(**keys: Any) -> Config:
    loaded = read_config(json.dumps({"mcpServers": {"a": {"command": "x", **keys}}}), "f")
    assert [each.render() for each in loaded.problems] == []
    assert loaded.config is not None
    return loaded.config


def server_of(**keys: Any) -> ServerConfig:
    return config_of(**keys).servers[ServerName("a")]


def filled(server: ServerConfig, **values: str) -> ServerConfig:
    found = fill_late_values(server, {tuple(key.split("__")): text for key, text in values.items()})
    assert isinstance(found, ServerConfig), found
    return found


@behaviour("config:numbers-from-variables")
def test_a_text_from_a_variable_is_read_as_the_number_or_switch_that_is_wanted() -> None:
    config = config_of(disabled="${OFF:-false}", timeout_s="${T}", pool={"max": "${N}"}, auto_connect="${A}")
    assert variables(config) == {"OFF", "T", "N", "A"}
    server = config.servers[ServerName("a")]
    assert not server.disabled
    whole = filled(server, disabled="TRUE", timeout_s=" 2.5 ", pool__max="3", auto_connect="0")
    assert (whole.disabled, whole.policy.timeout_s, whole.policy.max_instances) == (True, 2.5, 3)
    assert not whole.policy.auto_connect
    assert whole.late == {}


@pytest.mark.parametrize(
    ("keys", "values", "path", "why"),
    [
        ({"timeout_s": "${T}"}, {"timeout_s": "soon"}, ("timeout_s",), "must be a number of seconds"),
        ({"timeout_s": "${T}"}, {"timeout_s": "-1"}, ("timeout_s",), "must be above 0 s"),
        ({"timeout_s": "${T}"}, {"timeout_s": "9999"}, ("timeout_s",), "is above max_total_s"),
        ({"disabled": "${D}"}, {"disabled": "perhaps"}, ("disabled",), "must be true or false"),
        ({"pool": {"max": "${N}"}}, {"pool__max": "1.5"}, ("pool", "max"), "must be a whole number"),
    ],
)
def test_what_is_no_such_number_is_told_without_its_value(
    keys: dict[str, Any], values: dict[str, str], path: KeyPath, why: str
) -> None:
    found = fill_late_values(
        server_of(**keys), {tuple(key.split("__")): text for key, text in values.items()}
    )
    assert isinstance(found, list)
    ((at, said),) = found
    assert at == path
    assert why in said
    assert not any(text in said for text in values.values() if not text.startswith("9"))


@given(st.text())
def test_no_text_makes_filling_raise(text: str) -> None:
    server = server_of(timeout_s="${T}", disabled="${D}", pool={"max": "${N}"})
    found = fill_late_values(server, dict.fromkeys(server.late, text))
    assert isinstance(found, ServerConfig | list)


def test_a_number_in_quotes_is_still_refused_and_so_is_a_variable_in_a_number_of_the_whole_file() -> None:
    for document in (
        {"mcpServers": {"a": {"command": "x", "timeout_s": "60"}}},
        {"mcpServers": {"a": {"command": "x", "pool": {"min": "${N}"}}}},
        {"max_instances": "${N}"},
    ):
        assert read_config(json.dumps(document), "f").config is None


def test_check_shows_the_variable_and_not_the_default() -> None:
    (row,) = [each for each in describe(config_of(timeout_s="${T}")) if each.setting.endswith(".timeout_s")]
    assert (row.value, row.origin) == ('"${T}"', "f:1")
