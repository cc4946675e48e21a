"""Nodes of a cluster: each byte of a session arrives once, in order, at its own end, or the session ends."""

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from carpool.cluster.core.channel import LOST_S
from carpool.cluster.core.frames import CHANNEL_VERSION, FRAME_BYTES, ChannelFrame, encode_frame
from carpool.cluster.core.node import (
    GONE_S,
    MAX_OFFER_CHANGES,
    NodeCore,
    NodeEffect,
    NoNodeError,
    OffersChanged,
    Report,
)
from carpool.cluster.core.offers import NodeOffer, ServerOffer
from carpool.cluster.core.sessions import WINDOW_BYTES
from tests.behaviours import behaviour
from tests.kit.bytecodes import count_bytecodes
from tests.kit.node_world import NodeWorld, SessionText

NODES = ("alpha", "beta", "gamma")


def connected() -> NodeWorld:
    world = NodeWorld(*NODES)
    world.run(3.0)
    return world


def opened(world: NodeWorld, node: str = "alpha", other: str = "beta") -> SessionText:
    session = world.open(node, other)
    assert session is not None
    return session


def test_what_an_agent_says_comes_back() -> None:
    world = connected()
    session = opened(world)
    world.say(session, 1000)
    world.run(1.0)
    assert session.returned == session.wanted


def test_more_than_the_window_comes_back_too() -> None:
    world = connected()
    session = opened(world)
    world.say(session, 2 * WINDOW_BYTES // len(session.label))
    world.run(5.0)
    assert session.returned == session.wanted


def test_a_short_cut_costs_a_pause() -> None:
    world = connected()
    session = opened(world)
    world.say(session, 10)
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.run(LOST_S / 4)
    world.say(session, 10)
    world.cuts = set()
    world.run(6.0)
    assert (session.end, session.returned) == ("", session.wanted)


def test_a_long_cut_ends_the_session_and_no_other_one() -> None:
    world = connected()
    cut, other = opened(world), opened(world, "alpha", "gamma")
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.run(LOST_S + 2.0)
    world.say(other, 10)
    world.run(1.0)
    assert "was not heard" in cut.end
    assert (other.end, other.returned) == ("", other.wanted)
    assert not [name for node, name in world.served if (node, name.node) == ("beta", "alpha")]


def test_after_a_long_cut_new_sessions_open() -> None:
    world = connected()
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.run(3 * LOST_S)
    assert world.open("alpha", "beta") is None
    world.cuts = set()
    world.offer_all()
    world.run(5.0)
    session = opened(world)
    world.say(session, 3)
    world.run(1.0)
    assert session.returned == session.wanted


def test_a_cut_in_one_direction_ends_the_sessions_at_both_ends() -> None:
    world = connected()
    session = opened(world)
    world.run(1.0)
    world.cuts = {("beta", "alpha")}
    world.run(2 * LOST_S + 5.0)
    assert session.end
    assert not world.served


def test_a_node_that_is_started_again_has_none_of_the_earlier_sessions() -> None:
    world = connected()
    session = opened(world)
    world.say(session, 10)
    world.run(1.0)
    world.start("beta")
    world.run(3.0)
    assert "started again" in session.end
    again = opened(world)
    world.say(again, 5)
    world.run(1.0)
    assert again.returned == again.wanted


def test_nodes_that_know_each_other_by_name_only_meet() -> None:
    world = NodeWorld("alpha", "beta", offers=False)
    world.cores["alpha"].introduce("beta", world.now)
    world.run(2 * LOST_S)
    world.cores["beta"].introduce("alpha", world.now)
    world.run(3.0)
    assert world.cores["alpha"].reached() == ["beta"]
    assert world.cores["beta"].reached() == ["alpha"]


def test_frames_are_as_small_as_the_link_needs_them() -> None:
    """A NATS server may take smaller messages than the default, which is known once it is connected."""
    world = NodeWorld("alpha", "beta", frame_bytes=FRAME_BYTES)
    world.run(3.0)
    session = opened(world)
    alpha = world.cores["alpha"]
    for least, most in ((0, 700), (700, 5000)):
        alpha.link_restored(world.now, most)
        for _ in range(200):
            world.say(session, 5)
        sizes = [len(frame) for _, frame in alpha.take_frames(world.now)]
        assert least < max(sizes) <= most
        world.run(5.0)


class Cluster(RuleBasedStateMachine):
    """Three nodes, agents that talk, links that lose, cuts, deaths."""

    @initialize()
    def connect(self) -> None:
        self.world = connected()

    @rule(node=st.sampled_from(NODES), other=st.sampled_from([*NODES, "*"]))
    def open(self, node: str, other: str) -> None:
        self.world.open(node, other)

    @precondition(lambda self: self.world.sessions)
    @rule(data=st.data(), times=st.integers(1, 400))
    def say(self, data: st.DataObject, times: int) -> None:
        self.world.say(data.draw(st.sampled_from(self.world.sessions)), times)

    @precondition(lambda self: any(not each.end for each in self.world.sessions))
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.world.close(data.draw(st.sampled_from([each for each in self.world.sessions if not each.end])))

    @rule(seconds=st.sampled_from([0.01, 0.06, 0.6, 1.5, 7.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.flush()

    @rule(data=st.data(), lose=st.booleans())
    def deliver(self, data: st.DataObject, lose: bool) -> None:
        self.world.flush()
        pairs = sorted(pair for pair, queue in self.world.queues.items() if queue)
        if pairs:
            self.world.deliver(data.draw(st.sampled_from(pairs)), lose=lose)

    @rule(node=st.sampled_from(NODES), other=st.sampled_from(NODES))
    def cut(self, node: str, other: str) -> None:
        self.world.cuts ^= {(node, other)}

    @rule(node=st.sampled_from(NODES))
    def start_again(self, node: str) -> None:
        self.world.start(node)

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0]))
    def run(self, seconds: float) -> None:
        self.world.run(seconds)

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """Heal everything: each session that is open gets all of its text back."""
        self.world.cuts = set()
        self.world.run(3 * LOST_S)
        for session in self.world.sessions:
            assert session.end or session.returned == session.wanted


Cluster.TestCase.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCluster = behaviour("cluster:bytes")(Cluster.TestCase)


def test_another_node_of_the_same_name_is_reported_once_and_an_earlier_life_of_this_one_is_not() -> None:
    core = NodeCore("alpha", "mine", iter(range(1, 9)).__next__)

    def come(epoch: str) -> list[NodeEffect]:
        offer = NodeOffer(node="alpha", epoch=epoch, release="")
        return core.offer_received("alpha", msgspec.json.encode(offer), 0.0)

    assert come("earlier") == [], "it stands in the store until this life has written its own"
    assert come("mine") == []
    [report] = come("other")
    assert isinstance(report, Report)
    assert "another node is called alpha too" in report.text
    assert come("mine") == come("other") == []
    assert core.has_namesake(LOST_S - 1.0)
    assert not core.has_namesake(LOST_S), "it was not heard again"


@behaviour("doctor:cluster")
def test_a_node_that_was_there_and_is_not_heard_is_silent_until_it_is_heard_or_leaves() -> None:
    world = connected()
    alpha = world.cores["alpha"]
    assert alpha.silent(world.now) == {}
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.run(2 * LOST_S)
    assert alpha.silent(world.now)["beta"] >= LOST_S
    assert list(alpha.silent(world.now)) == ["beta"]
    world.cuts = set()
    world.offer_all()
    world.run(3.0)
    assert alpha.silent(world.now) == {}
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.run(2 * LOST_S)
    alpha.offer_received("beta", b"", world.now)
    assert alpha.silent(world.now) == {}


@behaviour("doctor:cluster")
def test_a_configured_node_that_never_came_is_silent() -> None:
    world = NodeWorld("alpha", "beta", offers=False)
    world.cuts = {("alpha", "beta"), ("beta", "alpha")}
    world.cores["alpha"].introduce("beta", world.now)
    world.run(30.0)
    assert list(world.cores["alpha"].silent(world.now)) == ["beta"]


@behaviour("cluster:story")
def test_a_node_that_starts_again_gives_its_sessions_other_numbers_than_before() -> None:
    """The other node remembers ended sessions by number, and tells stories of them."""
    world = connected()
    numbers: set[int] = set()
    for _ in range(3):
        numbers |= {opened(world).name.number for _ in range(5)}
        world.start("alpha")
        world.run(3.0)
    assert len(numbers) == 15


class CutLink(NodeWorld):
    """The nodes alpha and beta. The link of alpha is cut whenever it has carried `carried_bytes`, and works
    again a second later.
    """

    def __init__(self, carried_bytes: int) -> None:
        super().__init__("alpha", "beta", frame_bytes=FRAME_BYTES)
        self.carried_bytes = carried_bytes
        self.cut_count = 0
        self._left_bytes = carried_bytes
        self._is_cut_until = 0.0

    def deliver(self, pair: tuple[str, str], *, lose: bool = False) -> None:
        """Deliver a frame if the link carries all of it."""
        frame = self.queues[pair][0] if self.queues.get(pair) else b""
        self._left_bytes -= len(frame)
        if self._left_bytes < 0 and not self.cuts:
            self.cuts = {("alpha", "beta"), ("beta", "alpha")}
            self.cut_count += 1
            self._is_cut_until = self.now + 1.0
        super().deliver(pair, lose=lose or bool(self.cuts))

    def run(self, duration_s: float) -> None:
        """Let time pass; the link works again when it is time."""
        end = self.now + duration_s
        while self.now < end:
            super().run(min(0.02, end - self.now))
            if self.cuts and self.now >= self._is_cut_until:
                self.cuts = set()
                self._left_bytes = self.carried_bytes
                self.cores["alpha"].link_restored(self.now, FRAME_BYTES)


@behaviour("cluster:cuts")
def test_a_link_that_is_cut_again_and_again_carries_what_there_is_to_carry() -> None:
    world = CutLink(100_000)
    world.run(3.0)
    session = opened(world)
    world.say(session, 200_000)
    for _ in range(300):
        world.run(1.0)
        world.check()
    assert (session.end, len(session.returned)) == ("", len(session.wanted))
    assert world.cut_count > 10


def refusal_of(core: NodeCore, node: str, server: str = "echo") -> tuple[str, bool]:
    """The reason why a node opens no session, and whether it lasts."""
    with pytest.raises(NoNodeError) as caught:
        core.open_session(node, server)
    return str(caught.value), caught.value.is_final


@behaviour("cluster:refusals")
def test_a_node_that_has_just_left_may_be_started_again_and_one_that_stays_away_is_gone() -> None:
    world = connected()
    core = world.cores["alpha"]
    core.offer_received("beta", b"", world.now)
    assert refusal_of(core, "beta") == (
        "node beta is not in the cluster now (`carpool cluster status`)",
        False,
    )
    assert core.next_deadline() <= world.now + GONE_S
    core.tick(world.now + GONE_S)
    gone = "node beta has left the cluster; `carpool restart --all` there joins again"
    assert refusal_of(core, "beta") == (gone, True)
    world.offer_all()
    assert core.open_session("beta", "echo").node == "beta"


@behaviour("cluster:refusals")
def test_a_server_that_a_node_does_not_offer_is_refused_for_good_and_a_draining_node_is_not() -> None:
    world = connected()
    core = world.cores["alpha"]
    assert refusal_of(core, "beta", "git")[1]
    assert not refusal_of(core, "*", "git")[1], "the broker has not read yet that it is gone"
    echo = ServerOffer(name="echo", launch="x")
    draining = NodeOffer(node="beta", epoch="", release="", is_draining=True, servers=[echo])
    core.offer_received("beta", msgspec.json.encode(draining), world.now)
    assert not refusal_of(core, "beta")[1]


@behaviour("cluster:refusals")
def test_a_node_with_another_version_of_the_protocol_is_refused_for_good_until_it_is_another() -> None:
    world = NodeWorld("alpha")
    core = world.cores["alpha"]
    echo = ServerOffer(name="echo", launch="x")
    offer = NodeOffer(node="beta", epoch="", release="", servers=[echo])
    core.offer_received("beta", msgspec.json.encode(offer), 0.0)
    assert not refusal_of(core, "beta")[1]
    frame = ChannelFrame(CHANNEL_VERSION + 1, 7, 0, 0, 0, missing=False, records=[])
    core.frame_received("beta", encode_frame(frame), 0.0)
    text, is_final = refusal_of(core, "*")
    assert ("install the same carpool on both" in text, is_final) == (True, True)
    core.frame_received("beta", encode_frame(replace(frame, version=CHANNEL_VERSION)), 0.0)
    assert core.open_session("*", "echo").node == "beta"


def _offer_of(count: int, epoch: str = "") -> bytes:
    servers = [ServerOffer(name=f"s{at}", launch="l") for at in range(count)]
    return msgspec.json.encode(NodeOffer(node="beta", epoch=epoch, release="", servers=servers))


@behaviour("cluster:many-servers")
def test_of_an_offer_with_too_many_servers_the_first_are_used_and_the_log_says_so_once() -> None:
    core = NodeCore("alpha", "e", lambda: 1, max_servers=100)
    told = core.offer_received("beta", _offer_of(999), 0.0)
    assert len(core.servers()) == 100
    [report] = [each for each in told if isinstance(each, Report)]
    assert "999 servers" in report.text
    assert "cluster.max_servers_per_node" in report.text
    assert core.offer_received("beta", _offer_of(999), 5.0) == []


@behaviour("cluster:many-servers")
def test_the_work_for_an_offer_grows_with_its_servers() -> None:
    def work(count: int) -> int:
        core = NodeCore("alpha", "e", lambda: 1, max_servers=count)
        bytecodes = count_bytecodes(lambda: core.offer_received("beta", _offer_of(count), 0.0))
        assert len(core.servers()) == count
        return bytecodes

    assert work(400) < 15 * work(40)


@behaviour("cluster:many-servers")
def test_a_node_whose_offer_changes_without_end_changes_the_servers_here_a_few_times_a_minute() -> None:
    core = NodeCore("alpha", "e", lambda: 1)
    changes = 0
    for at in range(600):
        told = core.offer_received("beta", _offer_of(1 + at % 7), at / 10)
        changes += sum(isinstance(each, OffersChanged) for each in told)
    assert changes <= 1 + MAX_OFFER_CHANGES
    core.offer_received("beta", _offer_of(40), 200.0)
    assert len(core.servers()) == 40, "the last one counts in the end"
