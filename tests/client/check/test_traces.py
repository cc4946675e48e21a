"""The warning about traces whose packages are missing."""

import json
from typing import Any

import pytest

from carpool.check import traces
from carpool_protocol.config.reading.parse import read_config


def warnings(settings: Any) -> list[str]:
    loaded = read_config(json.dumps(settings, indent=1), "f")
    assert loaded.config is not None
    return traces.trace_warnings(loaded.config)


@pytest.mark.parametrize(
    ("installed", "settings", "count"),
    [
        (False, {"trace": {"on": True}}, 1),
        (True, {"trace": {"on": True}}, 0),
        (False, {"trace": {"on": False}}, 0),
        (False, {}, 0),
    ],
)
def test_traces_without_their_packages_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, installed: bool, settings: Any, count: int
) -> None:
    monkeypatch.setattr(traces, "is_installed", lambda extra: installed if extra == "otel" else None)
    found = warnings(settings)
    assert len(found) == count
    for each in found:
        assert each.startswith("f:3: trace.on: traces need more than is installed: ")
        assert "opentelemetry-sdk" in each
