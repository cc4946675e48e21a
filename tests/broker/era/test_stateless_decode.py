"""The stateless era towards agents: lines in, events out. Source: MCP 2026-07-28."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool_broker.core.model.capabilities import Capabilities, StatelessAgent
from carpool_broker.core.model.events import (
    BadLineReceived,
    BrokerEvent,
    CallRequested,
    DiscoverRequested,
    InitializeRequested,
    InputResponse,
    ListenRequested,
    ListPageRequested,
    RequestCancelled,
)
from carpool_broker.era import handshake, stateless_decode
from carpool_broker.era.handshake import ControlRequested, LineBatch, UnservableLine
from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, RawJson, SessionId
from carpool_protocol.machine.journal import Journal
from carpool_protocol.wire.json_scan import MAX_PARTS
from carpool_protocol.wire.lines import OverlongLine
from carpool_protocol.wire.log_levels import LEVELS

ME = SessionId("s1")
ONE = RawJson(b"1")
PREFIX = "io.modelcontextprotocol/"
VERSION, CAPABILITIES = PREFIX + "protocolVersion", PREFIX + "clientCapabilities"
INFO, LEVEL = PREFIX + "clientInfo", PREFIX + "logLevel"
META: dict[str, Any] = {VERSION: "2026-07-28", CAPABILITIES: {}}
TRACE = f"00-{'a' * 32}-{'b' * 16}-01"

SUBJECTS: dict[str, dict[str, Any]] = {
    "tools/call": {"name": "t"},
    "prompts/get": {"name": "p"},
    "resources/read": {"uri": "u:/"},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "p"}},
}
REMOVED = [
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/result",
    "tasks/list",
]


def line(method: str, params: dict[str, Any] | None = None, raw_id: bytes = b"1") -> bytes:
    said = b"" if params is None else b',"params":' + json.dumps(params).encode()
    return b'{"jsonrpc":"2.0","id":%b,"method":%b%b}' % (raw_id, json.dumps(method).encode(), said)


def read(method: str, *, shared: bool = False, meta: Any = META, **params: Any) -> handshake.LineMeaning:
    return handshake.read_line(ME, line(method, {**params, "_meta": meta}), shared=shared)


def error(meaning: handshake.LineMeaning, raw_id: bytes = b"1") -> dict[str, Any]:
    assert isinstance(meaning, UnservableLine), meaning
    assert meaning.about == raw_id
    assert meaning.line.startswith(b'{"jsonrpc":"2.0","id":%b,"error":' % raw_id)
    return json.loads(meaning.line)["error"]  # type: ignore[no-any-return]


# --- which era -------------------------------------------------------------------------------------------


def test_each_request_says_for_itself_which_era_it_is_of() -> None:
    modern = read("tools/call", name="t")
    assert isinstance(modern, CallRequested)
    assert modern.by == StatelessAgent()
    legacy = handshake.read_line(ME, line("tools/call", {"name": "t"}))
    assert isinstance(legacy, CallRequested)
    assert legacy.by is None
    assert handshake.read_line(ME, line("tools/list")) == ListPageRequested(ME, ONE, None)


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "resources/read"])
@pytest.mark.parametrize(
    "key", [rb"io.modelcontextprotocol\/protocolVersion", rb"io.modelcontextprotocol/protocol\u0056ersion"]
)
def test_the_version_is_found_however_its_key_is_escaped(method: str, key: bytes) -> None:
    text = line(method, {"name": "t", "uri": "u:/", "_meta": META}).replace(VERSION.encode(), key)
    meaning = handshake.read_line(ME, text)
    assert isinstance(meaning, CallRequested | ListPageRequested)
    assert meaning.by is not None
    assert not isinstance(meaning, CallRequested) or meaning.meta == ABSENT


@pytest.mark.parametrize("method", ["tools/call", "tools/list"])
def test_a_version_named_elsewhere_than_in_meta_means_nothing(method: str) -> None:
    elsewhere = {"name": "t", "arguments": META, "_meta": {"x": META, "y": VERSION}}
    meaning = handshake.read_line(ME, line(method, elsewhere))
    assert isinstance(meaning, CallRequested | ListPageRequested)
    assert meaning.by is None


def test_initialize_begins_the_other_era_whatever_its_meta_says() -> None:
    assert isinstance(read("initialize", protocolVersion="2025-11-25"), InitializeRequested)


def test_discover_is_of_this_era_also_without_meta() -> None:
    assert error(handshake.read_line(ME, line("server/discover")))["code"] == -32602
    assert read("server/discover") == DiscoverRequested(ME, ONE, StatelessAgent())


def test_on_a_shared_session_every_request_is_of_this_era_and_nothing_else_counts() -> None:
    for method in ("tools/call", "tools/list", "ping", "initialize", "carpool/status"):
        assert error(handshake.read_line(ME, line(method, {"name": "t"}), shared=True))["code"] == -32602
        assert error(handshake.read_line(ME, line(method), shared=True))["code"] == -32602
    for method in ("ping", "initialize", "carpool/status"):
        assert error(read(method, shared=True))["code"] == -32601
    assert isinstance(read("tools/call", shared=True, name="t"), CallRequested)
    for other in (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":""}}',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}',
    ):
        assert handshake.read_line(ME, other, shared=True) is None
    batch = handshake.read_line(ME, b"[" + line("ping") + b"]", shared=True)
    assert isinstance(batch, UnservableLine)
    assert json.loads(batch.line)["error"]["code"] == -32600


def test_an_overlong_request_on_a_shared_session_gets_its_answer_there() -> None:
    long = OverlongLine(size_bytes=99, id=RawJson(b'"a"'), is_answer=False)
    assert error(handshake.read_overlong(ME, long, 9, shared=True), b'"a"')["data"]["code"] == "too_large"
    assert isinstance(handshake.read_overlong(ME, long, 9), BadLineReceived)


def test_a_cancel_is_the_same_in_both_eras() -> None:
    text = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l","reason":"r"}}'
    assert handshake.read_line(ME, text) == RequestCancelled(ME, RawJson(b'"l"'), "r")


# --- what is refused, and in which order -----------------------------------------------------------------


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "server/discover", "nonsense", "ping"])
@pytest.mark.parametrize(
    ("meta", "names"),
    [
        (None, "_meta"),
        (7, "_meta"),
        ([], "_meta"),
        ({}, "protocolVersion"),
        ({CAPABILITIES: {}}, "protocolVersion"),
        ({**META, VERSION: 1}, "protocolVersion"),
        ({**META, VERSION: None}, "protocolVersion"),
        ({VERSION: "2026-07-28"}, "clientCapabilities"),
        ({VERSION: "2026-07-28", CAPABILITIES: []}, "clientCapabilities"),
        ({VERSION: "1999-01-01"}, "clientCapabilities"),
        ({VERSION: "2026-07-28", CAPABILITIES: None}, "clientCapabilities"),
    ],
)
def test_an_incomplete_envelope_is_named_before_anything_else(method: str, meta: Any, names: str) -> None:
    found = error(read(method, shared=True, meta=meta, name="t"))
    assert found["code"] == -32602
    assert names in found["message"]
    if isinstance(meta, dict) and VERSION in meta:
        assert error(read(method, meta=meta, name="t")) == found


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "server/discover", "nonsense", "ping"])
@pytest.mark.parametrize("version", ["2099-01-01", "2025-11-25", ""])
def test_a_version_that_is_not_served_is_refused_before_the_method_is_looked_at(
    method: str, version: str
) -> None:
    found = error(read(method, meta={**META, VERSION: version}))
    assert found["code"] == -32022
    assert found["data"] == {"supported": ["2026-07-28"], "requested": version}


@pytest.mark.parametrize("method", [*REMOVED, "nonsense", "carpool/status", "notifications/cancelled"])
def test_methods_that_this_era_has_not_are_not_found(method: str) -> None:
    assert error(read(method))["code"] == -32601


@pytest.mark.parametrize("level", ["loud", "", 7, [], {}, "INFO"])
def test_a_log_level_that_is_none_is_refused(level: Any) -> None:
    found = error(read("tools/call", name="t", meta={**META, LEVEL: level}))
    assert found["code"] == -32602
    assert "logLevel" in found["message"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": 1}),
        ("tools/call", {"name": "t", "Name": "u"}),
        ("prompts/get", {"name": []}),
        ("resources/read", {}),
        ("completion/complete", {"ref": "x"}),
        ("tools/list", {"cursor": 1}),
        ("tools/call", {"name": "t", "requestState": 1}),
        ("prompts/get", {"name": "p", "requestState": {}}),
        ("tools/call", {"name": "t", "inputResponses": []}),
        ("resources/read", {"uri": "u:/", "inputResponses": "x"}),
        ("tools/call", {"name": "t", "inputResponses": {"a": [0] * (MAX_PARTS + 1)}}),
        ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": []}),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": 1}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [1]}}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [str(n) for n in range(1001)]}}),
    ],
)
def test_params_of_the_wrong_form_are_refused_without_saying_them(
    method: str, params: dict[str, Any]
) -> None:
    assert error(read(method, **params))["code"] == -32602


@pytest.mark.parametrize("name", ["resourceSubscriptions", "taskIds"])
def test_a_listen_with_too_many_parts_is_refused_before_it_is_decoded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stateless_decode, "_read_filter", lambda _: pytest.fail("it is decoded"))
    found = error(read("subscriptions/listen", notifications={name: ["u:/"] * MAX_PARTS}))
    assert found["code"] == -32602
    assert "20,000 parts" in found["message"]


def test_a_bad_progress_token_is_refused() -> None:
    for method, params in SUBJECTS.items():
        assert error(read(method, meta={**META, "progressToken": []}, **params))["code"] == -32602


# --- who asks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "capabilities"),
    [
        ({}, Capabilities()),
        ({"elicitation": {}}, Capabilities(form=True)),
        ({"elicitation": {"form": {}}}, Capabilities(form=True)),
        ({"elicitation": {"url": {}}}, Capabilities(url=True)),
        ({"elicitation": {"form": {}, "url": {}}}, Capabilities(form=True, url=True)),
        ({"sampling": {}}, Capabilities(sampling=True)),
        ({"sampling": {"tools": {}, "context": {}}}, Capabilities(sampling=True, sampling_tools=True)),
        ({"roots": {}}, Capabilities(roots=True)),
        ({"roots": True, "sampling": None, "elicitation": []}, Capabilities()),
    ],
)
def test_a_request_says_what_its_agent_can_be_asked(declared: Any, capabilities: Capabilities) -> None:
    for method, params in [*SUBJECTS.items(), ("tools/list", {}), ("server/discover", {})]:
        meaning = read(method, meta={**META, CAPABILITIES: declared}, **params)
        assert isinstance(meaning, CallRequested | ListPageRequested | DiscoverRequested)
        assert meaning.by == StatelessAgent(capabilities=capabilities)


def test_a_request_says_who_asks_from_which_level_and_whether_it_knows_tasks() -> None:
    tasks: dict[str, Any] = {"extensions": {PREFIX + "tasks": {}}}
    meta = {
        VERSION: "2026-07-28",
        CAPABILITIES: tasks,
        INFO: {"name": "n" * 200, "version": "1"},
        LEVEL: "info",
    }
    meaning = read("tools/call", name="t", meta=meta)
    assert isinstance(meaning, CallRequested)
    assert meaning.by == StatelessAgent(agent="n" * 100, level="info", tasks=True)
    for odd in (None, 7, {}, {"name": None}):
        meaning = read("tools/call", name="t", meta={**META, INFO: odd, LEVEL: None})
        assert isinstance(meaning, CallRequested)
        assert meaning.by == StatelessAgent()


# --- what goes on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SUBJECTS)
def test_a_server_sees_only_meta_members_that_are_not_of_the_hop_to_carpool(method: str) -> None:
    said = {
        **META,
        INFO: {"name": "n"},
        LEVEL: "debug",
        "progressToken": "p",
        "traceparent": TRACE,
        "a/b": [1.0],
    }
    meaning = read(method, meta=said, **SUBJECTS[method])
    assert isinstance(meaning, CallRequested)
    assert json.loads(meaning.meta) == {"traceparent": TRACE, "a/b": [1.0]}
    assert (meaning.token, meaning.trace, meaning.method) == (b'"p"', TRACE, method)
    alone = read(method, meta=META, **SUBJECTS[method])
    assert isinstance(alone, CallRequested)
    assert (alone.meta, alone.token) == (ABSENT, ABSENT)


@pytest.mark.parametrize("method", SUBJECTS)
def test_meta_members_of_the_hop_are_removed_in_every_spelling(method: str) -> None:
    plain = line(method, {**SUBJECTS[method], "_meta": {**META, "x": 1}})
    odd = plain.replace(
        b'"x": 1',
        rb'"IO.ModelContextProtocol/ClientInfo":{},"io.modelcontextprotocol\/logLevel":"info",'
        rb'"io.modelcontextprotocol/protocol\u0056ersion":"2026-07-28","x":1,"X":2',
    )
    assert odd != plain
    meaning = handshake.read_line(ME, odd)
    assert isinstance(meaning, CallRequested)
    assert meaning.meta == b'{"x":1,"X":2}'


@pytest.mark.parametrize("method", sorted(stateless_decode.RESUMABLE))
def test_a_retry_is_told_from_the_params_that_it_repeats(method: str) -> None:
    params = {**SUBJECTS[method], "arguments": {"x": [1.0, "é"]}}
    first = read(method, **params)
    again = read(
        method,
        **params,
        inputResponses={
            "a": {"action": "accept", "content": {"requestState": 1}},
            "b": {"action": "decline"},
            "c": {"action": 1},
            "d": {"roots": []},
            "e": None,
        },
        requestState="tok\u20ac\n",
        meta={**META, "progressToken": 9, LEVEL: "error"},
    )
    assert isinstance(first, CallRequested)
    assert isinstance(again, CallRequested)
    assert (first.state, first.given) == ("", ())
    assert again.state == "tok\u20ac\n"
    assert [(it.key, it.accepted) for it in again.given] == [
        ("a", True), ("b", False), ("c", False), ("d", True), ("e", True),
    ]  # fmt: skip
    assert json.loads(again.given[0].body) == {"action": "accept", "content": {"requestState": 1}}
    assert (again.rest, again.digest) == (first.rest, first.digest)
    assert len(first.digest) == 32


def test_answers_without_a_state_and_a_state_without_answers_are_read() -> None:
    only_answers = read("tools/call", name="t", inputResponses={"a": {}})
    assert isinstance(only_answers, CallRequested)
    assert (only_answers.given, only_answers.state) == ((InputResponse("a", EMPTY_OBJECT),), "")
    only_state = read("tools/call", name="t", requestState="s", inputResponses=None)
    assert isinstance(only_state, CallRequested)
    assert (only_state.given, only_state.state) == ((), "s")


def test_an_answer_under_a_key_that_is_no_text_is_left_out() -> None:
    again = read("tools/call", name="t", requestState="s", inputResponses={"\ud83d": {}, "a": {}})
    assert isinstance(again, CallRequested)
    assert [it.key for it in again.given] == ["a"]


def test_an_impossible_request_state_or_input_key_is_kept_nowhere() -> None:
    again = read("tools/call", name="t", requestState="s" * 129, inputResponses={"k" * 1025: {}, "a": {}})
    assert isinstance(again, CallRequested)
    assert again.state == "?"
    assert [given.key for given in again.given] == ["a"]
    for key in ("\ud83d", "k" * 1025):
        again = read("tools/call", name="t", inputResponses={key: {}})
        assert isinstance(again, CallRequested)
        assert (again.state, again.given) == ("", ()), "answers in advance that fit nothing"


def test_a_digest_tells_nobody_without_its_key_what_was_said() -> None:
    for method, params in SUBJECTS.items():
        said = line(method, {**params, "_meta": META})
        legacy = line(method, params)
        digests = set()
        for key in (b"", b"one", b"two"):
            for each in (said, legacy):
                event = handshake.read_line(ME, each, key=key)
                assert isinstance(event, CallRequested)
                assert event.digest
                digests.add(event.digest)
        assert len(digests) == 3, f"{method}: one for each key, and the same in both eras"


LONG = "x" * 200_000
NAME = "n" * 20_000


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": LONG}),
        ("resources/read", {"uri": LONG}),
        ("tools/list", {"cursor": LONG}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [LONG]}}),
    ],
)
def test_a_request_with_very_long_names_is_refused(method: str, params: dict[str, Any]) -> None:
    refused = handshake.bound_size(read(method, **params))
    assert isinstance(refused, UnservableLine)
    answer = json.loads(refused.line)
    assert (answer["id"], answer["error"]["data"]["code"]) == (1, "too_large")
    assert LONG not in answer["error"]["message"]


def test_names_beyond_ascii_count_as_memory_holds_them() -> None:
    wide = "x" * 40_000 + "\N{GRINNING FACE}"
    assert len(line("tools/call", {"name": wide})) > handshake.LONG_LINE_BYTES
    assert isinstance(handshake.bound_size(read("tools/call", name=wide)), UnservableLine)
    narrow = read("tools/call", name=wide[:-1])
    assert handshake.bound_size(narrow) is narrow


@pytest.mark.parametrize("meta", [META, {}], ids=["stateless", "handshake"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("initialize", {"protocolVersion": NAME}),
        ("tools/call", {"name": NAME}),
        ("tools/call", {"name": "call_tool", "arguments": {"name": NAME}}),
        ("prompts/get", {"name": NAME}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": NAME}}),
        ("resources/read", {"uri": NAME}),
        ("tools/list", {"cursor": NAME}),
        ("logging/setLevel", {"level": NAME}),
        ("resources/subscribe", {"uri": NAME}),
        ("tasks/get", {"taskId": NAME}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": [NAME], "taskIds": [NAME] * 9}}),
        (NAME, {}),
    ],
)
def test_a_journal_keeps_little_of_a_request_with_a_long_name(
    method: str, params: dict[str, Any], meta: dict[str, Any]
) -> None:
    said = read(method, meta=meta, **params)
    journal = Journal()
    if isinstance(said, BrokerEvent):
        journal.record(1.0, said, [])
    assert len(journal.dump()) < 4096


def test_large_arguments_and_answers_are_no_reason_to_refuse_anything() -> None:
    said = read("tools/call", name="t", arguments={"a": LONG}, inputResponses={"k": {"v": LONG}})
    assert handshake.bound_size(said) is said


def test_a_cancel_counts_however_long_its_reason_is() -> None:
    cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"%b"}}'
    said = handshake.bound_size(handshake.read_line(ME, cancel % LONG.encode()))
    assert said == RequestCancelled(ME, ONE, "")
    told = b'{"jsonrpc":"2.0","id":"%b","result":{}}' % LONG.encode()
    assert handshake.bound_size(handshake.read_line(ME, told)) is None


def test_members_of_a_retry_reach_no_server_in_any_spelling() -> None:
    for method, params in SUBJECTS.items():
        text = line(method, {**params, "_meta": META}).replace(
            b'"_meta"',
            rb'"request\u0053tate":"1","RequestState":"2","inputResponses":{"a":1},"INPUTRESPONSES":3,"k":1,"_meta"',
        )
        meaning = handshake.read_line(ME, text)
        assert isinstance(meaning, CallRequested)
        assert json.loads(meaning.rest) == {"k": 1}
        is_resumable = method in stateless_decode.RESUMABLE
        assert (meaning.state, bool(meaning.given)) == (("1", True) if is_resumable else ("", False))


def test_a_digest_differs_wherever_the_requests_do() -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "t"}),
        ("tools/call", {"name": "t", "arguments": {}}),
        ("tools/call", {"name": "t", "arguments": {"a": 1}}),
        ("tools/call", {"name": "u", "arguments": {"a": 1}}),
        ("prompts/get", {"name": "t", "arguments": {"a": 1}}),
        ("prompts/get", {"name": "t", "arguments": {"a": "1"}}),
        ("resources/read", {"uri": "t"}),
        ("tools/call", {"name": "t", "k": 1}),
    ]
    digests = [
        meaning.digest
        for method, params in requests
        if isinstance(meaning := read(method, **params), CallRequested)
    ]
    assert len(set(digests)) == len(requests)


def test_lists_are_read_with_their_cursor() -> None:
    for method, family in stateless_decode.LISTS.items():
        assert read(method, cursor="c") == ListPageRequested(ME, ONE, "c", family, StatelessAgent())
        assert read(method) == ListPageRequested(ME, ONE, None, family, StatelessAgent())


def test_a_listen_says_what_it_wants_each_once() -> None:
    wanted = {
        "toolsListChanged": True,
        "promptsListChanged": False,
        "resourcesListChanged": True,
        "resourceSubscriptions": ["b:/", "a:/", "b:/"],
        "taskIds": ["x", "y", "x"],
    }
    uris = ("b:/", "a:/")
    said = read("subscriptions/listen", notifications=wanted)
    assert said == ListenRequested(ME, ONE, StatelessAgent(), ("tools", "resources"), uris, ("x", "y"))
    nothing = read("subscriptions/listen", notifications={})
    assert nothing == ListenRequested(ME, ONE, StatelessAgent(), (), ())


def test_a_large_envelope_is_read_like_a_small_one_and_one_of_too_many_members_is_refused() -> None:
    for size in (3_000, 100_000):
        said = {**META, CAPABILITIES: {"sampling": {}, "x": "y" * size}, "k": 1}
        meaning = read("tools/call", name="t", meta=said)
        assert isinstance(meaning, CallRequested)
        assert meaning.by == StatelessAgent(capabilities=Capabilities(sampling=True))
        assert meaning.meta == b'{"k":1}'
    many = {**META, **{f"{'k' * 60}{n}": n for n in range(2_000)}}
    assert error(read("tools/list", shared=True, meta=many))["code"] == -32602


# --- any line --------------------------------------------------------------------------------------------

_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["2026-07-28", *LEVELS[:2]]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3) | st.sampled_from(["name", "roots", "tools"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
_meta: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        VERSION: st.just("2026-07-28") | _json,
        CAPABILITIES: st.just({"sampling": {}}) | _json,
        INFO: _json,
        LEVEL: st.sampled_from(LEVELS) | _json,
        "progressToken": st.integers() | _json,
        "traceparent": st.just(TRACE) | _json,
        "\ud83d": _json,
    },
)
_params = st.fixed_dictionaries(
    {},
    optional={
        "_meta": _meta | _json,
        "name": st.just("t") | _json,
        "uri": st.just("u:/") | _json,
        "ref": st.just({"type": "ref/prompt"}) | _json,
        "cursor": _json,
        "arguments": _json,
        "inputResponses": st.dictionaries(st.text(max_size=2) | st.just("\ud83d"), _json, max_size=2) | _json,
        "requestState": st.text(max_size=3) | st.just("\ud83d") | _json,
        "notifications": st.just({"resourceSubscriptions": ["\ud83d"]}) | _json,
    },
)
_methods = st.sampled_from(
    [*stateless_decode.METHODS, *REMOVED, "initialize", "notifications/cancelled", "carpool/status", "x"]
)
_ids = st.sampled_from([b"1", b'"1"', b"1.0", b"-0", rb'"\u0031"', b"1e400"])


@given(_methods, _params | _json, _ids, st.booleans())
def test_any_request_is_read_and_its_id_comes_back_byte_for_byte(
    method: str, params: Any, raw_id: bytes, shared: bool
) -> None:
    meaning = handshake.read_line(ME, line(method, params, raw_id), shared=shared)
    if isinstance(meaning, UnservableLine):
        assert json.loads(meaning.line)["error"]["code"] in {-32600, -32601, -32602, -32022}
        assert b'"id":%b,' % raw_id in meaning.line
    else:
        assert isinstance(meaning, BrokerEvent | ControlRequested)
        assert getattr(meaning, "id", None) == raw_id
        by = getattr(meaning, "by", None)
        assert by is not None or not shared
        if isinstance(meaning, CallRequested) and by is not None:
            told = json.loads(meaning.rest), json.loads(meaning.meta or b"{}")
            assert not {"inputResponses", "requestState", "_meta"} & told[0].keys()
            assert not {VERSION, CAPABILITIES, INFO, LEVEL, "progressToken"} & told[1].keys()
            for text in (meaning.state, meaning.name, by.agent, *(it.key for it in meaning.given)):
                text.encode()  # a text that no encoder takes would end the process


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read(junk: bytes, shared: bool) -> None:
    meaning = handshake.read_line(ME, junk, shared=shared)
    assert meaning is None or isinstance(meaning, BrokerEvent | UnservableLine | LineBatch | ControlRequested)
