"""What servers of the simulated world are like, and what they offer.

Owns their traits and their catalogs, and that an answer says which request it is about. Knows nothing of: how
an instance lives.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from carpool_protocol.ids import EMPTY_OBJECT, PoolKey, RawJson
from carpool_protocol.link.messages import Call, Catalog, Era, Feature, ResourceOffer, ToolOffer
from tests.world.sim.oracles.asks import Echo

READ = "resources/read"
BIG_BYTES = 4000
"""More than the link lets pass at once."""
FEATURES: tuple[Feature, ...] = (
    "tools",
    "tools.listChanged",
    "resources",
    "resources.subscribe",
    "logging",
)

Speaks = Literal["handshake", "stateless", "both"]
"""Which eras a server can be greeted in."""


class Traits(Struct, frozen=True, kw_only=True):
    """How a server behaves. Numbers are probabilities per occasion, unless they are times."""

    greet_s: float = 0.3
    answer_s: float = 0.2
    tools: int = 2
    no_command: bool = False
    never_greets: bool = False
    never_reads: bool = False
    deaf: bool = False
    """Ends on SIGKILL only."""
    ignores_ping: bool = False
    one_at_a_time: bool = False
    """Reads the next line when the last one is answered."""
    refuses: float = 0.0
    dies_at_start: float = 0.0
    dies_on_call: float = 0.0
    dies_after_call: float = 0.0
    mute: float = 0.0
    """Closes its stdout on a call and lives on."""
    closes_stdin: float = 0.0
    """Reads no more after a call, and lives on."""
    freezes: float = 0.0
    slow: float = 0.0
    progress: float = 0.0
    silent: float = 0.0
    doubles: float = 0.0
    unknowns: float = 0.0
    unreadable: float = 0.0
    errs: float = 0.0
    misspeaks: float = 0.0
    big: float = 0.0
    """Answers with more than the link lets pass at once."""
    big_bytes: int = BIG_BYTES
    """The size of such an answer."""
    pings: float = 0.0
    """Pings its client, as a sign of life and for nothing else."""
    breeds: bool = False
    """Its children hold its stdout open when it has ended."""
    choosy: bool = False
    """Offers one more tool to clients that can be asked."""
    list_changes: float = 0.0
    asks: float = 0.0
    """Asks its agent during a call, once or several times."""
    echo: Echo = "no"
    waits: bool = False
    """Answers a call when its asks have been answered."""
    as_task: bool = False
    """Runs each call as a task, and says so when it asks."""
    asks_late: float = 0.0
    """Asks about a call that it has answered."""
    asks_after_cancel: float = 0.0
    asks_about_nothing: float = 0.0
    asks_twice: float = 0.0
    """Under the id of an ask that is still open."""
    withdraws: float = 0.0
    sends_to_urls: float = 0.0
    """Answers a call with -32042."""
    speaks: Speaks = "handshake"
    shy: bool = False
    """Ends when it is greeted in an era that it does not speak."""
    pauses: float = 0.0
    """Wants a call said again a little later (stateless era)."""
    ttl_ms: int = -1
    """How long its lists and resources are current (stateless era)."""
    public: bool = False
    logs: float = 0.0
    marked: bool = False
    """Its tools say of which launch they are."""
    updates: float = 0.0
    """Says that its resource has changed, with each call."""

    @property
    def healthy(self) -> bool:
        """Whether it serves well once the dice rest."""
        return not (self.no_command or self.never_greets or self.never_reads or self.ignores_ping)

    def calm(self) -> "Traits":
        """The same server on a good day."""
        lasting = {f: getattr(self, f) for f in self.__struct_fields__ if isinstance(getattr(self, f), bool)}
        return Traits(
            greet_s=self.greet_s,
            answer_s=self.answer_s,
            tools=self.tools,
            asks=self.asks,
            echo=self.echo,
            speaks=self.speaks,
            ttl_ms=self.ttl_ms,
            **lasting,
        )


def body_of(call: Call, *, pad_bytes: int = 0) -> RawJson:
    """What a server answers: which call it was."""
    pad = b',"pad":"%b"' % (b"x" * pad_bytes) if pad_bytes else b""
    return RawJson(b'{"content":[],"n":%d%b}' % (number_of(call), pad))


def as_error(body: RawJson) -> RawJson:
    """The error of a server as its supervisor's adapter would have read it: an error object."""
    if bytes(body).startswith(b'{"content":'):
        return RawJson(b'{"code":-1,"message":"It failed.",%b' % body[1:])
    return body


def number_of(call: Call) -> int:
    """The number of the request behind a call."""
    return number_in(call.params)


def number_in(params: RawJson) -> int:
    """The number of the request that these are the params of."""
    number: int = msgspec.json.decode(params)["arguments"]["n"]
    return number


def uri_of(key: PoolKey) -> str:
    """The one resource of a server, the same in all its pools."""
    return f"sim://{key.partition(':')[0]}/r"


def catalog(key: PoolKey, traits: Traits, tools: int | None = None, era: Era = "handshake") -> Catalog:
    """What such a server offers; `tools`: so many tools, else as many as it begins with."""
    count = traits.tools if tools is None else tools
    count += traits.choosy and key.endswith(":asking")
    mark = b',"title":"%b"' % key.encode() if traits.marked else b""
    offers = [
        ToolOffer(f"t{i}", RawJson(b'{"name":"t%d","inputSchema":{"type":"object"}%b}' % (i, mark)))
        for i in range(count)
    ]
    uri = uri_of(key)
    resource = ResourceOffer(uri, RawJson(b'{"name":"r","uri":"%b"}' % uri.encode()))
    is_stateless = era == "stateless"
    return Catalog(
        key,
        offers,
        "",
        EMPTY_OBJECT,
        EMPTY_OBJECT,
        "2026-07-28" if is_stateless else "2025-11-25",
        resources=[resource],
        features=list(FEATURES),
        era=era,
        ttl_ms=traits.ttl_ms if is_stateless else -1,
        public=is_stateless and traits.public,
    )
