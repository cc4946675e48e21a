"""Whatever another node sends breaks no invariant, and lets no table and no log grow without bound.

Level: `NodeCore`, between a hostile node and the near ends, beside a good node whose session must not notice.
"""

from random import Random
from typing import Any, Final

import msgspec

from carpool.cluster.core.frames import CHANNEL_VERSION
from carpool.cluster.core.node import MAX_NODES, MAX_REPORTED, MAX_REPORTS, NodeCore, NodeEffect, Report
from carpool.cluster.core.offers import NodeOffer, ServerOffer
from carpool.cluster.core.own_servers import node_servers_text
from carpool.cluster.core.sessions import WINDOW_BYTES, EndSession, OpenAtBroker, PassBytes, SessionName
from carpool_protocol.config.reading.parse import read_config
from tests.behaviours import behaviour
from tests.fuzz.test_fuzz_link import garbage
from tests.kit.fuzzing import fuzz
from tests.kit.hostile import NAMES as ALL_NAMES

HOSTILE: Final = "gamma"
NAMES: Final = tuple(name for name in ALL_NAMES if "\ud83d" not in name)
"""msgpack and JSON carry no lone surrogate."""
NUMBERS: Final = (-1, 0, 1, 2, 3, 1 << 31, 1 << 63, -(1 << 63), (1 << 64) - 1)


def record(rng: Random) -> Any:
    """A record, mostly one of the right form."""
    session = rng.choice((*NUMBERS, 1, 2, 3, -1, -2))
    return rng.choice(
        (
            [1, session, rng.choice(("echo", "", *NAMES))],
            [2, session, bytes(rng.choice((0, 1, 70_000)))],
            [3, session, rng.choice(NUMBERS)],
            [4, session, rng.choice(("", "x" * 5000, *NAMES))],
            [5, offer(rng)],
            [6, rng.choice((True, False))],
            [
                7,
                rng.choice(NUMBERS),
                rng.choice(("ping", "story", "drain", *NAMES)),
                session,
                rng.choice(NUMBERS),
            ],
            [8, rng.choice(NUMBERS), b"{}"],
            garbage(rng),
        )
    )


def frame(rng: Random, core_id: int, number: int) -> bytes:
    """A message of the hostile node: a frame, a broken one, or none."""
    fields = [
        rng.choice((CHANNEL_VERSION,) * 8 + (0, 2, garbage(rng))),
        rng.choice((7, 7, 7, 7, *NUMBERS)),
        rng.choice((core_id, core_id, core_id, 0, *NUMBERS)),
        rng.choice((number, number, number, *NUMBERS)),
        rng.choice(NUMBERS),
        rng.choice((False, False, True)),
        [record(rng) for _ in range(rng.randrange(5))],
    ]
    data = msgspec.msgpack.encode(fields)
    roll = rng.randrange(10)
    if roll == 0:
        return data[: rng.randrange(len(data))]
    if roll == 1:
        return rng.randbytes(rng.randrange(200))
    if roll == 2:
        return b"\x91" * 5000
    return data


def offer(rng: Random) -> bytes:
    """An offer with hostile words."""
    servers = [
        {
            "name": rng.choice((*NAMES, "echo", f"s{rng.randrange(9)}")),
            "launch": rng.choice(("x", "y", "z" * 70)),
            "timeout_s": rng.choice((1.0, -1.0, 1e300)),
            "tools_prefix": rng.choice((None, "", *NAMES)),
            "tags": [rng.choice(NAMES)],
            "tool_timeouts_s": {rng.choice(NAMES): rng.choice((1.0, 0.0))},
        }
        for _ in range(rng.randrange(4))
    ]
    whole = {
        "node": rng.choice((HOSTILE, HOSTILE, HOSTILE, *NAMES)),
        "epoch": "e",
        "release": rng.choice(NAMES),
        "labels": [rng.choice(NAMES)],
        "servers": servers,
    }
    data = msgspec.json.encode(whole)
    return data if rng.randrange(8) else data[: rng.randrange(len(data))]


class Attacked:
    """A node with a good other one and a hostile one, and what its near ends were told."""

    def __init__(self) -> None:
        ids = iter(range(1, 1 << 30))
        self.now = 0.0
        self.core = NodeCore("alpha", "e", lambda: next(ids))
        self.good = NodeCore("beta", "e", lambda: next(ids))
        for core, other in ((self.core, "beta"), (self.good, "alpha")):
            offered = NodeOffer(
                node=other, epoch="e", release="1", servers=[ServerOffer(name="echo", launch="x")]
            )
            core.offer_received(other, msgspec.json.encode(offered), 0.0)
        self.reports = 0
        self.passed: dict[SessionName, int] = {}
        self.open: set[SessionName] = set()
        self.text = b""
        for _ in range(4):
            self.exchange()
        self.session = self.good.open_session("alpha", "echo")

    def take(self, effects: list[NodeEffect]) -> None:
        """Do what a node's near ends do, which never pass anything on."""
        for effect in effects:
            match effect:
                case OpenAtBroker():
                    self.open.add(effect.session)
                case PassBytes():
                    assert effect.session in self.open
                    if effect.session.node == "beta":
                        self.text += effect.data
                    taken = self.passed.get(effect.session, 0) + len(effect.data)
                    assert taken <= WINDOW_BYTES
                    self.passed[effect.session] = taken
                case EndSession():
                    self.open.discard(effect.session)
                    self.passed.pop(effect.session, None)
                case Report():
                    self.reports += 1
                case _:
                    pass

    def exchange(self) -> None:
        """Pass frames between the two good nodes."""
        self.now += 0.01
        for source, core, target in (("alpha", self.core, self.good), ("beta", self.good, self.core)):
            effects = core.tick(self.now)
            for node, data in core.take_frames(self.now):
                if node == ("beta" if source == "alpha" else "alpha"):
                    effects_there = target.frame_received(source, data, self.now)
                    self.take(effects_there if target is self.core else [])
            self.take(effects if core is self.core else [])


@behaviour("cluster:hostile")
def test_what_a_hostile_node_sends_disturbs_no_session_of_another_node() -> None:
    def play(rng: Random) -> None:
        world = Attacked()
        said = b""
        number = 1
        for _ in range(60):
            hostile_id = world.core._nodes[HOSTILE].channel._id if HOSTILE in world.core._nodes else 0
            if rng.randrange(6):
                world.take(world.core.frame_received(HOSTILE, frame(rng, hostile_id, number), world.now))
            else:
                name = rng.choice((HOSTILE, *NAMES))
                world.take(world.core.offer_received(name, offer(rng), world.now))
            if HOSTILE in world.core._nodes:
                number = world.core._nodes[HOSTILE].channel._received + 1
            if not rng.randrange(5):
                world.good.send(world.session, b"still here ")
                said += b"still here "
            world.exchange()
            world.core.check()
            offered = {
                name: ("*", each.offer) for name, each in world.core.servers(frozenset({"echo"})).items()
            }
            text = node_servers_text("alpha", offered)
            found = read_config(text, "node-servers.json")
            assert found.config is not None, found.problems
        for _ in range(100):
            world.exchange()
        assert world.text == said

    fuzz(play, examples=8, seeds=20)


@behaviour("cluster:hostile")
def test_frames_of_many_names_and_forms_make_no_table_and_no_log_grow() -> None:
    world = Attacked()
    for number in range(3 * MAX_NODES):
        name = f"n{number}"
        world.take(world.core.frame_received(name, b"junk", world.now))
        world.take(world.core.frame_received(f"\x1b{name}", b"junk", world.now))
        world.take(world.core.offer_received(name, b"junk", world.now))
    before = world.reports
    assert before <= MAX_REPORTED * MAX_REPORTS + 2
    for _ in range(1000):
        world.take(world.core.frame_received("n1", b"junk", world.now))
        world.take(world.core.offer_received("n1", b"junk", world.now))
    assert world.reports <= before + 1
    assert len(world.core._nodes) <= MAX_NODES
