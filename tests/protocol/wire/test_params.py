"""Params taken apart and put together: nothing of an agent's is lost, nothing is read in two ways."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson
from carpool_protocol.wire import params as cut
from carpool_protocol.wire.jsonrpc import Request, decode
from carpool_protocol.wire.params import (
    CallParams,
    ParamsError,
    call_params,
    capitalized_sentence,
    split_call,
    split_call_line,
)
from tests.behaviours import behaviour

any_text = st.text(st.characters(exclude_categories=()), max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(any_text, json_values, max_size=4)
quick = settings(deadline=None, max_examples=150)


def raw(value: Any) -> RawJson:
    return RawJson(json.dumps(value).encode())


def without_stray(found: dict[str, Any], *own: str) -> dict[str, Any]:
    return {
        key: value for key, value in found.items() if key.casefold() not in {name.casefold() for name in own}
    }


# --- tools/call ------------------------------------------------------------------------------------------


def test_a_call_is_cut_into_name_rest_meta_and_token() -> None:
    params = RawJson(b'{"name":"a.b","arguments":{"x": 1.0, "x":2},"_meta":{"progressToken":"7","t":[1]}}')
    assert split_call(params) == CallParams(
        "a.b", RawJson(b'{"arguments":{"x": 1.0, "x":2}}'), RawJson(b'{"t":[1]}'), RawJson(b'"7"')
    )


def test_what_is_absent_stays_absent() -> None:
    assert split_call(RawJson(b'{"name":"a"}')) == CallParams("a", EMPTY_OBJECT, ABSENT, ABSENT)
    assert split_call(RawJson(b'{"name":"a","_meta":{}}')) == CallParams(
        "a", EMPTY_OBJECT, EMPTY_OBJECT, ABSENT
    )
    assert split_call(RawJson(b'{"name":"a","_meta":null}')) == CallParams("a", EMPTY_OBJECT, ABSENT, ABSENT)


def test_every_field_of_the_specification_and_unknown_ones_survive() -> None:
    rest: dict[str, Any] = {
        "arguments": None,
        "inputResponses": {"a": {}},
        "requestState": "s",
    }
    for more in ({}, {"new": [1]}, {"half": "\ud83d", "\ud83d": 1}):
        split = split_call(raw({"name": "a", **rest, **more}))
        assert isinstance(split, CallParams)
        assert json.loads(split.rest) == {**rest, **more}


@behaviour("tasks:hidden")
@pytest.mark.parametrize("more", [{}, {"new": 1}])
def test_a_call_that_wants_to_be_a_task_is_an_ordinary_call(more: dict[str, Any]) -> None:
    split = split_call(raw({"name": "a", "arguments": {"task": 1}, "task": {"ttl": 1}, **more}))
    assert isinstance(split, CallParams)
    assert json.loads(split.rest) == {"arguments": {"task": 1}, **more}


@pytest.mark.parametrize(
    "token",
    [
        b"7",
        b"-1",
        b"123456789012345678901234567890",
        b'"7"',
        b'""',
        b'"\\ud83d"',
        b"1" * 1024,
        b'"%b"' % (b"1" * 1022),
    ],
)
def test_a_token_keeps_its_type_and_its_bytes(token: bytes) -> None:
    for template in (
        b'{"name":"a","_meta":{"progressToken":%b}}',
        b'{"name":"a","_meta":{"progressToken":%b,"other":1}}',
        b'{"name":"a","_meta":{ "progressToken" : %b }}',
    ):
        split = split_call(RawJson(template % token))
        assert isinstance(split, CallParams)
        assert split.token == token
        assert "progressToken" not in split.meta.decode()


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b"{}",
        b'{"name":5}',
        b'{"name":null}',
        b'{"name":"\\ud83d"}',
        b'{"name":"a","_meta":5}',
        b'{"name":"a","_meta":[]}',
        b'{"name":"a","_meta":{"progressToken":1.5}}',
        b'{"name":"a","_meta":{"progressToken":1e3}}',
        b'{"name":"a","_meta":{"progressToken":true}}',
        b'{"name":"a","_meta":{"progressToken":{}}}',
        b'{"name":"a","_meta":{"progressToken":[1],"x":1}}',
        b'{"name":"a","_meta":{"progressToken":%b}}' % (b"1" * 1025),
        b'{"name":"a","_meta":{"progressToken":"%b"}}' % (b"1" * 1023),
        b'{"name":"a","_meta":{"progressToken":"%b","x":1}}' % (b"1" * 1023),
    ],
)
def test_params_that_are_no_call_are_refused(params: bytes) -> None:
    assert isinstance(split_call(RawJson(params)), ParamsError)


def test_a_refusal_quotes_no_value() -> None:
    for params in (b'{"name":["secret"]}', b'{"name":"a","_meta":{"progressToken":["secret"]}}', b'"secret"'):
        split = split_call(RawJson(params))
        assert isinstance(split, ParamsError)
        assert "secret" not in split.text


def test_arguments_with_half_a_surrogate_pair_pass_byte_for_byte() -> None:
    arguments = b'{"cut": "\\ud83d", "x" :[1.0,\'\\\\ud83d"]}'.replace(b"'", b'"')
    split = split_call(RawJson(b'{"_meta":{"progressToken":3},"arguments": %b ,"name":"a"}' % arguments))
    assert split == CallParams("a", RawJson(b'{"arguments":%b}' % arguments), EMPTY_OBJECT, RawJson(b"3"))


# --- no second reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [b"", b',"unknown":1', b',"half":"\\ud83d"'])
def test_a_double_leaves_once_and_as_we_read_it(more: bytes) -> None:
    params = RawJson(
        b'{"name":"safe","n\\u0061me":"last","arguments":{"a":1},"arguments":{"a":2},'
        b'"_meta":{"progressToken":1,"progressToken":2,"k":1,"k":2},"_meta":{"progressToken":3,"k":4,"k":5}%b}'
        % more
    )
    split = split_call(params)
    assert isinstance(split, CallParams)
    assert (split.name, split.token) == ("last", b"3")
    pairs = json.loads(
        call_params("wire", split.rest, split.meta, RawJson(b"99")), object_pairs_hook=lambda pairs: pairs
    )
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys))
    assert dict(pairs)["name"] == "wire"
    assert dict(pairs)["arguments"] == [("a", 2)]
    assert dict(pairs)["_meta"] == [("progressToken", 99), ("k", 5)]


@pytest.mark.parametrize(
    "params",
    [
        b'{"name":"a","Name":"b"}',
        b'{"NAME":"b","name":"a","x":"\\ud83d"}',
        b'{"name":"a","_Meta":{"progressToken":1}}',
        b'{"name":"a","Arguments":{}}',
        b'{"name":"a","argument\xc5\xbf":{}}',
        b'{"name":"a","_meta":{"ProgressToken":1}}',
        b'{"name":"a","_meta":{"progressToken":1,"progressTo\xe2\x84\xaaen":2}}',
    ],
)
def test_a_key_that_is_ours_but_for_its_case_is_refused(params: bytes) -> None:
    split = split_call(RawJson(params))
    assert isinstance(split, ParamsError)
    assert "case" in split.text
    other = cut.split_meta(RawJson(params))
    assert isinstance(other, ParamsError)


def test_a_case_variant_in_a_large_call_is_refused_too() -> None:
    params = b'{"name":"a","Name":"b","arguments":{"x":"%b"}}' % (b"x" * 100_000)
    assert isinstance(split_call(RawJson(params)), ParamsError)


def test_thousands_of_unknown_fields_are_refused() -> None:
    for value in (b"0", b'"\\ud83d"'):
        many = b",".join(b'"k%d":%b' % (n, value) for n in range(2000))
        assert isinstance(split_call(RawJson(b'{"name":"a",%b}' % many)), ParamsError)


# --- together again --------------------------------------------------------------------------------------


@quick
@given(
    any_text.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)),
    objects,
    objects | st.none(),
    any_text | st.integers() | st.none(),
)
@example("n", {"arguments": {}}, None, None)
@example("n", {}, {}, 0)
def test_apart_and_together_is_the_same_call(
    name: str, rest: dict[str, Any], meta: dict[str, Any] | None, token: str | int | None
) -> None:
    rest = without_stray(rest, "name", "_meta", "arguments", "uri", "task")  # `task` is dropped
    sent: dict[str, Any] = {"name": name, **rest}
    if meta is not None or token is not None:
        sent["_meta"] = without_stray(meta or {}, "progressToken")
        if token is not None:
            sent["_meta"] = {"progressToken": token, **sent["_meta"]}
    split = split_call(raw(sent))
    assert isinstance(split, CallParams)
    assert json.loads(call_params(split.name, split.rest, split.meta, split.token)) == sent
    other = cut.split_meta(raw(sent))
    assert not isinstance(other, ParamsError)
    assert json.loads(cut.meta_params(*other)) == sent


@quick
@given(objects | st.none())
def test_arguments_pass_byte_for_byte(arguments: Any) -> None:
    for more in ({}, {"unknown": "\ud83d"}):
        split = split_call(raw({"name": "a", "arguments": arguments, **more}))
        assert isinstance(split, CallParams)
        assert split.rest.startswith(b'{"arguments":' + raw(arguments))


@behaviour("lines:arguments")
@pytest.mark.parametrize("arguments", [b"5", b'"{}"', b"[]", b"[{}]", b"true", b"-1", b'"\\ud83d"'])
@pytest.mark.parametrize(
    "more", [b"", b',"requestState":"s"', b',"unknown":1', b',"_meta":{"progressToken":1}']
)
def test_arguments_that_are_no_object_are_refused(arguments: bytes, more: bytes) -> None:
    split = split_call(RawJson(b'{"name":"a","arguments":%b%b}' % (arguments, more)))
    assert split == ParamsError("arguments must be an object")


def test_without_token_and_meta_there_is_no_meta() -> None:
    assert call_params("a", RawJson(b'{"arguments":{}}'), ABSENT, ABSENT) == b'{"name":"a","arguments":{}}'
    assert call_params("a", EMPTY_OBJECT, ABSENT, ABSENT) == b'{"name":"a"}'
    assert (
        call_params("a", RawJson(b"{ }"), ABSENT, RawJson(b"5"))
        == b'{"name":"a","_meta":{"progressToken":5}}'
    )


def test_other_requests_keep_their_name_in_the_rest() -> None:
    params = RawJson(b'{"name":"p","arguments":{"a":"b"},"_meta":{"progressToken":1,"x":2}}')
    assert cut.split_meta(params) == (b'{"name":"p","arguments":{"a":"b"}}', b'{"x":2}', b"1")
    assert cut.split_meta(ABSENT) == (ABSENT, ABSENT, ABSENT)
    assert cut.meta_params(ABSENT, ABSENT, ABSENT) == ABSENT
    assert cut.meta_params(ABSENT, ABSENT, RawJson(b"1")) == b'{"_meta":{"progressToken":1}}'
    assert isinstance(cut.split_meta(RawJson(b"[1]")), ParamsError)


# --- cancelled, progress, lists --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (b'{"requestId":5,"reason":"user"}', (b"5", "user")),
        (b'{"requestId":"5","_meta":{}}', (b'"5"', "")),
        (b'{"requestId":-1.0,"reason":7}', (b"-1.0", "")),
        (b'{"requestId":"\\ud83d","reason":"\\ud83d"}', (b'"\\ud83d"', "")),
        (b'{"requestId":null}', (None, "")),
        (b'{"requestId":"%b"}' % (b"x" * 1022), (b'"%b"' % (b"x" * 1022), "")),
        (b'{"requestId":"%b"}' % (b"x" * 1023), (None, "")),
        (b'{"requestId":[5]}', (None, "")),
        (b"{}", (None, "")),
        (b"[]", (None, "")),
        (b"", (None, "")),
    ],
)
def test_a_cancel_names_its_request(params: bytes, expected: tuple[bytes | None, str]) -> None:
    assert cut.split_cancelled(RawJson(params)) == expected


def test_progress_is_given_another_token_and_nothing_else() -> None:
    for more in (b"", b',"_meta":{"x":1}', b',"half":"\\ud83d"'):
        body = b'"progress":0.50,"total":1,"message":"a\\nb"' + more
        split = cut.split_progress(RawJson(b'{"progressToken":7,%b}' % body))
        assert not isinstance(split, ParamsError)
        token, rest = split
        assert (token, rest) == (b"7", b"{%b}" % body)
        expected = b'{"progressToken":"mine",%b}}\n' % body
        assert cut.progress_line(RawJson(b'"mine"'), rest) == (
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":' + expected
        )
    assert cut.progress_line(RawJson(b"1"), EMPTY_OBJECT).endswith(b'"params":{"progressToken":1}}\n')


@pytest.mark.parametrize(
    "params",
    [
        b"",
        b"[]",
        b'{"progress":1}',
        b'{"progressToken":null,"progress":1}',
        b'{"progressToken":[7],"progress":1}',
        b'{"progressToken":7,"ProgressToken":8,"progress":1}',
    ],
)
def test_progress_without_a_clear_token_is_refused(params: bytes) -> None:
    assert isinstance(cut.split_progress(RawJson(params)), ParamsError)


@pytest.mark.parametrize(
    ("params", "cursor"),
    [(b"", None), (b"{}", None), (b'{"cursor":null}', None), (b'{"cursor":"c1","_meta":{}}', "c1")],
)
def test_a_list_request_says_where_to_go_on(params: bytes, cursor: str | None) -> None:
    assert cut.list_params(RawJson(params)) == cursor


def test_a_cursor_that_is_no_text_is_refused() -> None:
    for params in (b'{"cursor":5}', b'{"cursor":"\\ud83d"}', b"[]"):
        assert isinstance(cut.list_params(RawJson(params)), ParamsError)


# --- tool definitions ------------------------------------------------------------------------------------


def test_a_tool_gets_its_name_and_prefix_and_keeps_every_other_byte() -> None:
    before = b'{ "title" : "T", "name" :"old" ,"inputSchema":{"name":1.0,"description":"in"},'
    definition = RawJson(before + b'"description":"Says \\ud83d.", "x":1 }')
    assert cut.rewrite_tool(definition, name='s__"t', description_prefix='["s"] ') == (
        before.replace(b'"old"', b'"s__\\"t"') + b'"description":"[\\"s\\"] Says \\ud83d.", "x":1 }'
    )
    assert cut.rewrite_tool(definition, name="old", description_prefix="") == definition


def test_a_tool_without_description_gets_the_prefix_as_one() -> None:
    tool = cut.rewrite_tool(RawJson(b'{"name":"a","inputSchema":{}}'), name="s__a", description_prefix="[s] ")
    assert json.loads(tool) == {"name": "s__a", "inputSchema": {}, "description": "[s]"}


def test_a_tool_has_one_name_whoever_reads_it() -> None:
    definition = RawJson(b'{"name":"a","Name":"github__search","n\\u0061me":"b"}')
    values = json.loads(
        cut.rewrite_tool(definition, name="s__a", description_prefix=""),
        object_pairs_hook=lambda pairs: pairs,
    )
    assert {value for _, value in values} == {"s__a"}


@pytest.mark.parametrize("definition", [b"", b"[]", b"null", b"{}", b" { } ", b'{"description":5}'])
def test_a_tool_that_is_hardly_one_still_becomes_an_object_with_the_name(definition: bytes) -> None:
    for prefix in ("", "[s] "):
        tool = json.loads(cut.rewrite_tool(RawJson(definition), name="s__a", description_prefix=prefix))
        assert tool["name"] == "s__a"


# --- any input -------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    [
        *(
            b'"name"',
            b'"_meta"',
            b'"progressToken"',
            b'"arguments"',
            b'"cursor"',
            b'"requestId"',
            b'"x"',
            b"null",
        ),
        *(
            b"{",
            b"}",
            b"[",
            b"]",
            b":",
            b",",
            b'"',
            b"\\",
            b"\\ud83d",
            b"1",
            b"\xff",
            b'{"name":"a",',
            b'"_meta":{',
        ),
    ]
)


@quick
@given(st.binary(max_size=60) | st.lists(pieces, max_size=20).map(b"".join) | json_values.map(raw))
@example(b'{"name":"\xff"}')
@example(b'{"\xff":1,"name":"a"}')
@example(b"[" * 5000)
@example(b'{"name":"a","_meta":' + b"[" * 5000)
def test_no_bytes_raise(params: bytes) -> None:
    for split in (split_call, cut.split_meta, cut.split_cancelled, cut.split_progress, cut.list_params):
        split(RawJson(params))
    cut.rewrite_tool(RawJson(params), name="n", description_prefix="p ")


USUAL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","arguments":{"k":"\xc3\xa9"}}}'


def test_a_usual_call_line_is_read_at_once() -> None:
    assert split_call_line(USUAL) == (
        b"7",
        CallParams("a", RawJson(b'{"arguments":{"k":"\xc3\xa9"}}'), ABSENT, ABSENT),
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        USUAL[:-1],
        USUAL + b"{}",
        b"[" + USUAL + b"]",
        USUAL.replace(b"2.0", b"1.0"),
        USUAL.replace(b"tools/call", b"tools/list"),
        USUAL.replace(b'"id":7,', b""),
        USUAL.replace(b"7", b"null"),
        USUAL.replace(b"7", b"[7]"),
        USUAL.replace(b"7", b'7,"result":1'),
        USUAL.replace(b"7", b'7,"error":null'),
        USUAL.replace(b'"k":', b'"k":\r'),
        USUAL.replace(b"\xc3", b""),
        USUAL.replace(b"arguments", b"Name"),
        USUAL.replace(b'"name":"a"', b'"name":7'),
    ],
)
def test_any_other_line_is_left_to_decode(line: bytes) -> None:
    assert split_call_line(line) is None


line_pieces = st.sampled_from(
    [b'"jsonrpc":"2.0"', b'"id":1', b'"id":"x"', b'"id":null', b'"id":{}']
    + [b'"method":"tools/call"', b'"method":"ping"', b'"result":{}', b'"error":null', b'"other":1']
    + [
        b'"params":' + params
        for params in (
            b'{"name":"a"}',
            b'{"name":"a","arguments":{"b":1}}',
            b'{"name":"a","arguments":"\xff"}',
            b'{"name":"a","arguments":[1,\r2]}',
            b'{"name":"a","_meta":{"progressToken":3}}',
            b'{"name":"a","_meta":[]}',
            b'{"name":"a","more":1}',
            b'{"name":"\xff"}',
            b"null",
            b"[]",
        )
    ]
)


@settings(deadline=None, max_examples=500)
@given(st.lists(line_pieces, min_size=2, max_size=7))
@example([b'"jsonrpc":"2.0"', b'"method":"tools/call"', b'"id":1', b'"params":{"name":"a"}'])
def test_a_call_line_read_at_once_says_what_the_long_way_says(pieces_of_line: list[bytes]) -> None:
    line = b"{" + b",".join(pieces_of_line) + b"}"
    at_once = split_call_line(line)
    if at_once is not None:
        message = decode(line)
        assert type(message) is Request
        assert message.method == "tools/call"
        assert at_once == (message.id, split_call(message.params))


@pytest.mark.parametrize(
    ("clause", "said"),
    [
        ("a ref has a name", "A ref has a name."),
        ("prompts/get needs a string name.", "prompts/get needs a string name."),
        ("a ref/prompt has a name", "A ref/prompt has a name."),
    ],
)
def test_a_clause_becomes_a_sentence_and_the_name_of_a_method_keeps_its_small_letter(
    clause: str, said: str
) -> None:
    assert (capitalized_sentence(clause), ParamsError(clause).sentence) == (said, said)
