"""Facts for this node's offer: the configuration file, and what runs here.

Owns when the file is read again, and the questions to the broker: which servers keep state of each agent, how
many calls are open, and which servers the profile of peers grants. A broker that does not answer changes
nothing; before its first answer a node with a profile offers nothing.

Knows nothing of: links, other nodes, the form of an offer.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from carpool.cluster.core.local_sessions import SessionRefusal
from carpool.cluster.core.offers import ServerOffer
from carpool.cluster.core.own_servers import own_names, own_offers
from carpool.cluster.settings import NodeSettings, last_good_layer
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.file_stamps import Stamp, is_current

ASK_S: Final = 4.0
"""The broker is asked again after this time. It is shorter than `PUBLISH_S`: each offer has new answers."""
FRESH_S: Final = 0.2
"""An answer of the broker that is younger than this is not asked for again."""
RETRY_S: Final = 0.5
"""It is asked again after this time if it did not answer, or the mode of a server is not decided yet."""


class OwnOffer:
    """The servers that this node offers."""

    def __init__(self, directory: str, file: ConfigFile, settings: NodeSettings, home: str) -> None:
        self._directory = directory
        self._file = ConfigFile(file.path, file.asked_for)
        self._settings = settings
        self._home = home
        self._config: Config | None = None
        self._seen: Mapping[str, Stamp] = {}
        """The stamps of all files of the configuration, also of included ones and of the `env_file`."""
        self._known: set[str] = set()
        """The variables that an agent of another node has here: the broker fills in none of carpool's own."""
        self._stateful: dict[str, bool] = {}
        self._granted: frozenset[str] | None = None
        """The servers that the profile of other nodes grants; None: the broker has not said yet."""
        self._asked_at = float("-inf")
        self._kept: dict[str, str] = {}
        self._offered: list[ServerOffer] = []
        self.is_decided = False
        """True if the broker has said of each server with `sharing` `auto` how it is shared (the supervisor
        decides that also for one that has not run), and what the profile of other nodes grants.
        """
        self.open_calls = 0
        """Calls that are open here."""
        self.names: frozenset[str] = frozenset()
        """The servers of this node, offered or not: their names are taken."""

    def config_changed(self) -> None:
        """Read the configuration again at the next `read`, and ask the broker."""
        self._config = None
        self._asked_at = float("-inf")

    def refusal(self, server: str) -> SessionRefusal:
        """Return why this server is not offered to other nodes."""
        if any(each.name == server for each in self._offered):
            return SessionRefusal("")
        node = self._settings.node
        if self._config is None:
            return SessionRefusal(f"node {node} has not read its configuration yet")
        if self._is_profile_unknown:
            return SessionRefusal(f"node {node} does not know yet what the profile of other nodes grants")
        why = self._kept.get(server, "it has no such server, or it is disabled")
        return SessionRefusal(f"node {node} does not offer {server}: {why}", is_final=True)

    async def refresh(self) -> None:
        """Ask the broker, unless it was asked a moment ago."""
        if asyncio.get_running_loop().time() >= self._asked_at + FRESH_S:
            self._asked_at = float("-inf")
            await self.read()

    async def read(self) -> tuple[list[ServerOffer], dict[str, str]]:
        """Return the offered servers, and the reasons of the others."""
        if self._config is None or not is_current(self._seen):
            layer = load_layer(self._file, self._home)
            self._seen = layer.seen
            if layer.loaded.config is None and self._config is None:
                layer = last_good_layer(self._file, self._home, self._directory) or layer
            if layer.loaded.config is not None:
                self._config = layer.loaded.config
                self._known = set(layer.env)
        now = asyncio.get_running_loop().time()
        if now >= self._asked_at + ASK_S:
            self._asked_at = now
            await asyncio.to_thread(self._ask_broker)
        if self._config is not None:
            node = self._settings.node
            if not self._is_profile_unknown:
                self._offered, self._kept = own_offers(
                    self._config, node, self._known, self._stateful, self._barred(self._config)
                )
            self.names = own_names(self._config, node)
        return self._offered, self._kept

    def _ask_broker(self) -> None:
        try:
            with ControlClient(self._directory, control=True) as client:
                self._read_status(msgspec.json.decode(client.request("carpool/status", {})))
            self._ask_profile()
        except (ControlClientError, AnsweredError, msgspec.MsgspecError, KeyError, TypeError):
            self._asked_at += RETRY_S - ASK_S  # the broker has just started, or is being replaced
        self.is_decided = self.is_decided and not self._is_profile_unknown

    def _read_status(self, status: Mapping[str, Any]) -> None:
        self.is_decided = True
        for name, server in status["servers"].items():
            if server["sharing"] != "auto":
                self._stateful[name] = server["sharing"] == "session"
            elif server["state"] in {"cold", "away"} and name not in self._stateful:
                self.is_decided = False
        if not self.is_decided:
            self._asked_at += RETRY_S - ASK_S
        self.open_calls = status["totals"]["in_flight"]

    def _ask_profile(self) -> None:
        profile = self._settings.cluster.profile
        if not profile:
            return
        with ControlClient(self._directory, profile=profile) as client:
            granted = msgspec.json.decode(client.request("carpool/servers", {}))
        self._granted = frozenset(str(server["name"]) for server in granted["servers"])

    def _barred(self, config: Config) -> frozenset[str]:
        """Return the servers that the profile keeps back."""
        return frozenset() if self._granted is None else frozenset(config.servers) - self._granted

    @property
    def _is_profile_unknown(self) -> bool:
        return bool(self._settings.cluster.profile) and self._granted is None
