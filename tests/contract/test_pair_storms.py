"""What near ends, channels and links promise together, over the links of the product, through storms."""

import pytest

from tests.behaviours import behaviour
from tests.kit.node_pair_storms import real_pair_storm


@behaviour("cluster:bytes")
@pytest.mark.parametrize(
    ("kind", "seed"), [("ipc", 1), ("ipc", 2), ("curve", 1), ("curve", 2), ("nats", 1), ("nats", 2)]
)
def test_each_byte_arrives_once_in_order_or_its_session_ends_and_says_so(kind: str, seed: int) -> None:
    real_pair_storm(kind, seed)
