"""The files of the state directory that `carpool uninstall --purge` may remove."""

from pathlib import Path

import pytest

from carpool.bridge.oauth_store import LoginStore, OAuthLogin
from carpool.setup.state_files import STATE_DIRECTORIES, own_files
from carpool_broker.core.model.approval import Approved, PinId
from carpool_broker.storage.approval_store import ApprovalStore
from carpool_protocol.carrier.remote import Remote
from tests.behaviours import behaviour

OWN = {
    "log": ["broker.log", "broker.log.1", "http.log.part-77", "node.log", "supervisor-main.log",
            "server-a_b.log.2", "audit.jsonl", "audit.jsonl.4"],
    "setup": ["lock", "0001/record.json", "0001/0.before", "0012/10.after"],
    "node-ids": ["0a1b2c3d4e5f"], "nats": ["0a1b/address", "0a1b/nats.conf"],
    "pins": [], "logins": [], "catalogs": [],
}  # fmt: skip
FOREIGN = {
    "log": ["notes.log", "server.log", "broker.log.old", "audit.json", "mine/broker.log"],
    "setup": ["install.sh", "record.json", "0001/notes", "0001/0.before/x"],
    "pins": ["git.json", "git-1234.json"],
    "logins": ["me.json"],
    "catalogs": ["spring.catalog"],
    "node-ids": ["alpha", "0a1b/2c3d"],
    "nats": ["nats.conf", "0a1b/notes", "mine/address"],
}


def written(directory: Path, names: list[str]) -> list[Path]:
    paths = [directory / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        path.chmod(0o600)
    return paths


@behaviour("start:uninstall")
@pytest.mark.parametrize("name", STATE_DIRECTORIES)
def test_only_names_that_carpool_gives_are_its_files(tmp_path: Path, name: str) -> None:
    own = written(tmp_path / name, OWN[name])
    written(tmp_path / name, [each for each in FOREIGN[name] if each != "0001/0.before/x"])
    assert list(own_files(tmp_path / name)) == sorted(own)


@behaviour("start:uninstall")
def test_a_file_of_such_a_name_that_others_may_read_or_a_link_is_not_carpools(tmp_path: Path) -> None:
    (open_to_others,) = written(tmp_path / "log", ["http.log"])
    open_to_others.chmod(0o644)
    (tmp_path / "log" / "broker.log").symlink_to(tmp_path / "elsewhere")
    assert list(own_files(tmp_path / "log")) == []


@behaviour("start:uninstall")
def test_the_files_of_approvals_and_logins_have_such_names(tmp_path: Path) -> None:
    pins = ApprovalStore(str(tmp_path))
    pins.save(PinId("git:0123456789abcdef"), Approved({}), [])
    LoginStore(str(tmp_path / "logins"), Remote(server="s", url="https://host/mcp")).write(
        OAuthLogin(access_token="t", token_endpoint="https://host/token", client={})
    )
    for name in ("pins", "logins"):
        assert [*own_files(tmp_path / name)] == [*(tmp_path / name).iterdir()] != []
