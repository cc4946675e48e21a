"""The node's process: which changes of its configuration it notices."""

import asyncio
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carpool.cluster import process
from carpool.cluster.links.link import NodeLink
from carpool.cluster.settings import make_link
from carpool.launcher.node_process import EXIT_UNWANTED
from carpool_protocol.runtime import core_dumps

WAIT_S = 20.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """A runtime directory with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_a_change_of_the_file_while_the_process_starts_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `"url": "new"` the process waits for a NATS server before it looks at the file again."""
    file = directory / "carpool.json"
    file.write_text(f'{{"cluster": {{"url": "ipc://{directory}/alpha.ipc", "node": "alpha"}}}}')

    def make_link_late(*arguments: Any) -> NodeLink:
        file.write_text("{}")
        return make_link(*arguments)

    def run_for_a_while(main: Coroutine[Any, Any, int], _: str) -> int:
        return asyncio.run(asyncio.wait_for(main, WAIT_S))

    monkeypatch.setenv("CARPOOL_STATE_DIR", str(directory / "state"))
    monkeypatch.setattr(process, "make_link", make_link_late)
    monkeypatch.setattr(process, "run_on_the_fastest_loop", run_for_a_while)
    monkeypatch.setattr(process, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    monkeypatch.setattr(core_dumps, "turn_off", lambda: None)
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda wished: wished)
    monkeypatch.setattr(process, "LOOK_S", 0.05)
    assert process.run(["--runtime-dir", str(directory), "--config", str(file)]) == EXIT_UNWANTED
