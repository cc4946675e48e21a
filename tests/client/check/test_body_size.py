"""The warning about a limit of bodies above what carpool takes."""

import json

import pytest

from carpool.check.body_size import body_size_warnings
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES
from carpool_protocol.config.reading.parse import read_config


@pytest.mark.parametrize(
    ("limit", "is_named"), [(MESSAGE_CAP_BYTES, False), (MESSAGE_CAP_BYTES + 1, True), (1 << 27, True)]
)
def test_a_body_limit_above_what_carpool_takes_is_a_warning(limit: int, is_named: bool) -> None:
    loaded = read_config(json.dumps({"http": {"max_body_bytes": limit}}, indent=1), "f")
    assert loaded.config is not None
    warnings = body_size_warnings(loaded.config)
    named = f"f:3: http.max_body_bytes: carpool takes bodies of at most {MESSAGE_CAP_BYTES} bytes"
    assert [each.startswith(named) for each in warnings] == [True] * is_named
