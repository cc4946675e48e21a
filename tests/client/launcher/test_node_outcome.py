"""The sentences of `carpool up --cluster`, from what the node's process has written."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from carpool.launcher import node_outcome
from carpool.launcher.node_outcome import NodeOutcome, wait_for_node
from carpool_protocol.bootstrap import paths


def write(directory: Path, **facts: Any) -> None:
    """Write facts of this test's process, in place of a node's."""
    whole = {"pid": os.getpid(), "own": {"node": "beta"}, "cluster": "c", "url": "nats://h", **facts}
    text = json.dumps(whole, separators=(",", ":"))
    Path(paths.node_file(str(directory))).write_text(text)


def test_a_node_that_has_joined_is_named_with_its_cluster(tmp_path: Path) -> None:
    write(tmp_path, is_up=True)
    assert wait_for_node(str(tmp_path)) == NodeOutcome("node beta is in the cluster c at nats://h", True)


def test_a_node_that_is_refused_says_why(tmp_path: Path) -> None:
    write(tmp_path, is_up=False, problem="the NATS server refuses this node")
    outcome = wait_for_node(str(tmp_path))
    assert not outcome.has_joined
    assert outcome.text == "this machine is not in the cluster yet: the NATS server refuses this node"


def test_a_process_that_has_ended_with_a_problem_says_so(tmp_path: Path) -> None:
    write(tmp_path, pid=0, problem="a `tcp://` address needs a key")
    assert wait_for_node(str(tmp_path)).text == (
        "this machine is not in the cluster: a `tcp://` address needs a key"
    )


@pytest.mark.parametrize("facts", [{}, {"is_up": True}])
def test_facts_of_an_earlier_process_are_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    monkeypatch.setattr(node_outcome, "JOIN_S", 0.1)
    write(tmp_path, **facts)
    assert "not in the cluster yet" in wait_for_node(str(tmp_path), earlier_pid=os.getpid()).text


@pytest.mark.parametrize("facts", [{"own": []}, {"own": None}, {"is_up": "yes"}, {"pid": 10**30}, {"url": 7}])
def test_a_file_that_no_node_has_written_is_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    monkeypatch.setattr(node_outcome, "JOIN_S", 0.1)
    write(tmp_path, **{"is_up": True, **facts})
    assert "not in the cluster yet" in wait_for_node(str(tmp_path)).text
