"""The settings of a cluster: `cluster` in the file. The key alone does not join one: `cluster.url` does.

Knows nothing of: links, keys, what a node offers.
"""

import re
from typing import Final

from carpool_protocol.config.schema.setting import Setting, count

NODE_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""A name of a node or of a cluster: part of subjects of NATS, and of names of servers."""
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_ADDRESS: Final = re.compile(r"tcp://[^\s/]+:\d{1,5}")
_NAME_RULE: Final = "must be 1 to 32 characters of a-z, 0-9 and -, such as alpha-2"
ANY_NODE: Final = "*"
_ANYWHERE: Final = frozenset({"0.0.0.0", "[::]", "*"})  # noqa: S104 - nothing is bound


def check_node_name(name: str) -> str | None:
    """The problem of a name of a node or of a cluster; None if it may be used, or is empty."""
    return None if not name or NODE_NAME.fullmatch(name) else _NAME_RULE


def check_node(name: str) -> str | None:
    """The same, with `*` for any node."""
    return None if name == ANY_NODE else check_node_name(name)


def check_label(label: str) -> str | None:
    """The problem of a label of a node."""
    good = bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", label))
    return None if good else "must be 1 to 63 letters, digits, `.`, `_` and `-`, with a letter or digit first"


def check_placement(label: str) -> str | None:
    """The problem of an entry of `on`."""
    plain = label.removeprefix("!")
    return check_node_name(plain[5:]) if plain.startswith("host:") else check_label(plain)


def is_anywhere(url: str) -> bool:
    """True if this `tcp://` address means all addresses of a machine: to listen there, not to be reached."""
    return url.removeprefix("tcp://").rpartition(":")[0] in _ANYWHERE


def check_peer(peer: str) -> str | None:
    """The problem of an entry of `cluster.peers`."""
    words = peer.split(" ")
    good = len(words) > 1 and NODE_NAME.fullmatch(words[0]) is not None
    if good and len(words) == 2 and words[1].startswith("ipc:///"):
        return None
    if good and is_anywhere(words[1]):
        return (
            f"names {words[1]}, which means all addresses of a machine and reaches none: write an address at "
            "which this machine reaches that node"
        )
    if good and len(words) == 3 and _ADDRESS.fullmatch(words[1]) and _KEY.fullmatch(words[2]):
        return None
    return (
        'must be "NAME tcp://HOST:PORT PUBLIC-KEY", as `carpool cluster key` writes it on that node, '
        'or "NAME ipc:///PATH" for one on this machine'
    )


def check_cluster_url(url: str) -> str | None:
    """The problem of `cluster.url`."""
    if url in {"", "new"} or url.startswith(("nats://", "tls://", "ipc:///")) or _ADDRESS.fullmatch(url):
        return None
    return "must begin with nats://, tls://, tcp:// (with a port) or ipc:///, or be `new`"


CLUSTER_SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        key="cluster.url",
        field="cluster.url",
        kind="text",
        default="",
        check=check_cluster_url,
        text="How this node reaches the others ([cluster.md](cluster.md)). `nats://HOST:PORT` or "
        "`tls://…`: a NATS server. `tcp://ADDRESS:PORT`: without one; this node listens there, and "
        "`cluster.peers` are the others. `ipc:///PATH`: the same between carpools of one machine. "
        "`new`: a NATS server that carpool runs itself, on this machine. Empty: no cluster.",
    ),
    Setting(
        key="cluster.node",
        field="cluster.node",
        kind="text",
        default="",
        check=check_node_name,
        text="The name of this node in the cluster. Default: the machine's name.",
    ),
    Setting(
        key="cluster.cluster_name",
        field="cluster.name",
        kind="text",
        default="carpool",
        check=check_node_name,
        text="The name of the cluster. Several can use one NATS server.",
    ),
    Setting(
        key="cluster.labels",
        field="cluster.labels",
        kind="texts",
        default=(),
        check=check_label,
        text="Words for what this machine has, such as `gpu`. Servers are placed by them (`on`).",
    ),
    Setting(
        key="cluster.profile",
        field="cluster.profile",
        kind="text",
        default="",
        text="The profile of agents of other nodes here: what they may call, see and use up. Empty: no "
        "limits.",
    ),
    Setting(
        key="cluster.drain_by",
        field="cluster.drain_by",
        kind="texts",
        default=(ANY_NODE,),
        check=check_node,
        text="The nodes that may make this one drain (`carpool cluster drain`), by name; `*`: any node of "
        "the cluster. Empty: only a command on this machine may.",
    ),
    count(
        "cluster.max_servers_per_node",
        "cluster.max_servers",
        100,
        "servers",
        "The most servers that agents here get of one other node; of an offer with more, the first ones.",
        high=1000,
    ),
    Setting(
        key="cluster.credentials",
        field="cluster.credentials",
        kind="text",
        default="",
        text="File with credentials for the NATS server, absolute or below `~`: a `.creds` file, or an NKEY "
        "seed alone. Others must not be able to read it.",
    ),
    Setting(
        key="cluster.ca",
        field="cluster.ca",
        kind="text",
        default="",
        text="File with the certificates that the NATS server's is checked against, with `tls://`. Default: "
        "those of the system.",
    ),
    Setting(
        key="cluster.certificate",
        field="cluster.certificate",
        kind="text",
        default="",
        text="File with the certificate of this node (PEM), for a NATS server that asks for one.",
    ),
    Setting(
        key="cluster.certificate_key",
        field="cluster.certificate_key",
        kind="text",
        default="",
        text="File with the key of that certificate. Default: `cluster.certificate` holds both.",
    ),
    Setting(
        key="cluster.key",
        field="cluster.key",
        kind="text",
        default="",
        text="File with this node's secret key, with `tcp://`. `carpool cluster key` makes it. Default: "
        "`node.key` beside the configuration file.",
    ),
    Setting(
        key="cluster.peers",
        field="cluster.peers",
        kind="texts",
        default=(),
        check=check_peer,
        text="The other nodes, with `tcp://` or `ipc:///`: each `NAME tcp://HOST:PORT PUBLIC-KEY`, as "
        "`carpool cluster key` writes it there. No other node is admitted.",
    ),
)
