"""Near ends of sessions: which instance a session stands for, and both ends of its life."""

import msgspec

from carpool.cluster.core.local_sessions import LocalSessions, NearEndEvents, SessionRefusal
from carpool.cluster.core.node import NodeCore
from carpool.cluster.core.offers import NodeOffer, ServerOffer


class Supervisor:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[dict[str, object]] = []

    def tell(self, answer: dict[str, object]) -> None:
        """As `SessionAsker.tell`."""
        self.told.append(answer)


class KeptEnds:
    """Makes ends that keep what they got."""

    def __init__(self) -> None:
        self.made: list[KeptEnd] = []
        self.closed: list[str] = []

    def open_pipes(self, pipes: str, events: NearEndEvents) -> "KeptEnd":
        """As `NearEndMaker.open_pipes`."""
        return self._make(pipes, events)

    def close_pipes(self, pipes: str) -> None:
        """As `NearEndMaker.close_pipes`."""
        self.closed.append(pipes)

    def open_at_broker(self, node: str, server: str, events: NearEndEvents) -> "KeptEnd":
        """As `NearEndMaker.open_at_broker`."""
        return self._make(f"{node} {server}", events)

    def _make(self, what: str, events: NearEndEvents) -> "KeptEnd":
        self.made.append(KeptEnd(what, events))
        return self.made[-1]


class KeptEnd:
    """A near end."""

    def __init__(self, what: str, events: NearEndEvents) -> None:
        self.what = what
        self.events = events
        self.got = b""
        self.session = ""
        self.why: list[str] = []

    def pass_bytes(self, data: bytes) -> None:
        """As `NearEnd.pass_bytes`."""
        self.got += data

    def read_on(self) -> None:
        """As `NearEnd.read_on`."""

    def end(self, text: str) -> None:
        """As `NearEnd.end`."""
        self.why.append(text)


class Node:
    """One node of two, and its near ends."""

    def __init__(self, name: str, first_id: int) -> None:
        ids = iter(range(first_id, 1000))
        self.core = NodeCore(name, "", lambda: next(ids))
        self.ends = KeptEnds()
        self.refusal = SessionRefusal("")
        self.log: list[str] = []
        self.sessions = LocalSessions(
            self.core,
            self.ends,
            refusal=lambda _: self.refusal,
            flush_soon=lambda: None,
            log=lambda text, _: self.log.append(text),
            max_served=2,
        )


def two_nodes() -> tuple[Node, Node]:
    """`a`, and `b` that offers `echo`; they have reached each other."""
    a, b = Node("a", 1), Node("b", 1)
    a.core.offer_received("b", offer_of("b"), 0.0)
    carry(a, b)
    return a, b


def offer_of(node: str) -> bytes:
    """The offer of a node with the server `echo`."""
    echo = ServerOffer(name="echo", launch="x")
    return msgspec.json.encode(NodeOffer(node=node, epoch="", release="", servers=[echo]))


def carry(a: Node, b: Node) -> None:
    """Carry frames until nobody has one."""
    now = 0.0
    for _ in range(8):
        now += 0.1
        for here, there in ((a, b), (b, a)):
            frames = here.core.take_frames(now)
            for frame in [frame for node, frame in frames if node == there.core.name]:
                for effect in there.core.frame_received(here.core.name, frame, now):
                    there.sessions.perform(effect)
        a.sessions.check()
        b.sessions.check()


def test_a_session_passes_bytes_of_an_instance_to_the_broker_there() -> None:
    a, b = two_nodes()
    supervisor = Supervisor()
    a.sessions.open_for(supervisor, 7, "b", "echo", "pipes")
    [opened] = supervisor.told
    assert (opened["opened"], opened["node"]) == (7, "b")
    a.ends.made[0].events.send(b"hello\n")
    carry(a, b)
    assert (b.ends.made[0].what, b.ends.made[0].got) == ("a echo", b"hello\n")


def test_an_instance_without_a_node_is_told_why_and_its_pipes_are_closed() -> None:
    a, _ = two_nodes()
    supervisor = Supervisor()
    a.sessions.open_for(supervisor, 7, "b", "other", "pipes")
    why = "node b does not offer other: it has no such server, or it is disabled"
    assert supervisor.told == [{"failed": 7, "text": why, "is_final": True}]
    assert a.ends.closed == ["pipes"]
    assert not len(a.sessions)


def test_the_end_of_an_instance_ends_its_session_at_the_other_node() -> None:
    a, b = two_nodes()
    supervisor = Supervisor()
    a.sessions.open_for(supervisor, 7, "b", "echo", "pipes")
    carry(a, b)
    a.sessions.end_instance(supervisor, 7)
    carry(a, b)
    assert supervisor.told[1:] == [{"ended": 7, "text": "", "is_final": False}]
    assert b.ends.made[0].why == [""]
    assert (len(a.sessions), len(b.sessions)) == (0, 0)


def test_a_draining_node_refuses_a_session_that_was_asked_for_before_others_knew() -> None:
    a, b = two_nodes()
    b.core.set_draining(is_on=True)
    supervisor = Supervisor()
    a.sessions.open_for(supervisor, 7, "b", "echo", "pipes")
    carry(a, b)
    assert supervisor.told[1:] == [{"ended": 7, "text": "the node is draining", "is_final": False}]
    assert not b.ends.made


def test_a_refused_session_ends_with_the_reason_of_the_other_node() -> None:
    a, b = two_nodes()
    why = "node b does not offer echo: it is disabled"
    b.refusal = SessionRefusal(why, is_final=True)
    supervisor = Supervisor()
    for instance, node in ((7, "b"), (8, "*")):
        a.sessions.open_for(supervisor, instance, node, "echo", "pipes")
    carry(a, b)
    ended = [each for each in supervisor.told if "ended" in each]
    assert ended == [{"ended": instance, "text": why, "is_final": True} for instance in (7, 8)]
    assert not b.ends.made


def test_a_refusal_for_good_by_one_of_two_nodes_leaves_the_other() -> None:
    a, b = two_nodes()
    a.core.offer_received("c", offer_of("c"), 0.0)
    b.refusal = SessionRefusal("no", is_final=True)
    supervisor = Supervisor()
    for instance, node in ((7, "b"), (8, "*")):
        a.sessions.open_for(supervisor, instance, node, "echo", "pipes")
    carry(a, b)
    ended = [each for each in supervisor.told if "ended" in each]
    assert [each["is_final"] for each in ended] == [True, False]


def test_a_node_refuses_sessions_that_it_has_no_descriptors_for_and_logs_that_once() -> None:
    a, b = two_nodes()
    supervisor = Supervisor()
    for instance in (1, 2, 3, 4):
        a.sessions.open_for(supervisor, instance, "b", "echo", "pipes")
    carry(a, b)
    assert (len(b.sessions), len(b.log)) == (2, 1)
    a.sessions.end_instance(supervisor, 1)
    carry(a, b)
    a.sessions.open_for(supervisor, 5, "b", "echo", "pipes")
    carry(a, b)
    assert (len(b.sessions), len(b.log)) == (2, 1)


def test_a_node_logs_once_why_the_broker_ends_sessions_of_another_node() -> None:
    """That node may ask again each time, as fast as it can."""
    a, b = two_nodes()
    supervisor = Supervisor()
    for instance in (1, 2, 3):
        a.sessions.open_for(supervisor, instance, "b", "echo", "pipes")
        carry(a, b)
        b.ends.made[-1].events.ended("the profile allows no further session")
        carry(a, b)
    assert len(supervisor.told) == 6
    assert b.log == ["a session of node a ended: the profile allows no further session"]


def test_a_supervisor_that_is_gone_ends_its_own_sessions_only() -> None:
    a, b = two_nodes()
    gone, other = Supervisor(), Supervisor()
    a.sessions.open_for(gone, 1, "b", "echo", "first")
    a.sessions.open_for(other, 1, "b", "echo", "second")
    a.sessions.supervisor_gone(gone)
    carry(a, b)
    assert [end.why for end in a.ends.made] == [[""], []]
    assert (len(a.sessions), len(b.sessions)) == (1, 1)


def test_an_end_at_the_broker_that_is_gone_is_told_to_the_supervisor_of_the_agent() -> None:
    a, b = two_nodes()
    supervisor = Supervisor()
    a.sessions.open_for(supervisor, 7, "b", "echo", "pipes")
    carry(a, b)
    b.ends.made[0].events.ended("the broker has gone away")
    carry(a, b)
    why = "node b: the broker has gone away"
    assert supervisor.told[1:] == [{"ended": 7, "text": why, "is_final": False}]
    assert a.ends.made[0].why == ["node b: the broker has gone away"]
