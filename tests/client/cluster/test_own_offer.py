"""Changes of the modes of servers are noticed at once."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from carpool.cluster import own_offer
from carpool.cluster.own_offer import OwnOffer
from carpool.cluster.settings import NodeSettings
from carpool.control.control_client import ControlClientError
from carpool_protocol.config.reading.load import ConfigFile
from carpool_protocol.config.reading.parse import read_config
from tests.behaviours import behaviour
from tests.kit.node_links import until

Modes = dict[str, list[str]]


class ModesBroker:
    """A broker that tells the modes of its servers, as `ControlClient` reaches it."""

    def __init__(self) -> None:
        self.modes: Modes = {"echo": ["concurrent"]}
        self.changed = threading.Event()
        self.asked: list[Modes] = []
        self.is_away = False

    def __call__(self, _directory: str, *, control: bool) -> "ModesBroker":
        assert control
        if self.is_away:
            raise ControlClientError("it is away")
        return self

    def __enter__(self) -> "ModesBroker":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, method: str, params: dict[str, Any], timeout_s: float) -> bytes:
        """Answer once the modes are not the known ones."""
        assert (method, timeout_s > params["within_s"]) == ("carpool/sharing_modes", True)
        self.asked.append(params["known"])
        if self.modes == params["known"]:
            self.changed.wait(timeout_s)
            self.changed.clear()
        return msgspec.json.encode({"modes": self.modes})

    def change(self, modes: Modes) -> None:
        """Let the servers have other modes."""
        self.modes = modes
        self.changed.set()


@behaviour("cluster:state")
def test_a_server_that_begins_to_keep_state_is_noticed_at_once_and_not_by_asking_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ModesBroker()
    monkeypatch.setattr(own_offer, "ControlClient", broker)
    monkeypatch.setattr(own_offer, "CHANGE_PAUSE_S", 0.01)
    file = ConfigFile(str(tmp_path / "carpool.json"), asked_for=True)
    config = read_config('{"cluster": {"url": "new"}, "mcpServers": {}}', "carpool.json").config
    assert config is not None
    settings = NodeSettings(node="alpha", cluster=config.cluster, key_file="")
    changes: list[Modes] = []

    async def run() -> None:
        own = OwnOffer(str(tmp_path), file, settings, str(tmp_path))
        own.watch_modes(lambda: changes.append(broker.modes))
        await until(lambda: len(broker.asked) == 2)
        assert changes == [], "the first answer is no change"
        kept: Modes = {"echo": ["session"]}
        broker.change(kept)
        await until(lambda: changes == [kept])
        await until(lambda: broker.asked[-1] == kept)
        assert len(broker.asked) == 3
        broker.is_away = True
        broker.changed.set()
        await asyncio.sleep(0)
        broker.is_away = False
        broker.change({"echo": ["concurrent"]})
        await until(lambda: len(changes) == 2)

    asyncio.run(run())
