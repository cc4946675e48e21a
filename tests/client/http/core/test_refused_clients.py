"""How long the answer to a wrong token waits, and what is told of the addresses that they came from."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.http.core import refused_clients
from carpool.http.core.access import GENERATED_PRINCIPAL, AccessRules, hash_of
from carpool.http.core.effects import Refuse
from carpool.http.core.limits import ASK_FIRST_BYTES
from carpool.http.core.page_codes import PageCodes
from carpool.http.core.refused_clients import (
    FORGET_S,
    FREE,
    MAX_ADDRESSES,
    MAX_DELAY_S,
    MAX_WAITING,
    OTHERS,
    REPORT_S,
    RefusedAddress,
    RefusedClients,
    network_of,
)
from carpool.http.core.web_page import WebFile
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig, request

NOISY, QUIET = "10.0.0.7", "10.0.0.8"


@behaviour("http:tokens:wrong")
def test_wrong_tokens_of_one_address_wait_longer_and_longer_up_to_a_bound() -> None:
    clients = RefusedClients()
    found = [clients.refused(NOISY, "wrong_token", at * 3.0).delay_s for at in range(FREE + 12)]
    assert found[:FREE] == [0.0] * FREE
    assert found == sorted(found)
    assert found[FREE] == refused_clients.FIRST_DELAY_S
    assert found[-1] == MAX_DELAY_S
    assert clients.refused(QUIET, "wrong_token", 40.0).delay_s == 0.0, "another address pays nothing for it"
    later = 3.0 * (FREE + 11) + FORGET_S
    assert clients.refused(NOISY, "wrong_token", later).delay_s == 0.0, "it begins anew"


@behaviour("http:tokens:wrong")
def test_only_so_many_answers_of_one_address_wait() -> None:
    clients = RefusedClients()
    for _ in range(FREE + MAX_WAITING):
        assert not clients.refused(NOISY, "wrong_token", 0.0).ends
    assert clients.refused(NOISY, "wrong_token", 0.0) == (0.0, True), "its connection ends instead"
    assert not clients.refused(QUIET, "wrong_token", 0.0).ends
    assert not clients.refused(NOISY, "wrong_token", MAX_DELAY_S + 1).ends, "they were answered"


@behaviour("http:tokens:wrong")
def test_one_report_a_minute_has_every_wrong_token_with_its_address() -> None:
    clients = RefusedClients()
    assert clients.take_report(0.0) == []
    clients.refused(NOISY, "wrong_token", 0.0)
    assert clients.take_report(0.5) == [RefusedAddress(NOISY, "wrong_token", 1)]
    for at in range(5):
        clients.refused(NOISY, "wrong_token", float(at))
    clients.refused(QUIET, "wrong_code", 5.0)
    assert clients.take_report(0.5 + REPORT_S - 0.1) == []
    assert clients.take_report(0.5 + REPORT_S) == [
        RefusedAddress(NOISY, "wrong_token", 5),
        RefusedAddress(QUIET, "wrong_code", 1),
    ]
    assert clients.take_report(1e6) == []


@behaviour("http:tokens:wrong")
@given(st.lists(st.tuples(st.integers(0, 700), st.floats(0.0, 3.0)), max_size=900))
def test_nothing_grows_with_the_number_of_addresses_and_none_is_left_out(
    steps: list[tuple[int, float]],
) -> None:
    clients, now, told = RefusedClients(), 0.0, 0
    for address, pause in steps:
        now += pause
        penalty = clients.refused(f"10.1.{address // 250}.{address % 250}", "wrong_token", now)
        assert 0.0 <= penalty.delay_s <= MAX_DELAY_S
        clients.check()
        told += sum(each.times for each in clients.take_report(now))
    told += sum(each.times for each in clients.take_report(now + REPORT_S))
    assert told == len(steps)


def test_addresses_past_the_bound_are_told_together() -> None:
    clients = RefusedClients()
    for number in range(MAX_ADDRESSES + 9):
        clients.refused(f"10.1.{number // 250}.{number % 250}", "wrong_token", 0.0)
    report = clients.take_report(0.0)
    assert report[0] == RefusedAddress(OTHERS, "wrong_token", 9)
    assert len(report) == MAX_ADDRESSES + 1


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no address", "no address"),
    ],
)
def test_a_client_cannot_take_another_address_of_its_own_network(address: str, network: str) -> None:
    assert network_of(address) == network


# --- what the core counts ---

PAGE = {"index.html": WebFile("text/html", b"page")}


def guarded() -> DoorCoreRig:
    gate = AccessRules(tokens={"ann": hash_of("a")}, page_key=hashlib.sha256(b"key").digest())
    codes = PageCodes("key", lambda: "fresh")
    return DoorCoreRig(gate=gate, web_files=PAGE, page_codes=codes)


@behaviour("http:tokens:wrong", "metrics:access")
def test_each_reason_to_refuse_a_client_is_counted() -> None:
    desk = guarded()
    post = {"content_type": "application/json"}
    for headers, path, why in (
        ({"host": "evil.example"}, "/mcp", "host"),
        ({"origin": "https://evil.example"}, "/mcp", "origin"),
        ({}, "/mcp", "no_token"),
        ({"authorization": "Bearer b"}, "/mcp", "wrong_token"),
        ({"authorization": "Basic b"}, "/operator/status", "wrong_token"),
        ({"authorization": "Bearer b"}, "/health", "wrong_token"),
        ({"authorization": "Bearer b"}, "/", "wrong_token"),
    ):
        desk.send("GET", path, **headers)
        assert desk.refused.pop() == why, path
        assert desk.refused == []
    desk.send("POST", "/operator/key", b'{"code": "once-x"}', **post)
    desk.send("POST", "/operator/proof", b'{"hint": "%b", "nonce": "%b"}' % (b"0" * 64, b"0" * 64), **post)
    assert desk.refused == ["wrong_code", "wrong_code"]
    desk.send("GET", "/health")
    desk.send("GET", "/", authorization="Bearer a")
    desk.post(request(1, "ping"), authorization="Bearer a")
    assert len(desk.refused) == 2, "nobody else is refused"
    assert desk.core._pages.refused == {
        "host": 1,
        "origin": 1,
        "no_token": 1,
        "wrong_token": 4,
        "wrong_code": 2,
    }


@behaviour("http:limits:free")
@pytest.mark.parametrize(
    "path", ["/health", "/operator/key", "/operator/proof", "/", "/web/", "/web/index.html"]
)
@pytest.mark.parametrize("token", ["", "a", "wrong"])
def test_where_no_token_is_asked_for_a_body_is_short_whoever_sends_it(path: str, token: str) -> None:
    headers = {"host": "localhost", **({"authorization": f"Bearer {token}"} if token else {})}
    assert guarded().core.body_bound(path, headers, 1 << 22) == ASK_FIRST_BYTES == 64 * 1024


@behaviour("http:limits:free")
@pytest.mark.parametrize("path", ["/mcp", "/metrics", "/operator/stop", "/operator/code", "/nothing", "/sse"])
def test_everywhere_else_a_client_without_a_token_sends_no_long_body_at_all(path: str) -> None:
    core = guarded().core
    for wrong in ({}, {"authorization": "Bearer b"}):
        assert isinstance(core.body_bound(path, {"host": "localhost", **wrong}, 1 << 22), Refuse)
    right = {"host": "localhost", "authorization": "Bearer a"}
    assert core.body_bound(path, right, 1 << 22) == 1 << 22


@behaviour("http:tokens:generated")
def test_agents_with_the_generated_token_are_nobody_in_particular_for_the_broker() -> None:
    desk = DoorCoreRig(gate=AccessRules(tokens={GENERATED_PRINCIPAL: hash_of("g")}, needs_token=True))
    desk.post(request(1, "initialize", protocolVersion="2025-11-25"), authorization="Bearer g")
    _, word = desk.word()
    assert getattr(word, "principal", None) == ""
    desk.told.clear()
    desk.send("GET", "/metrics", authorization="Bearer g")
    assert desk.told, "it is the token of the user, who may see what runs"
    x = desk.send("POST", "/operator/stop", b"{}", authorization="Bearer g", content_type="application/json")
    assert desk.status(x) == 403, "it ends nothing"
