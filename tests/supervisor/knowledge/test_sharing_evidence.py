"""Evidence on disk: kept, merged, set aside, never fatal."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool_supervisor.core.model.sharing import Evidence, EvidenceKind
from carpool_supervisor.knowledge import sharing_evidence
from carpool_supervisor.knowledge.sharing_evidence import (
    NO_EVIDENCE,
    EvidenceFile,
    evidence_of,
    load_evidence,
    merged_evidence,
    save_evidence,
    with_evidence,
)
from tests.behaviours import behaviour

T1, T2, T3 = "2026-11-21T10:00:00.000Z", "2026-11-21T11:00:00.000Z", "2026-11-22T09:00:00.000Z"
ASKED = with_evidence(NO_EVIDENCE, "web npm:x", "asked_ambiguously", T1, "sampling/createMessage")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return sharing_evidence.verdicts_file(str(tmp_path / "state"))


@behaviour("modes:verdicts-kept")
def test_evidence_survives_a_restart(path: str) -> None:
    assert save_evidence(path, ASKED) == (ASKED, "")
    assert load_evidence(path) == (ASKED, "")
    assert evidence_of(load_evidence(path)[0], "web npm:x") == (
        Evidence(kind="asked_ambiguously", first=T1, last=T1, detail="sampling/createMessage"),
    )


def test_the_file_is_for_its_user_only_and_nothing_is_left_beside_it(path: str) -> None:
    save_evidence(path, ASKED)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(os.path.dirname(path)) == ["verdicts.json"]


def test_a_file_that_others_could_read_is_closed_to_them_by_the_next_save(path: str) -> None:
    save_evidence(path, ASKED)
    os.chmod(path, 0o644)
    save_evidence(path, ASKED)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_missing_file_is_no_fault(path: str) -> None:
    assert load_evidence(path) == (NO_EVIDENCE, "")


def test_a_second_sighting_counts_and_keeps_the_first_time() -> None:
    twice = with_evidence(ASKED, "web npm:x", "asked_ambiguously", T2)
    (piece,) = evidence_of(twice, "web npm:x")
    assert (piece.first, piece.last, piece.times, piece.detail) == (T1, T2, 2, "sampling/createMessage")


def test_kinds_are_kept_beside_each_other_and_servers_apart() -> None:
    more = with_evidence(with_evidence(ASKED, "web npm:x", "probe_diverged", T2), "other", "probe_agreed", T3)
    assert [each.kind for each in evidence_of(more, "web npm:x")] == ["asked_ambiguously", "probe_diverged"]
    assert [each.kind for each in evidence_of(more, "other")] == ["probe_agreed"]
    assert evidence_of(more, "nobody") == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage \xff",
        b"[]",
        b'{"version":2,"servers":{}}',
        b'{"version":1,"servers":{},"extra":1}',
        b'{"version":1,"servers":{"x":{"evidence":[{"kind":"made up","first":"","last":""}]}}}',
        b'{"version":1,"servers":' + b"[" * 100_000,
    ],
)
def test_a_broken_or_foreign_file_is_set_aside_and_said(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(data)
    found, said = load_evidence(path)
    assert found == NO_EVIDENCE
    assert path + ".aside-1" in said
    assert Path(path + ".aside-1").read_bytes() == data
    assert not os.path.exists(path)
    assert save_evidence(path, ASKED) == (ASKED, "")


def test_files_set_aside_do_not_pile_up(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    for number in range(15):
        Path(path).write_bytes(b"broken %d" % number)
        load_evidence(path)
    assert len(os.listdir(os.path.dirname(path))) == 9
    assert Path(path + ".aside-9").read_bytes() == b"broken 14"


def test_a_link_a_fifo_and_a_directory_in_its_place_are_moved_away_without_waiting(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    os.symlink("/etc/passwd", path)
    assert "symbolic link" in load_evidence(path)[1]
    os.mkfifo(path)
    assert "no regular file" in load_evidence(path)[1]
    os.mkdir(path)
    found, said = save_evidence(path, ASKED)
    assert "no regular file" in said
    assert found == ASKED
    assert load_evidence(path) == (ASKED, "")


def test_a_file_too_large_is_not_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_evidence(path, ASKED)
    monkeypatch.setattr(sharing_evidence, "MAX_BYTES", 10)
    assert "larger than" in load_evidence(path)[1]


def test_a_place_that_cannot_be_written_is_said_and_loses_nothing_in_memory(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the directory should be")
    found, said = save_evidence(str(tmp_path / "state" / "verdicts.json"), ASKED)
    assert found == ASKED
    assert "cannot be" in said


def test_a_save_that_fails_leaves_the_old_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_evidence(path, ASKED)

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    _, said = save_evidence(path, with_evidence(ASKED, "other", "probe_diverged", T2))
    assert "No space left" in said
    assert load_evidence(path) == (ASKED, "")
    assert os.listdir(os.path.dirname(path)) == ["verdicts.json"]


def test_two_supervisors_do_not_overwrite_each_other(path: str) -> None:
    save_evidence(path, ASKED)
    other = with_evidence(NO_EVIDENCE, "other", "probe_diverged", T2)
    whole, said = save_evidence(path, other)
    assert said == ""
    assert set(whole.servers) == {"web npm:x", "other"}
    assert load_evidence(path)[0] == whole


def test_the_longest_unseen_evidence_is_forgotten_past_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_evidence, "MAX_SERVERS", 2)
    found = with_evidence(
        with_evidence(with_evidence(NO_EVIDENCE, "a", "probe_agreed", T2), "b", "probe_agreed", T1),
        "c",
        "probe_agreed",
        T3,
    )
    assert set(found.servers) == {"a", "c"}


def test_a_long_detail_is_cut() -> None:
    (piece,) = evidence_of(with_evidence(NO_EVIDENCE, "a", "probe_agreed", T1, "x" * 1000), "a")
    assert len(piece.detail) == sharing_evidence.MAX_DETAIL


kinds: st.SearchStrategy[EvidenceKind] = st.sampled_from(
    ["asked_ambiguously", "probe_diverged", "probe_agreed"]
)
sightings = st.lists(st.tuples(st.sampled_from(["a", "b"]), kinds, st.sampled_from([T1, T2, T3])), max_size=6)


def told(seen: list[tuple[str, EvidenceKind, str]]) -> EvidenceFile:
    found = NO_EVIDENCE
    for key, kind, at in seen:
        found = with_evidence(found, key, kind, at)
    return found


def plain(found: EvidenceFile) -> dict[str, set[Evidence]]:
    return {key: set(known.evidence) for key, known in found.servers.items()}


@given(sightings, sightings)
@settings(deadline=None)
def test_merging_loses_nothing_in_either_order_and_twice_changes_nothing(
    one: list[tuple[str, EvidenceKind, str]], other: list[tuple[str, EvidenceKind, str]]
) -> None:
    mine, theirs = told(one), told(other)
    whole = merged_evidence(mine, theirs)
    assert plain(whole) == plain(merged_evidence(theirs, mine))
    assert plain(merged_evidence(whole, theirs)) == plain(whole)
    for key, kind, at in (*one, *other):
        (piece,) = [each for each in evidence_of(whole, key) if each.kind == kind]
        assert piece.first <= at <= piece.last
