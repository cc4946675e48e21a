"""`carpool call NAME --dry-run`: checks the arguments against the listed schema, and does nothing else.

Owns the judgement, its words and its bound in time: some schemas take hours (patterns that try everything,
forms within forms). A problem names a place in the arguments and the rule of the schema that it breaks,
never a value of the arguments. Nothing is called, no server is started, and a `$ref` to something outside
the schema is not fetched. `jsonschema` is imported here only, and only when it is needed: so this is apart
from `call`. Knows nothing of: brokers, terminals.
"""

import gc
import json
import signal
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from carpool_protocol.config.text.problems import render_path

MAX_PROBLEMS: Final = 50
MAX_FOUND: Final = 2_000
"""The greatest number of problems that are searched for; only the first of them are shown."""
MAX_TEXT: Final = 200
CHECK_S: Final = 10.0
_AGAIN_S: Final = 0.05
_SAID_BY_RULE: Final = frozenset(
    {"required", "additionalProperties", "unevaluatedProperties", "dependentRequired"}
)
"""Rules whose message in `jsonschema` names keys only."""


class ArgumentProblem(Struct, frozen=True):
    """One fault of the arguments."""

    path: str
    """The place, such as `filter.tags[2]`; empty for the arguments as a whole."""
    rule: str
    """The keyword of the schema."""
    text: str


class BadSchemaError(Exception):
    """The listed schema itself cannot be used; the text gives the reason."""


class _CheckTimeout(BaseException):
    """Raised when the check takes too long.

    It is no `Exception`, so that no handler on the way catches it.
    """


def problems(schema: object, arguments: object, *, check_s: float = CHECK_S) -> list[ArgumentProblem]:
    """Return the faults of the arguments of a tool with this `inputSchema`, sorted by place.

    Raises `BadSchemaError`, also if the check takes longer than `check_s`. Works in the main thread only.

    Source: MCP 2026-07-28 and 2025-11-25, server/tools: JSON Schema 2020-12 unless `$schema` says otherwise.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable

    if schema is None:
        raise BadSchemaError("it lists none")
    if not isinstance(schema, dict):
        raise BadSchemaError("it is no object")
    if not isinstance(schema.get("$schema", ""), str):
        raise BadSchemaError("its $schema is no text")
    try:
        kind = validator_for(schema, default=Draft202012Validator)

        def find() -> list[Any]:
            kind.check_schema(schema)
            return list(islice(kind(schema, registry=REGISTRY).iter_errors(arguments), MAX_FOUND))

        found = _within(check_s, find)
    except _CheckTimeout:
        raise BadSchemaError(f"to check these arguments against it takes more than {check_s:g} s") from None
    except SchemaError as error:
        if error.validator == "format" and error.validator_value == "regex":
            at = render_path(tuple(error.path))
            raise BadSchemaError(
                f"{at}: Python cannot read this pattern: {_short(str(error.instance))}"
            ) from None
        raise BadSchemaError(f"{render_path(tuple(error.path)) or 'it'}: {_short(error.message)}") from None
    except Unresolvable as error:
        raise BadSchemaError(f"it refers to {_short(str(error.ref))}, which it does not hold") from None
    except (RecursionError, ValueError, ArithmeticError) as error:
        raise BadSchemaError(f"it cannot be worked with ({type(error).__name__})") from None
    return [_problem(error) for error in sorted(found, key=_place)[:MAX_PROBLEMS]]


def _within(limit_s: float, find: Callable[[], list[Any]]) -> list[Any]:
    """Return the result of `find`. Raises `_CheckTimeout` after the limit.

    Only a signal stops a regular expression of Python. The signal is repeated, because one may arrive where
    exceptions are ignored. The garbage collector is off meanwhile: a finalizer ignores exceptions, and would
    print this one on stderr.
    """
    over, collects = False, gc.isenabled()

    def stop(*_: object) -> None:
        if not over:
            raise _CheckTimeout

    before = signal.signal(signal.SIGALRM, stop)
    gc.disable()
    signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        return find()
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if collects:
            gc.enable()


def _place(error: Any) -> list[str]:
    return [f"{step:09}" if isinstance(step, int) else str(step) for step in error.absolute_path]


def _problem(error: Any) -> ArgumentProblem:
    rule = str(error.validator)
    if rule in _SAID_BY_RULE:
        text = error.message
    elif rule in {"anyOf", "oneOf"}:
        text = f"must fit {'one' if rule == 'anyOf' else 'exactly one'} of {len(error.validator_value)} forms"
    elif rule == "type":
        kinds = error.validator_value
        text = f"must be {' or '.join(kinds) if isinstance(kinds, list) else kinds}"
    elif error.validator is None:  # the schema `false`: the validator tells where it stood, not of what
        rule, text = "false", "something in it must not be there"
    else:
        text = f"must keep {rule}: {json.dumps(error.validator_value, ensure_ascii=False)}"
    return ArgumentProblem(render_path(tuple(error.absolute_path)), rule, _short(text))


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
