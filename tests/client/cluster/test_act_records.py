"""Acts on nodes reach the broker, one line each, also a broker that comes later."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carpool.cluster.act_records import ActRecords, NodeAct
from carpool.cluster.core.node_requests import MAX_ALL_DRAINS
from tests.behaviours import behaviour
from tests.kit.fake_broker import FakeBroker, Json
from tests.kit.node_links import until


@pytest.fixture
def directory() -> Iterator[Path]:
    """A runtime directory with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def drained(number: int) -> NodeAct:
    return NodeAct(act="drain", node="beta", outcome="done", by=f"node-{number}")


def written(broker: FakeBroker) -> list[Json]:
    """The acts that the broker was told of."""
    return [each["params"] for each in broker.heard if each.get("method") == "carpool/node_act"]


@behaviour("cluster:acts")
def test_as_many_drains_at_once_as_other_nodes_may_ask_for_have_a_line_each_in_order(
    directory: Path,
) -> None:
    async def run(broker: FakeBroker) -> None:
        records = ActRecords(str(directory))
        for number in range(MAX_ALL_DRAINS):
            records.add(drained(number))
        await until(lambda: len(written(broker)) == MAX_ALL_DRAINS)
        assert [each["by"] for each in written(broker)] == [f"node-{n}" for n in range(MAX_ALL_DRAINS)]

    with FakeBroker(directory) as broker:
        asyncio.run(run(broker))


@behaviour("cluster:acts")
def test_an_act_waits_for_a_broker_that_is_being_replaced(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        records = ActRecords(str(directory))
        records.add(drained(1))
        await records.wait_written(0.2)
        with FakeBroker(directory) as broker:
            await records.wait_written(20.0)
            assert [each["act"] for each in written(broker)] == ["drain"]

    asyncio.run(run())
    assert "the audit has no line" not in capsys.readouterr().err


def test_an_act_that_no_broker_takes_is_in_the_log(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carpool.cluster.act_records.KEEP_S", 0.0)

    async def run() -> None:
        records = ActRecords(str(directory))
        records.add(drained(1))
        await records.wait_written(20.0)

    asyncio.run(run())
    assert "the audit has no line of `drain` of node beta" in capsys.readouterr().err


def test_an_act_is_not_sent_twice_if_the_broker_dies_before_it_answers(directory: Path) -> None:
    async def run(broker: FakeBroker) -> None:
        records = ActRecords(str(directory))
        records.add(drained(1))
        await records.wait_written(20.0)
        assert len(written(broker)) == 1

    with FakeBroker(directory, dies_of="carpool/node_act") as broker:
        asyncio.run(run(broker))
