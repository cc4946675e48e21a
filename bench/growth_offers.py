"""The CPU time of a node for the offers of a cluster, at several numbers of servers.

Owns three operations of the node's process, done in this one without links and files: it makes its own offer
from its configuration, takes up the offer of another node, and writes the servers of another node for its
broker. Figures are CPU seconds of this thread. `bench.growth` has them as rows of its table.

Knows nothing of: the page that the figures are for; how offers travel.
"""

import itertools
import json
import time
from collections.abc import Callable
from typing import Final

from carpool.cluster.core.node import NodeCore
from carpool.cluster.core.offers import NodeOffer, ServerOffer, fitting_offer
from carpool.cluster.core.own_servers import node_servers_text, own_offers
from carpool_protocol.config.reading.parse import read_config

REPEATS: Final = 5
"""Each operation is done so often; the figure is the least, because other work only adds."""


def make_own_offer(servers: int) -> float:
    """Return the CPU seconds for the offer of so many servers, and its bytes."""
    entries = {
        f"s{at}": {"command": "server", "args": [f"--place={at}"], "tags": ["code"]} for at in range(servers)
    }
    config = read_config(json.dumps({"mcpServers": entries}), "carpool.json").config
    assert config is not None
    return _least_s(lambda: fitting_offer(_offer("alpha", *own_offers(config, "alpha", (), {}))))


def take_up_offer(servers: int) -> float:
    """Return the CPU seconds for an offer that comes with so many servers, one of which is another one."""
    turns = itertools.count()
    core = NodeCore("beta", "epoch", lambda: next(turns))
    offers = [_encoded("alpha", servers, turn) for turn in range(REPEATS + 1)]
    core.offer_received("alpha", offers.pop(), 0.0)

    def take_up() -> None:
        core.offer_received("alpha", offers.pop(), 1.0)
        assert len(core.servers()) == servers

    return _least_s(take_up)


def write_servers(servers: int) -> float:
    """Return the CPU seconds for the text with so many servers of another node."""
    core = NodeCore("beta", "epoch", lambda: 1)
    core.offer_received("alpha", _encoded("alpha", servers, 0), 0.0)
    found = {name: ("*", each.offer) for name, each in core.servers().items()}
    return _least_s(lambda: node_servers_text("beta", found))


def _encoded(node: str, servers: int, turn: int) -> bytes:
    entries = {
        f"s{at}": {"command": "server", "args": [f"--turn={turn}"] if at == 0 else [str(at)]}
        for at in range(servers)
    }
    config = read_config(json.dumps({"mcpServers": entries}), "carpool.json").config
    assert config is not None
    offer, data = fitting_offer(_offer(node, *own_offers(config, node, (), {})))
    assert len(offer.servers) == servers, "the offer is cut"
    return data


def _offer(node: str, servers: list[ServerOffer], kept: dict[str, str]) -> NodeOffer:
    return NodeOffer(node=node, epoch="epoch", release="0.1.0", servers=servers, kept_local=kept)


def _least_s(work: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(REPEATS):
        before_s = time.thread_time()
        work()
        taken.append(time.thread_time() - before_s)
    return min(taken)
