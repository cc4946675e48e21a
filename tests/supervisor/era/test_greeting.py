"""What a server may write in answer to a greeting, and what a refusal is searched for."""

import msgspec
import pytest

from carpool_protocol.ids import InstanceId, PoolKey, RawJson
from carpool_supervisor.core.model.events import GreetingFailed
from carpool_supervisor.core.model.version_offers import VERSIONS
from carpool_supervisor.era.greeting import (
    MAX_GREETING_BYTES,
    MAX_SEARCHED,
    RpcError,
    next_version,
    read_initialized,
)
from carpool_supervisor.era.handshake import HandshakeAdapter
from carpool_supervisor.era.stateless import StatelessAdapter
from tests.behaviours import behaviour


@behaviour("catalogs:bounded")
@pytest.mark.parametrize("where", ["message", "data"])
def test_a_refusal_is_searched_for_versions_only_near_its_beginning(where: str) -> None:
    def error(filler: str) -> RpcError:
        said = f"{filler} version {VERSIONS[2]}"
        data = msgspec.json.encode(said if where == "data" else None)
        return RpcError(1, said if where == "message" else "", msgspec.Raw(data))

    assert next_version(error("x" * 100), [VERSIONS[0]]) == VERSIONS[2]
    assert next_version(error("\u0130" * MAX_SEARCHED), [VERSIONS[0]]) is None


@behaviour("catalogs:bounded")
def test_an_answer_to_initialize_over_its_limit_is_none() -> None:
    answer = b'{"protocolVersion":"2025-11-25","capabilities":{},"instructions":"%b"}'
    room = MAX_GREETING_BYTES - len(answer) + 2
    assert read_initialized(RawJson(answer % (b"x" * room))) is not None
    assert read_initialized(RawJson(answer % (b"x" * (room + 1)))) is None


@behaviour("catalogs:bounded")
def test_an_answer_to_discover_over_its_limit_fails_the_greeting() -> None:
    adapter = StatelessAdapter(InstanceId(1), PoolKey("s:1"), "1.0")
    adapter.greeting_line()
    result = b'{"supportedVersions":["2026-07-28"],"capabilities":{},"%b":1}' % (b"x" * MAX_GREETING_BYTES)
    [event], _ = adapter.feed([b'{"jsonrpc":"2.0","id":"carpool-discover-1","result":%b}' % result])
    assert isinstance(event, GreetingFailed)
    assert "more than 8 MiB" in event.text


@behaviour("start:told")
@pytest.mark.parametrize("make", [HandshakeAdapter, StatelessAdapter])
@pytest.mark.parametrize("is_greeted", [False, True], ids=["before it is greeted", "when it is greeted"])
def test_a_server_that_frames_its_messages_with_headers_fails_its_greeting(
    make: type[HandshakeAdapter | StatelessAdapter], is_greeted: bool
) -> None:
    adapter = make(InstanceId(1), PoolKey("s:1"), "1.0")
    if is_greeted:
        adapter.greeting_line()
    events, _ = adapter.feed([b"Content-Length: 2\r"])
    assert [type(each) for each in events] == [GreetingFailed]
