"""Codes for the key of the web page: who may have one, and that each counts once and for two minutes."""

import hashlib
import itertools
import json
from typing import Any

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.page_codes import CODE_PREFIX, MAX_CODES, VALID_S, PageCodes
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig

KEY = "the-key-of-the-page"
DIGEST = hashlib.sha256(KEY.encode()).digest()
OPEN = AccessRules(page_key=DIGEST, knows_owners=True)
TOKENS = AccessRules(
    tokens={"agent": hash_of("agent"), "full": hash_of("full")}, operators={"full": "full"}, page_key=DIGEST
)


def rig(gate: AccessRules = OPEN) -> DoorCoreRig:
    numbers = itertools.count(1)
    return DoorCoreRig(gate=gate, page_codes=PageCodes(KEY, lambda: f"s{next(numbers)}"))


def post(door: DoorCoreRig, path: str, body: Any = None, token: str = "", **headers: str) -> int:
    more = {"authorization": f"Bearer {token}"} if token else {}
    data = json.dumps(body or {}).encode()
    return door.send("POST", path, data, **{"content_type": "application/json", **more, **headers})


def new_code(door: DoorCoreRig) -> str:
    x = post(door, "/operator/code", token=KEY)
    assert door.body(x)["valid_s"] == VALID_S
    assert door.header(x, "Cache-Control") == "no-store"
    return str(door.body(x)["code"])


def taken(door: DoorCoreRig, code: str, **headers: str) -> int:
    return post(door, "/operator/key", {"code": code}, **headers)


@behaviour("web:access")
@pytest.mark.parametrize("gate", [OPEN, TOKENS], ids=["open", "tokens"])
def test_a_code_is_given_for_the_key_once(gate: AccessRules) -> None:
    door = rig(gate)
    code = new_code(door)
    assert code.startswith(CODE_PREFIX)
    x = taken(door, code)
    assert (door.status(x), door.body(x)) == (200, {"key": KEY})
    assert door.header(x, "Cache-Control") == "no-store"
    again = taken(door, code)
    assert door.status(again) == 403
    assert "say `carpool web` again" in door.body(again)["error"]["message"]
    assert not door.told, "the broker is not asked"


@behaviour("web:access")
def test_a_code_ends_after_two_minutes_and_the_oldest_one_of_too_many_at_once() -> None:
    door = rig()
    late, good = new_code(door), new_code(door)
    door.wait(VALID_S - 1)
    assert door.status(taken(door, good)) == 200
    door.wait(1)
    assert door.status(taken(door, late)) == 403
    codes = [new_code(door) for _ in range(MAX_CODES + 1)]
    assert [door.status(taken(door, code)) for code in codes] == [403] + [200] * MAX_CODES


@behaviour("web:access")
def test_only_the_key_makes_a_code() -> None:
    door = rig()
    assert door.status(post(door, "/operator/code")) == 403
    assert door.status(post(door, "/operator/code", sec_fetch_site="same-origin")) == 403
    assert door.status(post(door, "/operator/code", token="wrong")) == 403
    door = rig(TOKENS)
    assert door.status(post(door, "/operator/code")) == 401
    for token in ("agent", "full"):
        assert door.status(post(door, "/operator/code", token=token)) == 403


@behaviour("web:access")
def test_pages_from_elsewhere_and_odd_requests_get_no_key() -> None:
    door = rig()
    code = new_code(door)
    assert door.status(taken(door, code, origin="https://evil.example")) == 403
    assert door.status(taken(door, code, host="evil.example")) == 421
    assert door.status(taken(door, code, content_type="text/plain")) == 415
    assert door.status(door.send("GET", "/operator/key")) == 405
    bodies: list[Any] = [[], {"code": 1}, {"code": code, "more": 1}, {"code": "\ud800"}]
    for body in bodies:
        assert door.status(post(door, "/operator/key", body)) in {400, 403}
    assert door.status(taken(door, code)) == 200, "it is still open"


@behaviour("web:access")
def test_a_door_without_a_key_has_no_codes() -> None:
    door = DoorCoreRig(gate=TOKENS)
    assert door.status(taken(door, "once-")) == 403
    assert door.status(post(door, "/operator/code", token="full")) == 404
