"""Ids of channels grow, whatever the clock does between two processes."""

from pathlib import Path

import pytest

from carpool.cluster import channel_ids
from carpool.cluster.channel_ids import BLOCK, ChannelIds
from tests.behaviours import behaviour


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "node-ids" / "0a1b")


def at(monkeypatch: pytest.MonkeyPatch, unix_s: float) -> None:
    """Set the clock."""
    monkeypatch.setattr(channel_ids, "unix_s", lambda: unix_s)


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
    one = ChannelIds(path)
    one.take()
    at(monkeypatch, 1_000.0 + BLOCK / 500)
    last = one.take()
    at(monkeypatch, 1_000.0)
    assert ChannelIds(path).take() > last


@pytest.mark.parametrize("text", [b"", b"-5", b"9" * 19, b"9" * 100, b"\xff\xfe", b"1.5"])
def test_a_file_that_holds_no_id_is_as_none(path: str, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 7.0)
    Path(path).parent.mkdir()
    Path(path).write_bytes(text)
    assert ChannelIds(path).take() == 7_000


def test_without_a_place_to_write_ids_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 7.0)
    ids = ChannelIds("/dev/null/ids")
    assert [ids.take(), ids.take()] == [7_000, 7_001]
