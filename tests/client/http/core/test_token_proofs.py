"""The proof to a page that the door knows its token."""

import hashlib
import hmac
import json
from typing import Any

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.page_codes import PageCodes
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig

TOKEN, KEY = "eye-secret", "page-key"
NONCE = "0123456789abcdef" * 4
GATE = AccessRules(
    tokens={"agent": hash_of("another"), "eye": hash_of(TOKEN)},
    operators={"eye": "read"},
    page_key=hashlib.sha256(KEY.encode()).digest(),
)


def hint(token: str) -> str:
    return hashlib.sha256(b"carpool hint" + hashlib.sha256(token.encode()).digest()).hexdigest()


def challenge(rig: DoorCoreRig, body: Any) -> int:
    return rig.send("POST", "/operator/proof", json.dumps(body).encode(), content_type="application/json")


@pytest.mark.parametrize("linked", [True, False], ids=["", "without a broker"])
@pytest.mark.parametrize("token", [TOKEN, KEY])
@behaviour("web:proof")
def test_the_door_proves_that_it_knows_a_token_without_telling_it(token: str, *, linked: bool) -> None:
    rig = DoorCoreRig(gate=GATE, linked=linked, page_codes=PageCodes(KEY))
    assert rig.core.waits_until("/operator/proof", {"host": "localhost"}, 7.0) == 7.0
    x = challenge(rig, {"hint": hint(token), "nonce": NONCE})
    wanted = hmac.new(
        hashlib.sha256(token.encode()).digest(), b"carpool proof" + NONCE.encode(), hashlib.sha256
    )
    assert (rig.status(x), rig.body(x)) == (200, {"proof": wanted.hexdigest()})
    assert rig.header(x, "Cache-Control") == "no-store"


@behaviour("web:proof")
@pytest.mark.parametrize("of", ["wrong", hash_of(TOKEN).removeprefix("sha256:")])
def test_nothing_is_proved_to_a_page_that_has_no_token(of: str) -> None:
    rig = DoorCoreRig(gate=GATE)
    x = challenge(rig, {"hint": hint(of) if of == "wrong" else of, "nonce": NONCE})
    assert rig.status(x) == 401
    assert "this door knows no such token" in rig.body(x)["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"hint": hint(TOKEN)},
        {"hint": hint(TOKEN), "nonce": "short"},
        {"hint": hint(TOKEN), "nonce": NONCE, "x": 1},
        {"hint": 1, "nonce": NONCE},
        [],
    ],
)
def test_a_challenge_that_is_not_as_it_must_be_is_refused(body: Any) -> None:
    rig = DoorCoreRig(gate=GATE)
    assert rig.status(challenge(rig, body)) == 400


def test_a_challenge_is_posted_as_json_by_a_page_of_the_door() -> None:
    rig = DoorCoreRig(gate=GATE)
    assert rig.status(rig.send("GET", "/operator/proof")) == 405
    assert rig.status(rig.send("POST", "/operator/proof", b"{}", content_type="text/plain")) == 415
    assert rig.status(rig.send("POST", "/operator/proof", b"{}", origin="https://elsewhere.example")) == 403
