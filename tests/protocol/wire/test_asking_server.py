"""The name of the server that asks, in an elicitation's message and in `_meta`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.asking_server import ELICITATION, META_KEY, meta_server, name_server

WEATHER = ServerName("weather")
MESSAGES = st.text(st.characters(codec="utf-8"))


@pytest.mark.parametrize(
    ("params", "named"),
    [
        (b'{"message":"Your token?","x":1.0}', b'{"message":"[weather] Your token?","x":1.0}'),
        (b'{"message":"[github] Hi"}', b'{"message":"[weather] [github] Hi"}'),
        (b'{"mess\\u0061ge":"a","message":"b"}', b'{"mess\\u0061ge":"[weather] a","message":"[weather] b"}'),
        (b'{"message":7}', b'{"message":7}'),
        (b'{"requestedSchema":{"message":"x"}}', b'{"requestedSchema":{"message":"x"}}'),
        (b"{}", b"{}"),
    ],
)
def test_a_message_begins_with_the_server_that_asks(params: bytes, named: bytes) -> None:
    assert name_server(ELICITATION, RawJson(params), WEATHER) == named
    assert name_server(ELICITATION, RawJson(params), ServerName("")) == params
    assert name_server("sampling/createMessage", RawJson(params), WEATHER) == params


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (b"{}", b'{"_meta":{"carpool/server":"weather"}}'),
        (b'{"a":1}', b'{"a":1,"_meta":{"carpool/server":"weather"}}'),
        (b'{"_meta":{},"a":1}', b'{"_meta":{"carpool/server":"weather"},"a":1}'),
        (b'{"_meta":{"k":1}}', b'{"_meta":{"k":1,"carpool/server":"weather"}}'),
        (b'{"_meta":{"carpool/server":"github"}}', b'{"_meta":{"carpool/server":"weather"}}'),
        (b'{"_meta":7,"a":1}', b'{"a":1,"_meta":{"carpool/server":"weather"}}'),
        (b"[]", b"[]"),
    ],
)
def test_the_name_is_in_meta_for_programs(params: bytes, said: bytes) -> None:
    assert meta_server(RawJson(params), WEATHER) == said
    assert meta_server(RawJson(params), ServerName("")) == params


@given(MESSAGES, st.dictionaries(MESSAGES, MESSAGES, max_size=3))
def test_whatever_a_server_says_the_name_comes_first(message: str, meta: dict[str, str]) -> None:
    params = RawJson(json.dumps({"message": message, "_meta": meta}).encode())
    named = json.loads(meta_server(name_server(ELICITATION, params, WEATHER), WEATHER))
    assert named == {"message": f"[weather] {message}", "_meta": {**meta, META_KEY: "weather"}}
