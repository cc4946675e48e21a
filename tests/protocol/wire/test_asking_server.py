"""The name of the server that asks, in an elicitation's message and in `_meta`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_protocol.ids import RawJson, ServerName
from carpool_protocol.wire.asking_server import (
    ELICITATION,
    MAX_IN_ERROR,
    META_KEY,
    meta_server,
    name_server,
    name_server_in_error,
    unreadable_elicitation,
)
from carpool_protocol.wire.content import TooManyPartsError
from carpool_protocol.wire.json_scan import MAX_MEMBERS, MAX_PARTS
from tests.behaviours import behaviour

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


URLS = b'{"code":%b,"message":"m","data":{"x":1.0,"elicit%btions":[%b]}}'
ONE_URL = b'{"mode":"url","message":"Sign in","_meta":{"carpool/server":"github"}}'


@behaviour("asks:named", "asks:elicitation:32042")
@pytest.mark.parametrize("code", [b"-32042", b"-3.2042e4"])
@pytest.mark.parametrize("letter", [b"a", b"\\u0061"])
def test_each_elicitation_of_an_error_names_the_server(code: bytes, letter: bytes) -> None:
    error = RawJson(URLS % (code, letter, b",".join([ONE_URL] * 2)))
    said = json.loads(name_server_in_error(error, WEATHER))
    named = {"mode": "url", "message": "[weather] Sign in", "_meta": {META_KEY: "weather"}}
    assert said == json.loads(error) | {"data": {"x": 1.0, "elicitations": [named, named]}}
    assert name_server_in_error(error, ServerName("")) == error


@behaviour("asks:named", "asks:elicitation:32042")
def test_no_elicitation_of_an_error_passes_without_a_name_however_many_there_are() -> None:
    many = RawJson(URLS % (b"-32042", b"a", b",".join([ONE_URL] * (MAX_IN_ERROR + 1))))
    said = json.loads(name_server_in_error(many, WEATHER))["data"]["elicitations"]
    assert [each["_meta"] for each in said] == [{META_KEY: "weather"}] * MAX_IN_ERROR


def crowded(text: bytes) -> bytes:
    """The object with so many more members that it is not cut."""
    return text[:-1] + b"".join(b',"m%d":0' % n for n in range(MAX_MEMBERS + 1)) + b"}"


@behaviour("asks:named", "asks:elicitation:32042")
@pytest.mark.parametrize(
    "error",
    [
        crowded(URLS % (b"-32042", b"a", ONE_URL)),
        b'{"code":-32042,"message":"m","data":%b}' % crowded(b'{"elicitations":[%b]}' % ONE_URL),
        URLS % (b"-32042", b"a", crowded(ONE_URL)),
        URLS % (b"-32042", b"a", b'{"message":"Sign in","_meta":%b}' % crowded(b'{"a":1}')),
    ],
    ids=["error", "data", "elicitation", "meta"],
)
def test_an_elicitation_that_cannot_be_named_does_not_pass(error: bytes) -> None:
    with pytest.raises(TooManyPartsError):
        name_server_in_error(RawJson(error), WEATHER)


@pytest.mark.parametrize(
    "error",
    [
        b'{"code":-32000,"message":"ung\\u00fcltig","data":%b}' % crowded(b'{"a":1}'),
        b'{"code":-32000,"message":"ung\\u00fcltig","data":[%b]}' % b",".join([b"[]"] * MAX_PARTS),
        crowded(b'{"code":-32000,"message":"no elicitations, ung\\ud83d"}'),
        b'{"code":-32000,"message":"elicitations","data":"elicitations"}',
    ],
)
def test_an_error_that_sends_nobody_to_urls_passes_however_many_parts_it_has(error: bytes) -> None:
    assert name_server_in_error(RawJson(error), WEATHER) is error


def test_the_form_in_place_of_a_question_that_cannot_be_read_names_the_server() -> None:
    form = json.loads(unreadable_elicitation(WEATHER))
    assert form["message"].startswith("[weather] ")
    assert form["requestedSchema"] == {"type": "object", "properties": {}}


@behaviour("asks:named", "answers:bounded-rewrite")
def test_an_error_with_too_many_parts_does_not_pass_without_a_name() -> None:
    many = RawJson(URLS % (b"-32042", b"a", b",".join([ONE_URL] * MAX_PARTS)))
    with pytest.raises(TooManyPartsError):
        name_server_in_error(many, WEATHER)
    assert name_server_in_error(many, ServerName("")) == many


@pytest.mark.parametrize(
    "error",
    [b'{"code":-1,"message":"m"}', b'{"code":-1,"message":"m" , "data":[{"elicitations":[]}]}', b"7",
     b'{"code":-1,"message":"m","data":{"elicitations":"none"}}'],
)  # fmt: skip
def test_any_other_error_stays_byte_for_byte(error: bytes) -> None:
    assert name_server_in_error(RawJson(error), WEATHER) == error
