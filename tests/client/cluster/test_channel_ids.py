"""Ids of channels grow, whatever the clock does between two processes."""

from pathlib import Path

import pytest

from carpool.cluster import channel_ids
from carpool.cluster.channel_ids import BLOCK, ChannelIds
from carpool.cluster.core.node import SESSIONS_PER_ID
from tests.behaviours import behaviour


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "node-ids" / "0a1b")


def at(monkeypatch: pytest.MonkeyPatch, unix_s: float) -> None:
    """Set the clock."""
    monkeypatch.setattr(channel_ids, "unix_s", lambda: unix_s)


def after(monkeypatch: pytest.MonkeyPatch, passed_s: float) -> None:
    """Let this much time have passed since the process began."""
    monkeypatch.setattr(channel_ids, "monotonic_s", lambda: passed_s)


@behaviour("cluster:deaths")
def test_ids_of_a_later_process_are_greater_although_the_clock_went_back(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, 2_000_000_000.0)
    first = ChannelIds(path)
    used = [first.take() for _ in range(3)]
    assert used == sorted(set(used))
    at(monkeypatch, 0.0)
    later = ChannelIds(path)
    assert later.take() > used[-1]
    assert ChannelIds(path).take() > later.take()


def test_more_ids_than_one_block_are_not_used_again_by_the_next_process(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, 1_000.0)
    after(monkeypatch, 0.0)
    one = ChannelIds(path)
    one.take()
    after(monkeypatch, BLOCK / 500)
    last = one.take()
    assert ChannelIds(path).take() > last


@behaviour("cluster:story")
def test_no_number_of_a_session_comes_again_after_a_restart_of_the_process(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids of the second process are ahead of the clock, and grow with time all the same."""
    at(monkeypatch, 1_000.0)
    after(monkeypatch, 0.0)
    ChannelIds(path).take()
    ids = ChannelIds(path)
    first = ids.take() * SESSIONS_PER_ID
    opened = 5 * SESSIONS_PER_ID
    after(monkeypatch, 5.0)  # time enough to open them, and for the node to go and come again
    assert ids.take() * SESSIONS_PER_ID > first + opened


@pytest.mark.parametrize("text", [b"", b"-5", b"9" * 19, b"9" * 100, b"\xff\xfe", b"1.5"])
def test_a_file_that_holds_no_id_is_as_none(path: str, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 7.0)
    after(monkeypatch, 0.0)
    Path(path).parent.mkdir()
    Path(path).write_bytes(text)
    assert ChannelIds(path).take() == 7_000


def test_without_a_place_to_write_ids_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 7.0)
    after(monkeypatch, 0.0)
    ids = ChannelIds("/dev/null/ids")
    assert [ids.take(), ids.take()] == [7_000, 7_001]
