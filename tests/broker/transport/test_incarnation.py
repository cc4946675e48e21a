"""What a broker inherits, and whom it believes."""

import os
from collections.abc import Callable

import pytest

from carpool_broker.transport.incarnation import Incarnation, read_incarnation
from carpool_protocol.ids import SessionId

SECRET = bytes(range(32))
ONE, OTHER = SessionId("s3"), SessionId("s4")


def test_a_session_comes_back_at_a_later_broker_once() -> None:
    secret = Incarnation(SECRET, 0).resume_secret(ONE)
    later = Incarnation(SECRET, 2)
    assert later.claim_session(ONE, secret)
    assert not later.claim_session(ONE, secret)


def test_a_session_does_not_resume_at_the_broker_that_gave_its_secret_or_an_earlier_one() -> None:
    secret = Incarnation(SECRET, 1).resume_secret(ONE)
    assert not Incarnation(SECRET, 1).claim_session(ONE, secret)
    assert not Incarnation(SECRET, 0).claim_session(ONE, secret)


def test_a_session_does_not_resume_after_a_broker_that_has_given_it_up() -> None:
    secret = Incarnation(SECRET, 1).resume_secret(ONE)
    assert not Incarnation(SECRET, 4, since=2).claim_session(ONE, secret)
    assert Incarnation(SECRET, 4, since=1).claim_session(ONE, secret)


@pytest.mark.parametrize(
    "change",
    [
        lambda secret: "",
        lambda secret: "0",
        lambda secret: "0.",
        lambda secret: secret[:-1],
        lambda secret: secret + "0",
        lambda secret: "0" + secret,
        lambda secret: "1" + secret[1:],
        lambda secret: "\u0660" + secret[1:],
        lambda secret: secret.upper(),
        lambda secret: "\ud800",
        lambda secret: "9" * 5000 + secret[1:],
    ],
)
def test_only_the_exact_secret_claims_a_session(change: Callable[[str], str]) -> None:
    secret = Incarnation(SECRET, 0).resume_secret(ONE)
    later = Incarnation(SECRET, 2)
    assert change(secret) == secret or not later.claim_session(ONE, change(secret))
    assert not later.claim_session(OTHER, secret)
    assert not Incarnation(os.urandom(32), 2).claim_session(ONE, secret)
    own = Incarnation(SECRET, 0)
    assert own.has_own_secret(ONE, secret)
    assert not own.has_own_secret(ONE, change(secret))
    assert not later.has_own_secret(ONE, secret)
    assert later.claim_session(ONE, secret)


def test_each_purpose_has_its_own_secret_and_none_tells_the_launchers() -> None:
    incarnation = Incarnation(SECRET, 0)
    keys = {incarnation.derive_key(purpose) for purpose in ("pools", "core", "digests", "session")}
    assert len(keys) == 4
    assert SECRET not in keys
    assert incarnation.derive_key("pools") == Incarnation(SECRET, 7).derive_key("pools")


def test_the_launchers_line_is_read_and_nothing_else_is() -> None:
    heir = read_incarnation(f"heir 3 1 {SECRET.hex()}")
    assert heir is not None
    assert (heir.epoch, heir.derive_key("x")) == (3, Incarnation(SECRET).derive_key("x"))
    bad = [
        "",
        "stop",
        "heir",
        "heir 1 1",
        "heir -1 0 00",
        "heir 1 1 zz",
        "heir 1 1 00",
        f"heir 1 1 {SECRET.hex()} ",
    ]
    assert [read_incarnation(line) for line in bad] == [None] * len(bad)
