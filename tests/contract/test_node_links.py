"""What each link between nodes promises, over ZeroMQ on one machine, ZeroMQ with CURVE, and NATS."""

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import socket
import tempfile
from typing import Any

import nats
import pytest
import zmq
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from carpool.cluster.core.frames import FRAME_BYTES
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links import nats as nats_link
from carpool.cluster.links.link import FRAMES_PER_TURN, LinkError
from carpool.cluster.links.nats import NatsLink
from carpool.cluster.links.nats_access import NatsAccess
from carpool.cluster.links.zmq import NodeAddress, ZmqNodeLink
from tests.behaviours import behaviour
from tests.kit.node_links import NodeLinkEnd, connected, curve_links, key_pair, two_ends, until
from tests.kit.ports import free_port

KINDS = ("ipc", "curve", "nats")
each_link = pytest.mark.parametrize("kind", KINDS)


@behaviour("cluster:links")
@each_link
def test_frames_come_in_order_and_say_who_sent_them(kind: str) -> None:
    async def run() -> None:
        async with two_ends(kind) as (alpha, beta):
            for number in range(300):
                alpha.link.send("beta", b"%d" % number)
            await until(lambda: len(beta.frames) == 300)
            assert beta.frames == [("alpha", b"%d" % number) for number in range(300)]

    asyncio.run(run())


@each_link
def test_a_frame_of_the_greatest_size_passes_unchanged(kind: str) -> None:
    async def run() -> None:
        async with two_ends(kind) as (alpha, beta):
            frame = os.urandom(alpha.link.frame_bytes)
            alpha.link.send("beta", frame)
            await until(lambda: bool(beta.frames))
            assert beta.frames == [("alpha", frame)]

    asyncio.run(run())


@each_link
def test_a_frame_for_nobody_is_dropped(kind: str) -> None:
    async def run() -> None:
        async with two_ends(kind) as (alpha, beta):
            alpha.link.send("gamma", b"x")
            alpha.link.send("beta", b"y")
            await until(lambda: bool(beta.frames))
            assert beta.frames == [("alpha", b"y")]

    asyncio.run(run())


@each_link
def test_a_node_that_comes_again_is_reached_again(kind: str) -> None:
    async def run() -> None:
        async with two_ends(kind) as (alpha, beta):
            await beta.stop()
            alpha.link.send("beta", b"lost or not")
            beta.start()

            def passes() -> bool:
                alpha.link.send("beta", b"again")
                return ("alpha", b"again") in beta.frames

            await until(passes)

    asyncio.run(run())


def test_an_offer_over_nats_is_there_for_later_nodes_and_goes_with_its_node() -> None:
    async def run() -> None:
        async with two_ends("nats") as (alpha, beta):
            await alpha.link.publish(b"first")
            await until(lambda: beta.offers.get("alpha") == b"first")
            assert isinstance(beta.link, NatsLink)
            late = NodeLinkEnd(NatsLink(beta.link._access, "c", "gamma"))
            late.start()
            await until(lambda: late.offers.get("alpha") == b"first")
            await alpha.link.leave()
            await until(lambda: beta.offers.get("alpha") == b"" and late.offers.get("alpha") == b"")
            await late.stop()

    asyncio.run(run())


def test_clusters_of_two_names_on_one_nats_server_know_nothing_of_each_other() -> None:
    async def run() -> None:
        async with two_ends("nats") as (alpha, beta):
            assert isinstance(beta.link, NatsLink)
            other = NodeLinkEnd(NatsLink(beta.link._access, "d", "beta"))
            other.start()
            await until(lambda: other.restored > 0)
            await other.link.publish(b"theirs")
            await alpha.link.publish(b"ours")
            alpha.link.send("beta", b"x")
            await until(lambda: bool(beta.frames) and bool(beta.offers))
            assert (other.frames, beta.offers) == ([], {"alpha": b"ours"})
            await other.stop()

    asyncio.run(run())


def test_a_nats_server_that_is_started_again_is_found_again() -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = EmbeddedNats(directory)
            await server.start()
            ends = [NodeLinkEnd(NatsLink(NatsAccess(server.url), "c", name)) for name in ("alpha", "beta")]
            for end in ends:
                end.start()
            await until(lambda: all(end.restored for end in ends))
            server.stop()
            await until(lambda: not any(end.link.is_up for end in ends))
            ends[0].link.send("beta", b"while it is away")
            ends[0].link.send("alpha", b"to itself, which is back as soon as the sender is")
            await server.start()
            await until(lambda: all(end.restored == 2 for end in ends))
            ends[0].link.send("beta", b"again")
            await ends[0].link.publish(b"offer")
            await until(lambda: bool(ends[1].frames) and bool(ends[1].offers))
            assert [end.frames for end in ends] == [[], [("alpha", b"again")]]
            for end in ends:
                await end.stop()
            server.stop()

    asyncio.run(run())


def test_a_wrong_password_for_nats_is_reported_once_with_advice() -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = EmbeddedNats(directory)
            await server.start()
            end = NodeLinkEnd(
                NatsLink(NatsAccess("nats://wrong@" + server.url.rpartition("@")[2]), "c", "alpha")
            )
            end.start()
            await until(lambda: "cluster.credentials" in end.link.problem)
            assert sum("refuses this node" in each for each in end.reports) == 1
            await end.stop()
            server.stop()

    asyncio.run(run())


def test_a_key_that_is_none_of_the_peers_is_refused_and_the_log_names_it() -> None:
    async def run() -> None:
        alpha, beta = map(NodeLinkEnd, curve_links("alpha", "beta"))
        alpha.start()
        assert isinstance(alpha.link, ZmqNodeLink)
        public, secret = key_pair()
        there = NodeAddress(alpha.link._address, alpha.link._own_public)
        stranger = NodeLinkEnd(
            ZmqNodeLink(f"tcp://127.0.0.1:{free_port()}", "beta", {"alpha": there}, secret)
        )
        stranger.start()

        def is_told() -> bool:
            stranger.link.send("alpha", b"let me in")
            return any(public.hex() in report for report in alpha.reports)

        await until(is_told)
        assert alpha.frames == []
        for end in (alpha, beta, stranger):
            await end.stop()

    asyncio.run(run())


def test_a_peer_with_another_name_than_its_key_says_counts_under_the_name_of_its_key() -> None:
    async def run() -> None:
        alpha, beta = map(NodeLinkEnd, curve_links("alpha", "beta"))
        assert isinstance(beta.link, ZmqNodeLink)
        beta.link._node = "gamma"
        for end in (alpha, beta):
            end.start()

        def is_there() -> bool:
            beta.link.send("alpha", b"x")
            return bool(alpha.frames)

        await until(is_there)
        assert {node for node, _ in alpha.frames} == {"beta"}
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())


def test_a_node_that_was_refused_reaches_the_other_once_that_knows_its_key() -> None:
    async def run() -> None:
        alpha_link, beta_link = curve_links("alpha", "beta")
        there = alpha_link._peers["beta"]
        alpha_link._peers.clear()
        alpha, beta = NodeLinkEnd(alpha_link), NodeLinkEnd(beta_link)
        for end in (alpha, beta):
            end.start()
        await until(lambda: any("refuses the key" in report for report in beta.reports))
        await alpha.stop()
        alpha_link._peers["beta"] = there
        alpha.start()

        def passes() -> bool:
            beta.link.send("alpha", b"x")
            return bool(alpha.frames)

        await until(passes)
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())


def test_a_peer_to_which_no_socket_can_be_made_is_named_and_tried_again() -> None:
    async def run() -> None:
        alpha_link, beta_link = curve_links("alpha", "beta")
        make, tries = beta_link._new_socket, itertools.count()

        def no_socket_at_first(*given: Any) -> Any:
            if not next(tries):
                raise zmq.ZMQError(errno.EMFILE)
            return make(*given)

        beta_link._new_socket = no_socket_at_first  # type: ignore[assignment]
        alpha, beta = NodeLinkEnd(alpha_link), NodeLinkEnd(beta_link)
        for end in (alpha, beta):
            end.start()
        await until(lambda: any("no connection to node alpha" in report for report in beta.reports))
        await connected(alpha, beta)
        await until(lambda: beta.link.problem == "")
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())


class _NoFrames(list[tuple[str, bytes]]):
    """A taker of frames with a bug."""

    def append(self, _: tuple[str, bytes]) -> None:
        raise ZeroDivisionError


@each_link
def test_a_bug_in_what_takes_frames_is_not_reported_as_trouble_of_the_link(kind: str) -> None:
    """The node's process ends then, so that no session waits for what was left out."""

    async def run() -> None:
        bugs: list[BaseException] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: bugs.append(told["exception"]))
        async with two_ends(kind) as (alpha, beta):
            alpha.frames = _NoFrames()
            beta.link.send("alpha", b"x")
            if kind == "nats":  # the client calls it
                await until(lambda: bool(bugs))
            else:
                bugs.append(await alpha.failure() or AssertionError("the link goes on"))
            assert [type(each) for each in bugs] == [ZeroDivisionError]
            assert alpha.reports == beta.reports == ["NATS is connected"] * (kind == "nats")

    asyncio.run(run())


def test_a_node_reports_a_peer_that_has_another_key_than_configured() -> None:
    async def run() -> None:
        alpha_link, beta_link = curve_links("alpha", "beta")
        wrong, _ = key_pair()
        beta_link._peers["alpha"] = NodeAddress(beta_link._peers["alpha"].address, wrong)
        alpha, beta = NodeLinkEnd(alpha_link), NodeLinkEnd(beta_link)
        for end in (alpha, beta):
            end.start()
        await until(lambda: any("alpha" in each and "another key" in each for each in beta.reports))
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())


def test_without_a_key_nothing_listens() -> None:
    with pytest.raises(LinkError, match="carpool cluster key"):
        ZmqNodeLink("tcp://127.0.0.1:7400", "alpha", {})


def test_a_frame_of_carpool_fits_into_the_messages_of_nats() -> None:
    assert FRAME_BYTES < 1_000_000


@behaviour("cluster:keys")
def test_a_node_whose_key_a_peer_does_not_know_says_so_and_is_admitted_with_the_key() -> None:
    async def run() -> None:
        alpha, beta = curve_links("alpha", "beta")
        public, secret = key_pair()
        changed = ZmqNodeLink(beta._address, "beta", beta._peers, secret)
        ends = [NodeLinkEnd(alpha), NodeLinkEnd(changed)]
        for end in ends:
            end.start()
        await until(lambda: "node alpha refuses the key" in ends[1].link.problem)
        await until(lambda: any(public.hex() in each for each in ends[0].reports))
        await ends[1].stop()
        assert sum("refuses the key" in each for each in ends[1].reports) == 1
        back = NodeLinkEnd(beta)
        back.start()
        await connected(ends[0], back)
        assert back.link.problem == ""
        for end in (ends[0], back):
            await end.stop()

    asyncio.run(run())


@behaviour("cluster:hostile")
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100_000, b"NULL"])
def test_strangers_at_the_port_of_a_node_are_told_of_once_and_disturb_nobody(said: bytes) -> None:
    """`NULL`: a ZeroMQ socket without a key, which sends frames."""

    async def run() -> None:
        alpha, beta = map(NodeLinkEnd, curve_links("alpha", "beta"))
        for end in (alpha, beta):
            end.start()
        assert isinstance(alpha.link, ZmqNodeLink)
        await until(lambda: alpha.restored == 1)
        address = alpha.link._address
        with contextlib.ExitStack() as stack:
            context = stack.enter_context(zmq.Context())

            def come_without_key() -> None:
                sock = stack.enter_context(context.socket(zmq.PUSH))
                sock.linger = 0
                sock.connect(address)
                sock.send(b"frame", zmq.NOBLOCK)

            def is_reported() -> bool:
                # A stranger that ends the handshake first looks like a connection that broke.
                if not alpha.reports:
                    come_without_key()
                return any("without a key" in each for each in alpha.reports)

            for _ in range(20):
                if said == b"NULL":
                    come_without_key()
                    continue
                port = int(address.rpartition(":")[2])
                stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                stranger.setblocking(False)
                with contextlib.suppress(OSError):
                    stranger.send(said)
            await connected(alpha, beta)
            if said == b"NULL":
                await until(is_reported)
        assert len(alpha.reports) <= 1
        assert alpha.frames == []
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())


@behaviour("cluster:hostile")
def test_frames_of_a_name_that_is_no_peer_or_of_no_name_are_not_taken_up() -> None:
    """Any program of the same user can write to the socket of an `ipc://` link."""

    async def run() -> None:
        async with two_ends("ipc") as (alpha, _):
            assert isinstance(alpha.link, ZmqNodeLink)
            with zmq.Context() as context, context.socket(zmq.PUSH) as stranger:
                stranger.connect(alpha.link._address)
                for parts in ([b"gamma", b"1"], [b"alpha", b"2"], [b"", b"3"], [b"4"], [b"\xff", b"5"]):
                    stranger.send_multipart(parts)
                stranger.send_multipart([b"beta", b"last"])
                await until(lambda: ("beta", b"last") in alpha.frames)
            assert alpha.frames == [("beta", b"last")]

    asyncio.run(run())


@behaviour("cluster:hostile")
def test_what_a_consumer_of_the_bucket_delivers_is_no_frame_of_any_node() -> None:
    """Who may make a consumer chooses where it delivers: also to the subject of a node's frames."""

    async def run() -> None:
        async with two_ends("nats") as (alpha, beta):
            await alpha.link.publish(b"offer")
            assert isinstance(beta.link, NatsLink)
            client = await nats.connect(beta.link._access.url)
            try:
                heard: list[bytes] = []

                async def overhear(message: Msg) -> None:
                    heard.append(message.data)

                await client.subscribe("carpool.c.beta.alpha", cb=overhear)
                config = ConsumerConfig(deliver_subject="carpool.c.beta.alpha", ack_policy=AckPolicy.NONE)
                await client.jetstream().add_consumer("KV_carpool-c", config)
                await until(lambda: b"offer" in heard)
            finally:
                await client.close()
            alpha.link.send("beta", b"frame")
            await until(lambda: bool(beta.frames))
            assert beta.frames == [("alpha", b"frame")]

    asyncio.run(run())


@behaviour("cluster:links")
def test_frames_that_waited_when_nats_was_lost_are_not_sent_when_it_is_back() -> None:
    """They are of a time before: the channel has sent them again, or its other end is another one."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            server = EmbeddedNats(directory)
            await server.start()
            ends = [NodeLinkEnd(NatsLink(NatsAccess(server.url), "c", name)) for name in ("alpha", "beta")]
            for end in ends:
                end.start()
            await until(lambda: all(end.restored for end in ends))
            os.kill(server.pid, signal.SIGSTOP)
            for _ in range(60):  # to itself: it is back as soon as the sender is
                ends[0].link.send("alpha", bytes(ends[0].link.frame_bytes))
            await asyncio.sleep(0)
            server.kill()
            await until(lambda: not any(end.link.is_up for end in ends))
            await server.start()
            await until(lambda: all(end.restored == 2 for end in ends))
            ends[0].link.send("beta", b"new")
            ends[0].link.send("alpha", b"new")
            await until(lambda: all(("alpha", b"new") in end.frames for end in ends))
            assert [end.frames for end in ends] == [[("alpha", b"new")]] * 2
            for end in ends:
                await end.stop()
            server.stop()

    asyncio.run(run())


@behaviour("cluster:links")
def test_frames_beyond_what_may_wait_for_nats_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with two_ends("nats") as (alpha, beta):
            monkeypatch.setattr(nats_link, "MAX_QUEUED_BYTES", 5000)
            for number in range(10):
                alpha.link.send("beta", b"%d" % number * 1000)
            await until(lambda: len(beta.frames) >= 5)
            alpha.link.send("beta", b"last")
            await until(lambda: ("alpha", b"last") in beta.frames)
            assert [frame[:1] for _, frame in beta.frames] == [b"0", b"1", b"2", b"3", b"4", b"l"]

    asyncio.run(run())


FLOOD_FRAMES = 400
"""More than the link takes up in one turn of the event loop, and fewer than its socket holds."""


@behaviour("cluster:hostile")
def test_a_flood_of_one_peer_leaves_turns_of_the_event_loop_to_everything_else() -> None:
    """Without them the node's process acknowledges nothing, and counts as dead."""

    async def run() -> None:
        async with two_ends("ipc") as (alpha, _):
            assert isinstance(alpha.link, ZmqNodeLink)
            with zmq.Context() as context, context.socket(zmq.PUSH) as sender:
                sender.sndhwm, sender.sndtimeo = 1, 20_000
                sender.connect(alpha.link._address)
                # The loop does not run meanwhile, and the sender keeps none: they wait in alpha's socket.
                for _ in range(FLOOD_FRAMES):
                    sender.send_multipart([b"beta", b"\xff" * 20_000])
                most, seen = 0, 0
                while len(alpha.frames) < FLOOD_FRAMES:
                    await asyncio.sleep(0)
                    most, seen = max(most, len(alpha.frames) - seen), len(alpha.frames)
            assert most <= 2 * FRAMES_PER_TURN

    asyncio.run(run())


@behaviour("cluster:hostile")
def test_a_flood_over_nats_leaves_turns_of_the_event_loop_to_everything_else() -> None:
    async def run() -> None:
        async with two_ends("nats") as (alpha, beta):
            seen, most = len(alpha.frames), 0
            last = seen + FLOOD_FRAMES
            for _ in range(FLOOD_FRAMES):
                beta.link.send("alpha", b"\xff" * 100)
            while len(alpha.frames) < last:
                await asyncio.sleep(0)
                most, seen = max(most, len(alpha.frames) - seen), len(alpha.frames)
            assert most <= 2 * FRAMES_PER_TURN

    asyncio.run(run())


@behaviour("cluster:links")
def test_a_node_whose_port_is_taken_listens_once_that_is_free() -> None:
    async def run() -> None:
        alpha_link, beta_link = curve_links("alpha", "beta")
        port = int(alpha_link._address.rpartition(":")[2])
        alpha, beta = NodeLinkEnd(alpha_link), NodeLinkEnd(beta_link)
        with socket.socket() as other:
            other.bind(("127.0.0.1", port))
            other.listen()
            alpha.start()
            await until(lambda: "cannot listen" in alpha.link.problem)
            assert not alpha.link.is_up
        beta.start()
        await connected(alpha, beta)
        assert alpha.link.problem == ""
        assert sum("cannot listen" in each for each in alpha.reports) == 1
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())


def test_an_address_at_which_nothing_can_ever_listen_ends_the_link() -> None:
    async def run() -> None:
        [alpha, _] = curve_links("alpha", "beta")
        alpha._address = "tcp://not-an-address"
        end = NodeLinkEnd(alpha)
        end.start()
        failure = await end.failure()
        assert isinstance(failure, LinkError)
        assert "cannot listen" in str(failure)

    asyncio.run(run())


STRANGERS = 2500
"""More than the monitor of a socket holds events that nobody has taken."""
_KEYLESS = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""The greeting of a ZeroMQ socket without a key (ZMTP 3.0)."""


@behaviour("cluster:hostile")
def test_thousands_of_handshakes_without_a_key_do_not_stop_the_frames_of_a_node() -> None:
    async def stranger(port: int) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_KEYLESS)
                await reader.read()
                writer.close()

    async def run() -> None:
        async with two_ends("curve") as (alpha, beta):
            assert isinstance(alpha.link, ZmqNodeLink)
            port = int(alpha.link._address.rpartition(":")[2])
            for _ in range(STRANGERS // 50):
                await asyncio.gather(*(stranger(port) for _ in range(50)))
            beta.link.send("alpha", b"still here")
            await until(lambda: ("beta", b"still here") in alpha.frames)
            assert sum("without a key" in each for each in alpha.reports) == 1

    asyncio.run(run())


@behaviour("cluster:hostile")
def test_a_message_above_the_limit_ends_its_connection_and_later_frames_pass() -> None:
    async def run() -> None:
        alpha, beta = map(NodeLinkEnd, curve_links("alpha", "beta"))
        for end in (alpha, beta):
            end.start()
        await connected(alpha, beta)
        beta.link.send("alpha", bytes(5 * FRAME_BYTES))

        def passes() -> bool:
            beta.link.send("alpha", b"x")
            return bool(alpha.frames)

        await until(passes)
        assert {frame for _, frame in alpha.frames} == {b"x"}
        for end in (alpha, beta):
            await end.stop()

    asyncio.run(run())
