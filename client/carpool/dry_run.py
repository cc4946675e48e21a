"""`carpool call NAME --dry-run`: the arguments against the schema that is listed, and nothing else.

Owns the judgement and its words. A problem names a place in the arguments and the rule of the schema that it
breaks, never a value of the arguments. Nothing is called, no server is started, and no `$ref` leaves the
schema: what is not in it is not fetched.

`jsonschema` is imported here only, and only when it is needed. Knows nothing of: brokers, terminals.
"""

import json
from typing import Any, Final

from msgspec import Struct

from carpool_protocol.config.problems import render_path

MAX_PROBLEMS: Final = 50
MAX_TEXT: Final = 200
_SAID_BY_RULE: Final = frozenset(
    {"required", "additionalProperties", "unevaluatedProperties", "dependentRequired"}
)
"""Rules whose sentence names keys only."""


class Problem(Struct, frozen=True):
    """One thing wrong with the arguments."""

    path: str
    """`filter.tags[2]`; empty for the arguments as a whole."""
    rule: str
    """The keyword of the schema."""
    text: str


class BadSchemaError(Exception):
    """The listed schema itself is of no use; the text says why."""


def problems(schema: object, arguments: object) -> list[Problem]:
    """What is wrong with the arguments of a tool with this `inputSchema`, by place. Raises `BadSchemaError`.

    Source: MCP 2026-07-28 and 2025-11-25, server/tools: JSON Schema 2020-12 unless `$schema` says otherwise.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    if not isinstance(schema, dict):
        raise BadSchemaError("it is no object")
    if not isinstance(schema.get("$schema", ""), str):
        raise BadSchemaError("its $schema is no text")
    try:
        kind = validator_for(schema, default=Draft202012Validator)
        kind.check_schema(schema)
        found = sorted(kind(schema, registry=REGISTRY).iter_errors(arguments), key=_place)
    except SchemaError as error:
        raise BadSchemaError(f"{render_path(tuple(error.path)) or 'it'}: {_short(error.message)}") from None
    except Unresolvable as error:
        raise BadSchemaError(f"it refers to {_short(str(error.ref))}, which it does not hold") from None
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise BadSchemaError(f"it cannot be worked with ({type(error).__name__})") from None
    return [_problem(error) for error in found[:MAX_PROBLEMS]]


def _place(error: Any) -> list[str]:
    return [str(step) for step in error.absolute_path]


def _problem(error: Any) -> Problem:
    rule = str(error.validator)
    if rule in _SAID_BY_RULE:
        text = error.message
    elif rule in {"anyOf", "oneOf"}:
        text = f"must fit {'one' if rule == 'anyOf' else 'exactly one'} of {len(error.validator_value)} forms"
    elif rule == "type":
        kinds = error.validator_value
        text = f"must be {' or '.join(kinds) if isinstance(kinds, list) else kinds}"
    else:
        text = f"must keep {rule}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    return Problem(render_path(tuple(error.absolute_path)), rule, _short(text))


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
