"""Effects of a core, picked by kind. Knows nothing of: which core."""

from typing import Any


def of_kind(effects: list[Any], *kinds: type) -> list[Any]:
    """Those effects that are of these kinds."""
    return [effect for effect in effects if isinstance(effect, kinds)]
