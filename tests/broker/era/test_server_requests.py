"""The handshake era towards agents, the other way round: declarations, asks and answers as lines.

Source: MCP 2025-11-25, basic/lifecycle, client/sampling, client/elicitation.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_broker.core.model.capabilities import Capabilities
from carpool_broker.core.model.effects import SendAsk, SendElicitationComplete, WithdrawAsk
from carpool_broker.core.model.events import AskAnswered, AskProgressed, InitializeRequested, RootsAnswered
from carpool_broker.era import handshake, server_requests
from carpool_protocol.ids import ABSENT, AskId, RawJson, ServerName, SessionId
from carpool_protocol.link.messages import Root
from carpool_protocol.wire.json_scan import MAX_PARTS
from carpool_protocol.wire.lines import OverlongLine
from tests.behaviours import behaviour

ME = SessionId("s1")
ASK = AskId("life-1")
NONE = Capabilities()


def read(text: bytes) -> handshake.LineMeaning:
    return handshake.read_line(ME, b'{"jsonrpc":"2.0",' + text + b"}")


def declared(capabilities: str, version: str = "2025-11-25") -> Capabilities:
    line = b'"id":1,"method":"initialize","params":{"protocolVersion":"%b","capabilities":%b,"clientInfo":{}}'
    found = read(line % (version.encode(), capabilities.encode()))
    assert isinstance(found, InitializeRequested)
    return found.capabilities


# --- declarations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("{}", NONE),
        ('{"sampling":{}}', Capabilities(sampling=True)),
        ('{"sampling":{"tools":{},"context":{}}}', Capabilities(sampling=True, sampling_tools=True)),
        ('{"elicitation":{}}', Capabilities(form=True)),
        ('{"elicitation":{"form":{}}}', Capabilities(form=True)),
        ('{"elicitation":{"url":{}}}', Capabilities(url=True)),
        ('{"elicitation":{"form":{"applyDefaults":true},"url":{}}}', Capabilities(form=True, url=True)),
        ('{"elicitation":{"applyDefaults":true}}', Capabilities(form=True)),
        ('{"roots":{"listChanged":true}}', Capabilities(roots=True)),
        ('{"experimental":{"sampling":{}},"tasks":{}}', NONE),
    ],
)
def test_declared_capabilities_decide_which_asks_an_agent_can_get(said: str, meant: Capabilities) -> None:
    assert declared(said) == meant


@pytest.mark.parametrize(
    "said",
    [
        "null", "[]", '"sampling"', "7", '{"sampling":null,"elicitation":null}', '{"sampling":true}',
        '{"elicitation":[],"roots":"yes"}',
    ],
)  # fmt: skip
def test_a_declaration_of_another_form_greets_all_the_same_and_declares_nothing(said: str) -> None:
    assert declared(said) == NONE


def test_an_agent_that_says_no_capabilities_has_none() -> None:
    found = read(b'"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}')
    assert isinstance(found, InitializeRequested)
    assert found.capabilities == NONE


EVERYTHING = '{"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{}}'


@pytest.mark.parametrize(
    ("version", "meant"),
    [
        ("2024-11-05", Capabilities(sampling=True, roots=True)),
        ("2025-03-26", Capabilities(sampling=True, roots=True)),
        ("2025-06-18", Capabilities(sampling=True, form=True, roots=True)),
        ("2025-11-25", Capabilities(sampling=True, sampling_tools=True, form=True, url=True, roots=True)),
        # Versions that we do not know are answered with the newest.
        ("1.0", Capabilities(sampling=True, sampling_tools=True, form=True, url=True, roots=True)),
    ],
)
def test_a_declaration_that_the_agreed_version_does_not_have_counts_for_nothing(
    version: str, meant: Capabilities
) -> None:
    assert declared(EVERYTHING, version) == meant


def test_in_the_version_before_modes_every_declaration_of_elicitation_is_of_forms() -> None:
    assert declared('{"elicitation":{"url":{}}}', "2025-06-18") == Capabilities(form=True)


# --- answers ---------------------------------------------------------------------------------------------


@behaviour("asks:answered-back")
def test_an_answer_is_read_with_its_id_decoded_and_its_body_untouched() -> None:
    assert read(b'"id":"life-1","result":{"a" : 1.0}') == AskAnswered(
        ME, ASK, is_error=False, body=RawJson(b'{"a" : 1.0}')
    )
    assert read(b'"id":"l\\u0069fe-1","error":{"code":-1,"message":"no"}') == AskAnswered(
        ME, ASK, is_error=True, body=RawJson(b'{"code":-1,"message":"no"}')
    )


@pytest.mark.parametrize("raw_id", [b"1", b"1.0", b"null", b"true", b'"\\ud800"'])
def test_an_answer_under_an_id_of_another_sort_is_to_nothing_that_was_asked(raw_id: bytes) -> None:
    assert read(b'"id":%b,"result":{}' % raw_id) is None
    assert read(b'"id":%b,"error":{"code":1,"message":"m"}' % raw_id) is None
    assert read(b'"id":%b,"result":{},"error":{}' % raw_id) is None


@behaviour("roots:of-the-agent")
def test_an_answer_to_what_asks_for_roots_says_them_or_that_the_agent_cannot_tell() -> None:
    ask = AskId("roots-7")
    said = b'{"roots":[{"uri":"file:///a","name":"a"},{"uri":"https://x/"}]}'
    assert read(b'"id":"roots-7","result":%b' % said) == RootsAnswered(ME, ask, (Root("file:///a", "a"),))
    assert read(b'"id":"roots-7","result":{"roots":[]}') == RootsAnswered(ME, ask, ())
    for line in (
        b'"result":{}',
        b'"result":7',
        b'"error":{"code":-32601,"message":"m"}',
        b'"result":{},"error":{}',
        b'"result":{"roots":[%b]}' % b",".join([b"{}"] * MAX_PARTS),
    ):
        assert read(b'"id":"roots-7",%b' % line) == RootsAnswered(ME, ask, None)
    long = OverlongLine(id=RawJson(b'"roots-7"'), is_answer=True, size_bytes=99)
    assert handshake.read_overlong(ME, long, 10) == RootsAnswered(ME, ask, None)


def error_of(meaning: handshake.LineMeaning) -> dict[str, Any]:
    assert isinstance(meaning, AskAnswered)
    assert (meaning.session, meaning.ask, meaning.is_error) == (ME, ASK, True)
    error: dict[str, Any] = json.loads(meaning.body)
    return error


def test_an_answer_that_cannot_be_passed_on_becomes_an_error_so_that_nobody_waits_for_it() -> None:
    assert error_of(read(b'"id":"life-1","result":{},"error":{"code":1,"message":"m"}'))["code"] == -32603
    long = OverlongLine(id=RawJson(b'"life-1"'), is_answer=True, size_bytes=99)
    error = error_of(handshake.read_overlong(ME, long, 10))
    assert "99 bytes" in error["message"]
    lost = OverlongLine(id=None, is_answer=True, size_bytes=99)
    assert handshake.read_overlong(ME, lost, 10) is None


def test_answers_in_a_batch_are_read_like_any_other() -> None:
    answer = b'{"jsonrpc":"2.0","id":"life-1","result":{}}'
    found = handshake.read_line(ME, b"[" + answer + b"]")
    assert isinstance(found, handshake.LineBatch)
    assert isinstance(handshake.read_line(ME, found.lines[0]), AskAnswered)


@behaviour("asks:progress")
def test_progress_under_a_token_that_is_a_string_is_progress_of_an_ask() -> None:
    line = b'"method":"notifications/progress","params":{"progressToken":%b,"progress":1,"x":[1.0]}'
    assert read(line % b'"life-1"') == AskProgressed(ME, ASK, RawJson(b'{"progress":1,"x":[1.0]}'))
    assert read(line % b"1") is None
    assert read(b'"method":"notifications/progress","params":{"progress":1}') is None
    assert read(b'"method":"notifications/progress"') is None


# --- asks ------------------------------------------------------------------------------------------------


def send(params: bytes, *, wants_progress: bool = False, version: str = "2025-11-25") -> bytes | AskAnswered:
    return server_requests.ask_line(
        SendAsk(ME, ASK, "elicitation/create", RawJson(params), wants_progress, version)
    )


def asked(params: bytes, *, wants_progress: bool = False, version: str = "2025-11-25") -> dict[str, Any]:
    line = send(params, wants_progress=wants_progress, version=version)
    assert isinstance(line, bytes)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    message: dict[str, Any] = json.loads(line)
    return message


@behaviour("asks:named")
def test_a_question_with_too_many_members_to_be_named_is_refused_in_place_of_the_agent() -> None:
    more = b"".join(b',"m%d":0' % n for n in range(1001))
    params = RawJson(b'{"message":"Token?"%b}' % more)
    effect = SendAsk(ME, ASK, "elicitation/create", params, False, "2025-11-25", server=ServerName("weather"))
    refused = server_requests.ask_line(effect)
    assert isinstance(refused, AskAnswered)
    assert (refused.ask, refused.is_error) == (ASK, True)


@behaviour("asks:named")
def test_an_agent_that_sees_several_servers_reads_which_of_them_asks() -> None:
    effect = SendAsk(
        ME, ASK, "elicitation/create", RawJson(b'{"message":"Token?"}'), False, "2025-11-25",
        server=ServerName("weather"),
    )  # fmt: skip
    line = server_requests.ask_line(effect)
    assert isinstance(line, bytes)
    said = json.loads(line)["params"]
    assert said == {"message": "[weather] Token?", "_meta": {"carpool/server": "weather"}}


@behaviour("asks:own-agent")
def test_an_ask_is_a_request_with_the_asks_own_id_and_the_params_as_they_are() -> None:
    params = b'{"message" : "?","_meta":{"x":1.0}}'
    assert send(params) == (
        b'{"jsonrpc":"2.0","id":"life-1","method":"elicitation/create","params":' + params + b"}\n"
    )


@pytest.mark.parametrize(
    ("params", "meta"),
    [
        (b'{"message":"?"}', {"progressToken": "life-1"}),
        (b'{"message":"?","_meta":{}}', {"progressToken": "life-1"}),
        (b'{"message":"?","_meta":{"x":[1]}}', {"progressToken": "life-1", "x": [1]}),
        (b'{"message":"?","_meta":{"progressToken":7,"x":[1]}}', {"progressToken": "life-1", "x": [1]}),
    ],
)
def test_an_ask_that_wants_progress_says_its_own_id_as_the_token(params: bytes, meta: dict[str, Any]) -> None:
    message = asked(params, wants_progress=True)
    assert message["params"] == {"message": "?", "_meta": meta}


def test_params_that_cannot_be_cut_are_asked_without_a_token() -> None:
    assert asked(b'{"message":"?","_META":{}}', wants_progress=True)["params"] == {
        "message": "?",
        "_META": {},
    }
    assert "params" not in asked(ABSENT)


FORM = b'{"message":"?","requestedSchema":{"type":"object","properties":{"m":{"type":"array"}}%b}}'


@behaviour("downgrade:asks")
def test_an_ask_is_worded_for_the_agents_version_whether_it_wants_progress_or_not() -> None:
    form = FORM % b""
    for wants_progress in (False, True):
        seen = asked(form, wants_progress=wants_progress, version="2025-06-18")["params"]
        assert seen["requestedSchema"] == {"type": "object", "properties": {}}
        assert ("_meta" in seen) == wants_progress
    assert asked(form)["params"] == json.loads(form)


@behaviour("downgrade:asks", "asks:never-left-waiting")
def test_an_ask_that_the_agents_version_cannot_express_is_answered_with_an_error() -> None:
    form = FORM % b',"required":["m"]'
    instead = send(form, version="2025-06-18")
    assert not isinstance(instead, bytes)
    assert error_of(instead)["code"] == -32602
    assert isinstance(send(form), bytes)


def test_a_withdrawal_names_the_ask_and_the_end_of_an_elicitation_its_params() -> None:
    line = json.loads(server_requests.withdraw_line(WithdrawAsk(ME, ASK, 'over "there"')))
    assert line == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": "life-1", "reason": 'over "there"'},
    }
    done = json.loads(
        server_requests.elicitation_complete_line(
            SendElicitationComplete(ME, RawJson(b'{"elicitationId":"e"}'))
        )
    )
    assert done == {
        "jsonrpc": "2.0",
        "method": "notifications/elicitation/complete",
        "params": {"elicitationId": "e"},
    }


@behaviour("asks:ids:hostile")
@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40), st.booleans())
def test_no_answer_and_no_declaration_of_an_agent_raises(some: bytes, answer: bool) -> None:
    some = some.replace(b"\n", b" ")
    if answer:
        read(b'"id":%b,"result":{}' % some)
        read(b'"id":"a","error":%b' % some)
        read(b'"method":"notifications/progress","params":{"progressToken":%b}' % some)
    else:
        read(b'"id":1,"method":"initialize","params":{"capabilities":%b}' % some)
        read(b'"id":1,"method":"initialize","params":{"capabilities":{"elicitation":%b}}' % some)
