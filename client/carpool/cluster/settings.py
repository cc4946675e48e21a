"""The settings of a node, from the configuration file and the command line, and the link that they name.

Owns which file holds the key, what a URL of the command line replaces, the reading that counts while the file
is broken, and the sentences for settings that cannot work.

Knows nothing of: channels, sessions, offers.
"""

import os
import socket
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from carpool.cluster.keys import read_key
from carpool.cluster.links.link import LinkError, NodeLink
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.extras import install_command
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, ConfigLayer, load_layer
from carpool_protocol.config.schema.expand import from_home
from carpool_protocol.config.schema.model import ClusterConfig, Config
from carpool_protocol.config.schema.placement import node_name
from carpool_protocol.runtime.node_join import NodeJoin

NEW: Final = "new"


class NodeSettings(Struct, frozen=True):
    """The settings of this node."""

    node: str
    cluster: ClusterConfig
    """Its `url` may be the command line's."""
    key_file: str


def last_good_layer(file: ConfigFile, home: str, directory: str) -> ConfigLayer | None:
    """Return the last good reading of a broken file; None if there is none. `directory`: the runtime
    directory, in which a broker keeps it.
    """
    kept = LastGoodReadings(paths.last_good_file(directory)).find(file.path)
    return None if kept is None else load_layer(file, home, earlier=kept)


def node_settings(config: Config, join: NodeJoin, home: str) -> NodeSettings | None:
    """Return the settings; None if the configuration has no cluster. `join`: the command line's."""
    cluster = config.cluster if not join.url else replace(config.cluster, url=join.url)
    if not cluster.url:
        return None
    node = node_name(join.node or cluster.node, socket.gethostname())
    return NodeSettings(node, cluster, key_file(config, home))


def key_file(config: Config, home: str) -> str:
    """Return the file with this node's secret key."""
    beside = os.path.join(os.path.dirname(config.file), "node.key")
    return from_home(config.cluster.key, home) if config.cluster.key else beside


def cluster_files(config: Config, home: str) -> list[tuple[str, str]]:
    """Return the files that the cluster needs, each with its setting; none without a cluster in the file."""
    cluster = config.cluster
    if cluster.url.startswith("tcp://"):
        return [("cluster.key", key_file(config, home))]
    if not cluster.url.startswith(("nats://", "tls://")):
        return []
    named = (("cluster.credentials", cluster.credentials), ("cluster.ca", cluster.ca))
    return [(setting, from_home(path, home)) for setting, path in named if path]


def make_link(settings: NodeSettings, url: str, home: str) -> NodeLink:
    """Return the link. `url`: the address, which differs from the settings' for `new`. Raises `LinkError`."""
    cluster = settings.cluster
    if url.startswith(("tcp://", "ipc://")):
        from carpool.cluster.links.zmq import NodeAddress, ZmqNodeLink  # only where it is the link

        secret = read_key(settings.key_file) if url.startswith("tcp://") else b""
        peers: dict[str, NodeAddress] = {}
        for each in cluster.peers:
            name, address, *key = each.split(" ")
            if name != settings.node:
                peers[name] = NodeAddress(address, bytes.fromhex(key[0]) if key else b"")
        return ZmqNodeLink(url, settings.node, peers, secret)
    try:
        from carpool.cluster.links.nats import NatsLink  # only where it is the link
        from carpool.cluster.links.nats_access import NatsAccess
    except ImportError:
        raise LinkError(f"a cluster over NATS needs more packages: `{install_command('cluster')}`") from None
    files = (cluster.credentials, cluster.ca, cluster.certificate, cluster.certificate_key)
    paths = [from_home(each, home) for each in files]
    return NatsLink(NatsAccess(url, *paths), cluster.name, settings.node)
