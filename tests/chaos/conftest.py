"""The same proofs of nothing left as in the live tests."""

from tests.live.conftest import _nothing_left, _real_time, daemon

__all__ = ["_nothing_left", "_real_time", "daemon"]
