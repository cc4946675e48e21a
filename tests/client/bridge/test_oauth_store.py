"""Logins on disk: whose they are, and where a borrowed one is renewed."""

from pathlib import Path

import trio

from carpool.bridge.oauth_store import LoginStore, OAuthLogin
from carpool.launcher.sandbox import PrivateCarpool
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.remote import Remote
from tests.behaviours import behaviour

FAR = Remote(server="far", url="https://far.example/mcp")


def login(token: str) -> OAuthLogin:
    return OAuthLogin(
        access_token=token, refresh_token="r", token_endpoint="https://far.example/token", client={}
    )


def test_a_file_that_cannot_be_read_is_no_login(tmp_path: Path) -> None:
    its = LoginStore(str(tmp_path / "logins"), FAR)
    its.write(login("one"))
    [file] = (tmp_path / "logins").iterdir()
    for damage in (b"", b"{", b"[]", b'{"access_token": 1}', b"\xff", b"[" * 5000):
        file.write_bytes(damage)
        assert its.read() is None
    its.write(login("two"))
    assert its.read() == login("two")
    assert "two" not in repr(its.read())


@behaviour("remote:login")
async def test_a_probe_uses_the_logins_of_the_user_and_renews_them_where_they_are(tmp_path: Path) -> None:
    mine = tmp_path / "logins"
    LoginStore(str(mine), FAR).write(login("one"))
    house = PrivateCarpool("cpl-test-")
    try:
        house.use_logins(str(mine))
        lent = LoginStore(paths.logins_dir(paths.state_dir(house.environ, house.directory)), FAR)
        assert lent.read() == login("one")
        with trio.fail_after(5):
            async with lent.renewal_lock():
                lent.write(login("two"))
    finally:
        assert house.close() == []
    [file] = mine.glob("*.json")
    assert LoginStore(str(mine), FAR).read() == login("two")
    assert file.stat().st_mode & 0o777 == 0o600
