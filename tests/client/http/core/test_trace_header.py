"""The header `traceparent`: it counts where the body has none, and changes nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.http.core import trace_header
from carpool.http.core.body import ClientMessage, read_body
from carpool.http.core.trace_header import with_trace_header
from tests.behaviours import behaviour

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = CONTEXT.replace("0af", "1af")


def message(line: bytes) -> ClientMessage:
    found = read_body(line)
    assert isinstance(found, ClientMessage)
    return found


def call(**params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": params}).encode()


@behaviour("traces:header")
@pytest.mark.parametrize("meta", [{}, {"_meta": {}}, {"_meta": {"progressToken": 7}}])
def test_a_header_becomes_the_context_of_the_call(meta: dict[str, object]) -> None:
    given_ = message(call(name="x", arguments={"a": "ü\u2028"}, **meta))
    found = with_trace_header(given_, CONTEXT)
    before, after = json.loads(given_.line), json.loads(found.line)
    assert after["params"].pop("_meta") == {**before["params"].pop("_meta", {}), "traceparent": CONTEXT}
    assert before == after
    assert json.loads(found.params)["name"] == "x"
    assert message(found.line) == found


@behaviour("traces:header")
@pytest.mark.parametrize(
    ("line", "header"),
    [
        (call(name="x"), None),
        (call(name="x"), "00-nonsense"),
        (call(name="x"), CONTEXT + ", " + CONTEXT),
        (call(name="x", _meta={"traceparent": OTHER}), CONTEXT),
        (call(name="x", _meta=7), CONTEXT),
        (call(name="x", _meta={"\ud800": 1}), CONTEXT),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', CONTEXT),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}', CONTEXT),
        (b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}', CONTEXT),
    ],
)
def test_other_messages_stay_as_they_are(line: bytes, header: str | None) -> None:
    assert with_trace_header(message(line), header) == message(line)


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_any_arguments_and_meta_come_through(arguments: dict[str, str], meta: dict[str, str]) -> None:
    meta.pop("traceparent", None)
    line = call(name="x", arguments=arguments, _meta=meta)
    found = json.loads(with_trace_header(message(line), CONTEXT).line)["params"]
    assert found["arguments"] == arguments
    assert found["_meta"] == {**meta, "traceparent": CONTEXT}


@behaviour("traces:header")
def test_a_call_with_long_arguments_is_not_cut_by_the_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(raw: bytes) -> None:
        raise AssertionError(f"{len(raw)} bytes are scanned")

    monkeypatch.setattr(trace_header, "fields", scan)
    line = call(name="x", arguments={"a": [[]] * 50_000}, _meta={"progressToken": 7})
    found = json.loads(with_trace_header(message(line), CONTEXT).line)["params"]
    assert found["_meta"] == {"progressToken": 7, "traceparent": CONTEXT}
    assert len(found["arguments"]["a"]) == 50_000


@behaviour("traces:header")
@pytest.mark.parametrize("where", ["params", "_meta"])
def test_a_call_with_very_many_members_stays_as_it_is(where: str) -> None:
    many = dict.fromkeys(map(str, range(20_000)), 1)
    line = call(name="x", **many) if where == "params" else call(name="x", _meta=many)
    assert with_trace_header(message(line), CONTEXT) == message(line)


@behaviour("traces:header")
def test_half_of_a_surrogate_pair_in_the_arguments_stays() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"a":"\\ud83d"}}}'
    found = with_trace_header(message(line), CONTEXT)
    assert json.loads(found.params) == {
        "name": "x",
        "arguments": {"a": "\ud83d"},
        "_meta": {"traceparent": CONTEXT},
    }
