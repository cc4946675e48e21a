"""The demo of three nodes: every answer right, honest errors where a node dies, nothing left."""

import json

import pytest

from carpool.demo import cluster


def test_the_demo_of_three_nodes_has_no_wrong_answer_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "PHASE_S", 2.0)
    monkeypatch.setattr(cluster, "READY_S", 90.0)
    output, problems = cluster.perform_cluster(4, as_json=True)
    facts = json.loads(output)
    assert problems == []
    assert [phase["wrong"] for phase in facts["phases"]] == [0, 0, 0]
    assert sum(phase["answered"] for phase in facts["phases"])
