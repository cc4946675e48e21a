"""The launcher's decision whether the node's process runs."""

from pathlib import Path

import pytest

from carpool.launcher.node_process import EXIT_CONFIG, EXIT_LEFT, EXIT_UNWANTED, NodeProcessWatch
from carpool_protocol.bootstrap import paths
from carpool_protocol.runtime.node_join import NodeJoin, write_join
from tests.behaviours import behaviour


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "carpool.json"
    file.write_text('{"cluster": {"url": "new"}}')
    return file


def watch_of(config: Path) -> NodeProcessWatch:
    return NodeProcessWatch(str(config.parent), str(config), {})


def test_a_file_that_names_a_cluster_starts_the_node_once_and_again_when_it_changes(config: Path) -> None:
    watch = watch_of(config)
    assert [watch.is_start_due(), watch.is_start_due()] == [True, False]
    config.write_text('{"cluster": {"url": "new"}, "mcpServers": {}}')
    assert watch.is_start_due()
    config.write_text("{}")
    assert not watch.is_start_due()


@pytest.mark.parametrize(
    ("status", "again"),
    [(0, True), (1, True), (-9, True), (EXIT_CONFIG, False), (EXIT_UNWANTED, False), (EXIT_LEFT, False)],
)
def test_a_node_is_started_again_unless_that_cannot_help(config: Path, status: int, again: bool) -> None:
    assert watch_of(config).should_restart(status) is again


@pytest.mark.xfail(
    reason="the launcher looks at the configuration file only: a node without a key is told to run `carpool "
    "cluster key`, and is not started when the key is there"
)
@behaviour("cluster:keys")
def test_a_node_that_had_no_key_is_started_once_the_key_is_there(config: Path) -> None:
    config.write_text('{"cluster": {"url": "tcp://127.0.0.1:7400"}}')
    watch = watch_of(config)
    assert watch.is_start_due()
    assert not watch.should_restart(EXIT_CONFIG)
    (config.parent / "node.key").write_text("ab" * 32)  # as `carpool cluster key` makes it
    assert watch.is_start_due()


def test_a_node_that_has_left_stays_away_whatever_changes_in_the_file(config: Path) -> None:
    """The file may have changed before the leave too, which the launcher does not look at meanwhile."""
    watch = watch_of(config)
    assert watch.is_start_due()
    config.write_text('{"cluster": {"url": "new"}, "mcpServers": {}}')
    assert not watch.should_restart(EXIT_LEFT)
    assert not watch.is_start_due()
    config.write_text('{"cluster": {"url": "new"}, "profiles": {}}')
    assert not watch.is_start_due()


@behaviour("cluster:leave")
def test_a_node_that_has_left_joins_again_when_a_user_says_so(config: Path) -> None:
    directory = str(config.parent)
    write_join(directory, NodeJoin("nats://127.0.0.1:1", "alpha"))
    watch = watch_of(config)
    assert watch.is_start_due()
    assert not watch.should_restart(EXIT_LEFT)
    assert not watch.is_start_due()
    write_join(directory, NodeJoin("nats://127.0.0.1:1", "alpha"))  # as `carpool up --cluster` does
    assert [watch.is_start_due(), watch.is_start_due()] == [True, False]


@behaviour("cluster:status")
def test_the_problem_of_a_node_goes_when_the_configuration_has_no_cluster_any_more(config: Path) -> None:
    """No process of the node runs then, and `carpool status` would show the problem for ever."""
    watch = watch_of(config)
    assert watch.is_start_due()
    facts = Path(paths.node_file(str(config.parent)))
    facts.write_text('{"pid": 0, "problem": "there is no key"}')
    assert not watch.should_restart(EXIT_CONFIG)
    assert not watch.is_start_due()
    assert facts.exists()
    config.write_text("{}")
    assert not watch.is_start_due()
    assert not facts.exists()
