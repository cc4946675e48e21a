"""The node's process: the configuration with which it starts, and the changes that it notices."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carpool.cluster import process
from carpool.cluster.links.link import NodeLink
from carpool.cluster.settings import make_link
from carpool.launcher.node_process import EXIT_UNWANTED
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.runtime import core_dumps
from tests.kit.node_links import until

WAIT_S = 20.0


@pytest.fixture
def directory() -> Iterator[Path]:
    """A runtime directory with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def cluster_file(directory: Path) -> Path:
    """A configuration in which the node alpha is in a cluster."""
    file = directory / "carpool.json"
    file.write_text(f'{{"cluster": {{"url": "ipc://{directory}/alpha.ipc", "node": "alpha"}}}}')
    return file


def run(file: Path, monkeypatch: pytest.MonkeyPatch, when_up: Callable[[], object] = lambda: None) -> int:
    """Run the process to its end, without what it does to the whole process. Returns the exit code."""
    directory = file.parent

    async def run_for_a_while(main: Coroutine[Any, Any, int]) -> int:
        running = asyncio.create_task(asyncio.wait_for(main, WAIT_S))
        await until(lambda: running.done() or Path(paths.node_file(str(directory))).exists())
        when_up()
        return await running

    monkeypatch.setenv("CARPOOL_STATE_DIR", str(directory / "state"))
    monkeypatch.setattr(
        process, "run_on_the_fastest_loop", lambda main, _: asyncio.run(run_for_a_while(main))
    )
    monkeypatch.setattr(process, "gc", SimpleNamespace(freeze=lambda: None, set_threshold=lambda *_: None))
    monkeypatch.setattr(core_dumps, "turn_off", lambda: None)
    monkeypatch.setattr(process, "raise_descriptor_limit", lambda wished: wished)
    monkeypatch.setattr(process, "LOOK_S", 0.05)
    return process.run(["--runtime-dir", str(directory), "--config", str(file)])


def test_a_change_of_the_file_while_the_process_starts_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `"url": "new"` the process waits for a NATS server before it looks at the file again."""
    file = cluster_file(directory)

    def make_link_late(*arguments: Any) -> NodeLink:
        file.write_text("{}")
        return make_link(*arguments)

    monkeypatch.setattr(process, "make_link", make_link_late)
    assert run(file, monkeypatch) == EXIT_UNWANTED


def test_a_process_that_starts_while_the_file_is_broken_goes_on_with_the_last_good_reading(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cluster_file(directory)
    good = load_layer(ConfigFile(str(file), asked_for=True), str(directory))
    LastGoodReadings(paths.last_good_file(str(directory))).save(good)
    file.write_text("{")
    assert run(file, monkeypatch, lambda: file.write_text("{}")) == EXIT_UNWANTED
