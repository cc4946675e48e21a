"""What a question asks for beyond its method. Source: MCP 2025-11-25, client/sampling, client/elicitation."""

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.ids import RawJson
from carpool_protocol.link.messages import Need
from carpool_protocol.wire.capabilities import needed_capabilities

SAMPLING, ELICITATION = "sampling/createMessage", "elicitation/create"


@pytest.mark.parametrize(
    ("method", "params", "needs"),
    [
        (SAMPLING, {"messages": []}, ["sampling"]),
        (SAMPLING, {"messages": [], "tools": [], "toolChoice": None}, ["sampling"]),
        (SAMPLING, {"messages": [], "tools": None, "toolChoice": {}}, ["sampling"]),
        (SAMPLING, {"messages": [{"tools": [1]}]}, ["sampling"]),
        (SAMPLING, {"tools": [{"name": "t"}]}, ["sampling", "sampling.tools"]),
        (SAMPLING, {"tools": [], "toolChoice": {"mode": "auto"}}, ["sampling", "sampling.tools"]),
        (ELICITATION, {"message": "?"}, ["elicitation.form"]),
        (ELICITATION, {"mode": "form"}, ["elicitation.form"]),
        (ELICITATION, {"mode": None}, ["elicitation.form"]),
        (ELICITATION, {"mode": "url", "url": "https://x/y"}, ["elicitation.url"]),
        (ELICITATION, {"mode": "telepathy"}, []),
        (ELICITATION, {"mode": "URL"}, []),
        ("roots/list", {}, []),
    ],
)
def test_params_say_what_an_agent_must_have_declared(
    method: str, params: dict[str, Any], needs: list[Need]
) -> None:
    assert needed_capabilities(method, RawJson(json.dumps(params, separators=(",", ":")).encode())) == needs


def test_of_doubled_members_the_last_counts() -> None:
    assert needed_capabilities(ELICITATION, RawJson(b'{"mode":"url","mode":"form"}')) == ["elicitation.form"]
    assert needed_capabilities(SAMPLING, RawJson(b'{"tools":[1],"tools":[]}')) == ["sampling"]


@given(st.sampled_from([SAMPLING, ELICITATION, "roots/list"]), st.binary(max_size=60))
def test_no_bytes_raise(method: str, some: bytes) -> None:
    for params in (some, b'{"tools":%b}' % some, b'{"mode":"%b"}' % some):
        assert set(needed_capabilities(method, RawJson(params))) <= set(get_args(Need))
