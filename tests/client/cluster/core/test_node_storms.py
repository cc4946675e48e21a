"""Storms over nodes keep every promise, and find bugs that are planted into channels and sessions."""

from collections.abc import Callable, Sequence

import pytest

from carpool.cluster.core.channel import ChannelEvent, NodeChannel
from carpool.cluster.core.frames import AnyRecord, ChannelFrame
from carpool.cluster.core.node import NodeCore
from carpool.cluster.core.sessions import NearEndEffect, NodeEvent, NodeSessions, SessionName
from tests.behaviours import behaviour
from tests.kit.node_storms import storm

SEEDS = 120


def _run_all() -> None:
    for seed in range(SEEDS):
        storm(seed)


@behaviour("cluster:bytes")
def test_storms_keep_every_promise() -> None:
    _run_all()


def take_frames_that_come_twice(patch: pytest.MonkeyPatch) -> None:
    def take(self: NodeChannel, frame: ChannelFrame, _now: float) -> Sequence[AnyRecord]:
        self._received = max(self._received, frame.number)
        return frame.records

    patch.setattr(NodeChannel, "_take", take)


def keep_the_numbers_of_an_earlier_life(patch: pytest.MonkeyPatch) -> None:
    """A session of a node that was started again is taken for one of its life before."""
    whole = NodeSessions.received

    def received(self: NodeSessions, events: list[ChannelEvent]) -> list[NodeEvent | NearEndEffect]:
        return whole(self, [each for each in events if type(each).__name__ != "ChannelLost"])

    patch.setattr(NodeSessions, "received", received)


def give_an_answer_to_the_next_session(patch: pytest.MonkeyPatch) -> None:
    """Bytes for one session are passed to another of the same node."""
    whole = NodeCore.send

    def send(self: NodeCore, session: SessionName, data: bytes) -> None:
        node = self._nodes.get(session.node)
        others = [] if node is None else [number for number in node._flows if number < session.number < 0]
        whole(self, SessionName(session.node, others[0]) if others else session, data)

    patch.setattr(NodeCore, "send", send)


def forget_what_was_lost(patch: pytest.MonkeyPatch) -> None:
    """Frames without an acknowledgement are not kept."""
    whole = NodeChannel._next_frame

    def next_frame(self: NodeChannel, now: float) -> ChannelFrame:
        frame = whole(self, now)
        kept = self._kept.pop()
        self._kept_bytes -= kept.size_bytes
        self._last_number = max(self._last_number, 0)
        return frame

    patch.setattr(NodeChannel, "_next_frame", next_frame)
    patch.setattr(NodeChannel, "check", lambda _: None)


def give_no_credit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeSessions, "bytes_passed", lambda *_: None)


@pytest.mark.parametrize(
    "plant",
    [
        take_frames_that_come_twice,
        keep_the_numbers_of_an_earlier_life,
        give_an_answer_to_the_next_session,
        forget_what_was_lost,
        give_no_credit,
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        _run_all()
