"""Which variables hold a secret, by name and value; setup's own tests try names and texts one by one."""

import pytest

from carpool_protocol.carrier.remote import secrets_of
from carpool_protocol.carrier.secret_texts import holds_secret
from tests.behaviours import behaviour

SECRET = [
    ("GITHUB_TOKEN", "x"),
    ("DB_PASSWORD", "hunter2"),
    ("SETTING", "ghp_0123456789abcdefghij0123456789abcdef"),
    ("DATABASE", "postgres://me:hunter2@db.internal:5432/x"),
    ("SETTING", "q8Zr2LxV0pT7nB4cW9sKd3Fj"),
]
PLAIN = [
    ("FREECAD_RPC_HOST", "localhost"),
    ("MODE", "production"),
    ("LOG_LEVEL", "debug-and-everything"),
    ("BASE_URL", "https://api.example.com/v1"),
    ("MODEL", "claude-sonnet-4-5-20250929"),
    ("DB_PASSWORD_FILE", "/run/secrets/db"),
]


@behaviour("secrets:literal-values")
@pytest.mark.parametrize(("name", "value"), SECRET)
def test_a_variable_with_the_name_or_the_look_of_a_secret_holds_one(name: str, value: str) -> None:
    assert holds_secret(name, value)
    assert secrets_of({name: value}) == {value}


@behaviour("secrets:literal-values")
@pytest.mark.parametrize(("name", "value"), PLAIN)
def test_a_plain_setting_is_no_secret_and_is_masked_nowhere(name: str, value: str) -> None:
    assert not holds_secret(name, value)
    assert secrets_of({name: value}) == set()
