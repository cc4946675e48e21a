"""A hostile node with the cluster's credentials, and an agent of the attacked node that must not notice."""

import asyncio
import json
from typing import Final

import psutil
from msgspec import msgpack

from carpool.cluster.core.frames import CHANNEL_VERSION, CHUNK_BYTES
from carpool.cluster.embedded_nats import EmbeddedNats
from carpool.cluster.links.nats import NatsLink
from carpool.cluster.links.nats_access import NatsAccess
from carpool_protocol.runtime.node_join import node_pid
from tests.behaviours import behaviour
from tests.kit.live import Daemon, Make, kit
from tests.kit.node_links import NodeLinkEnd, until

LIMIT_S: Final = 100.0
OPENS: Final = 3000
HOSTILE_ID: Final = 7


def frame(target: int, number: int, records: list[object]) -> bytes:
    """A frame of the hostile node's channel."""
    return msgpack.encode([CHANNEL_VERSION, HOSTILE_ID, target, number, 0, False, records])


async def attack(url: str, alpha: Daemon) -> None:
    """Open sessions by the thousand, send more than any window, garbage, and hostile offers."""
    link = NatsLink(NatsAccess(url), "carpool", "gamma")
    end = NodeLinkEnd(link)
    end.start()
    await until(lambda: end.restored == 1)
    servers = [{"name": name, "launch": "x"} for name in ("near", "\x1b[2J", "x" * 5000, "good")]
    offer = {"node": "gamma", "epoch": "e", "release": "\x1b[2J", "servers": servers}
    await end.link.publish(json.dumps(offer).encode())
    await until(lambda: bool(end.frames))
    target = msgpack.decode(end.frames[-1][1])[1]
    end.link.send("alpha", frame(target, 0, []))
    opens: list[object] = [[1, each, "near" if each % 2 else "nothing"] for each in range(1, OPENS)]
    end.link.send("alpha", frame(target, 1, opens))
    flood: list[object] = [[2, 1, bytes(CHUNK_BYTES)]] * 6
    for number in range(2, 60):
        end.link.send("alpha", frame(target, number, flood))
        end.link.send("alpha", b"\xff" * 1000)
    for number in range(500):
        other = f"carpool.carpool.alpha.n{number}"
        await link._client.publish(other, b"junk")
    await asyncio.to_thread(local_calls, alpha)
    offers = await asyncio.to_thread(lambda: set(alpha.carpool_json("status")["servers"]))
    assert offers == {"near", "good"}
    await end.stop()


def local_calls(alpha: Daemon) -> None:
    """Call a server of the attacked node."""
    for number in range(3):
        done = alpha.run("call", "near__echo", "--args", json.dumps({"text": f"local {number}"}))
        assert f"local {number}" in done.stdout, done.stderr


@behaviour("cluster:hostile")
def test_a_node_that_floods_another_one_is_bounded_and_told_of_in_few_lines(daemon: Make) -> None:
    base = Daemon()
    nats = EmbeddedNats(str(base.base / "nats"))
    try:
        nats.launch()
        alpha = daemon(
            {"near": kit("echo", sharing="concurrent")}, cluster={"url": nats.url, "node": "alpha"}
        )

        async def attacked() -> None:
            async with asyncio.timeout(LIMIT_S):
                while not (pid := node_pid(str(alpha.directory))):  # noqa: ASYNC110 - it is in a file
                    await asyncio.sleep(0.1)
                while "NATS is connected" not in alpha.log("node"):  # noqa: ASYNC110 - it is a file
                    await asyncio.sleep(0.1)
                await attack(nats.url, alpha)
                node = psutil.Process(pid)
                assert node.num_fds() < node.rlimit(psutil.RLIMIT_NOFILE)[0] * 3 / 4
                assert node.memory_info().rss < 400 * 2**20

        asyncio.run(attacked())
        lines = alpha.log("node").splitlines()
        assert len(lines) < 150, "some of the 500 names, and few more"
        assert sum("asked for nothing" in line for line in lines) == 1
    finally:
        nats.stop()
        base.close()
