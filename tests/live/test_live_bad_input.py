"""One daemon, hostile peers on every side of it, and agents beside them that must not notice.

What is said comes from the grammars of `tests/fuzz`, which say it a hundred times as often in memory.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import trio
import trio.lowlevel
import zmq

from carpool_protocol.bootstrap import paths
from carpool_protocol.link.codec import FrameData, SplitFrame
from tests.behaviours import behaviour
from tests.fuzz.test_fuzz_link import frame
from tests.fuzz.test_fuzz_terminal import is_harmless
from tests.kit import hostile_agents
from tests.kit.hostile import fresh_ids
from tests.kit.hostile_servers import Hostile
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, kit, observer, undisturbed
from tests.live.conftest import shared_daemon

SEED: Final = 20261122
RUNTIME: Final = {"timeout_s": 2, "max_total_s": 4, "wait_s": 2}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    rng = random.Random(SEED)
    hostile = Hostile(rng, "handshake", badness=1.0)
    hostile.asked += range(1, 200)
    said = [hostile._unasked().replace(b"\n", b" ") for _ in range(500)]
    file = tmp_path_factory.mktemp("babble") / "lines"
    file.write_bytes(b"\n".join(said))
    yield from shared_daemon({"good": observer(), "evil": kit("babbler", str(file), **RUNTIME)})


async def spoil(daemon: Daemon, rng: random.Random) -> None:
    """One hostile connection, from its first line to its end."""
    fresh, ids = fresh_ids(), list[bytes]()
    stream = await trio.open_unix_socket(paths.agents_socket(str(daemon.directory)))
    async with stream:
        with suppress(trio.BrokenResourceError), trio.move_on_after(2):
            if rng.random() < 0.6:
                await stream.send_all(hostile_agents.attach(rng) + b"\n")
            for _ in range(rng.randrange(1, 5)):
                said = [hostile_agents.line(rng, fresh, ids).line for _ in range(rng.randrange(1, 12))]
                await stream.send_all(b"\n".join(said) + b"\n")
            await stream.send_all(b'{"half": "')
            with trio.move_on_after(0.05):
                while await stream.receive_some(1 << 16):
                    pass


@behaviour("bad-input:live")
async def test_hostile_agents_beside_a_good_one(shared: Daemon) -> None:
    rng = random.Random(SEED)
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared):
            for _ in range(10):
                async with trio.open_nursery() as nursery:
                    for _ in range(6):
                        nursery.start_soon(spoil, shared, random.Random(rng.random()))


@behaviour("bad-input:live")
async def test_a_hostile_server_beside_a_good_one(shared: Daemon) -> None:
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared), shared.agent() as agent:
            for at in range(25):  # what it babbles may well be the answer to a later call: there is one each
                answered = await agent.call("evil__echo", {"text": str(at)})
                assert answered is not None


@behaviour("bad-input:live", "bad-input:terminal")
async def test_what_a_hostile_server_says_of_itself_is_shown_and_not_obeyed(shared: Daemon) -> None:
    async with shared.agent() as agent:
        await agent.call("evil__echo", {"text": "x"})
        for words in (
            ("tools",),
            ("status",),
            ("ps",),
            ("logs", "evil"),
            ("logs", "--daemon"),
            ("why", "evil"),
        ):
            code, out, err = await shared.carpool(*words)
            is_harmless(out + err)
            assert code == 0, err
        assert "evil" in (await shared.carpool("logs", "evil"))[1]


def parts(data: FrameData) -> tuple[bytes, ...]:
    return (data.head, data.body) if isinstance(data, SplitFrame) else (data,)


@behaviour("bad-input:live")
async def test_strangers_and_garbage_on_the_link(shared: Daemon) -> None:
    """Its socket is the user's own; still, nothing that somebody writes there ends a process of ours."""
    rng = random.Random(SEED)
    before = shared.facts()["supervisors"]
    with trio.fail_after(LIMIT_S):
        async with undisturbed(shared):
            with zmq.Context() as context:
                for name in (b"stranger", b"", b"\xff\xfe", b"sup2"):
                    with context.socket(zmq.DEALER) as dealer:
                        dealer.linger = 200
                        if name:
                            dealer.routing_id = name
                        dealer.connect(paths.link_endpoint(str(shared.directory)))
                        for _ in range(100):
                            frames = [frame(rng) for _ in range(rng.choice((1, 1, 1, 3)))]
                            dealer.send_multipart([part for each in frames for part in parts(each)])
                        await trio.lowlevel.checkpoint()
            raw = Path(paths.link_socket(str(shared.directory)))
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(raw))
                sock.sendall(rng.randbytes(4096))
            await trio.lowlevel.checkpoint()
    assert shared.facts()["supervisors"] == before
