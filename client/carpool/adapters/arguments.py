"""Names of parameters that a model API takes, and the way back.

Owns which of a tool's parameters are shown by another name. Source: an error of the Anthropic Messages API,
"input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", for which it refuses
the whole request; servers do have `$filter` and `größe`. Only keys at the top are changed, as the error names
no others. Invariants: a name that is legal stays; shown names are distinct.

Knows nothing of: tools' names, `$ref`s into the properties of the top.
"""

import re
from collections.abc import Mapping
from typing import Any

from carpool.adapters.schema import properties_of, required_of
from carpool_protocol.wire.tool_names import qualify

_LEGAL = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def legal_keys(names: Mapping[str, Any]) -> dict[str, str]:
    """Names of parameters and, for each that is not legal, the one that is shown."""
    shown: dict[str, str] = {}
    illegal = [name for name in names if not _LEGAL.fullmatch(name)]
    taken = names.keys() - illegal
    for name in illegal:
        tries = 0
        while (other := qualify("", name, prefix="", hashed=tries)) in taken:
            tries += 1
        taken.add(other)
        shown[name] = other
    return shown


def with_legal_keys(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A schema that is an object at its top with legal keys there, and what the shown ones stand for."""
    shown = legal_keys(properties_of(schema))
    if not shown:
        return dict(schema), {}
    renamed: dict[str, Any] = dict(schema)
    renamed["properties"] = {shown.get(name, name): each for name, each in properties_of(schema).items()}
    if "required" in schema:
        renamed["required"] = [shown.get(name, name) for name in required_of(schema)]
    return renamed, {other: name for name, other in shown.items()}
