"""The secret behind pool keys: one for all brokers of a state directory."""

from pathlib import Path

from carpool_broker.storage import pool_secret


def test_the_secret_is_made_once_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    secret, said = pool_secret.load_secret(str(state))
    assert (len(secret), said) == (32, "")
    assert pool_secret.load_secret(str(state)) == (secret, "")
    assert [path.stat().st_mode & 0o777 for path in state.iterdir()] == [0o600]


def test_a_file_without_a_secret_is_set_aside_with_a_message(tmp_path: Path) -> None:
    file = tmp_path / pool_secret.NAME
    file.write_text("hello")
    secret, said = pool_secret.load_secret(str(tmp_path))
    assert len(secret) == 32
    assert "does not hold a secret" in said
    assert file.with_name("pool-keys.aside-1").read_text() == "hello"
    assert pool_secret.load_secret(str(tmp_path)) == (secret, "")


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("0" * 64)
    (tmp_path / pool_secret.NAME).symlink_to(tmp_path / "elsewhere")
    secret, said = pool_secret.load_secret(str(tmp_path))
    assert secret not in (b"", bytes(32))
    assert "symbolic link" in said


def test_an_unwritable_directory_gives_no_secret_and_a_message(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    secret, said = pool_secret.load_secret(str(tmp_path / "state"))
    assert secret == b""
    assert said
