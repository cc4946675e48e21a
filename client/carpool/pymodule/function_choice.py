"""Chooses the functions of a module that are tools, and finds parameters without types.

Owns the rule: the functions that `__all__` names, else those that are defined in the module itself and whose
names do not begin with an underscore; in the order in which they are written.

Pure, and apart from `tools` because `carpool check` has it without the SDK. Knows nothing of: schemas, the
SDK, where modules come from.
"""

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Final, NamedTuple

Function = Callable[..., Any]
_STARS: Final[Mapping[object, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


class ChosenFunction(NamedTuple):
    """One function that is a tool."""

    name: str
    function: Function
    where: str
    """`tools.py:12`; the module's name where that is not known."""


def public_functions(module: ModuleType) -> list[ChosenFunction]:
    """The module's tools."""
    named = getattr(module, "__all__", None)
    if named is not None:
        names = [name for name in dict.fromkeys(named) if hasattr(module, name)]
    else:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
    found = [(name, getattr(module, name)) for name in names]
    return [ChosenFunction(name, value, where(module, value)) for name, value in found if _is_function(value)]


def without_types(function: Function) -> list[str]:
    """Parameters from which no schema can be made: without an annotation; and, with their stars, `*args` and
    `**kwargs`, which no annotation helps.
    """
    return [
        _STARS.get(each.kind, "") + each.name
        for each in inspect.signature(function).parameters.values()
        if each.annotation is each.empty or each.kind in _STARS
    ]


def untyped_text(where: str, name: str, parameters: list[str], *, strict: bool) -> str:
    """The sentence about a function without types. `parameters`: see `without_types`."""
    bare = [each for each in parameters if not each.startswith("*")]
    starred = [each for each in parameters if each.startswith("*")]
    said = [", ".join(bare) + (" has no type" if len(bare) == 1 else " have no types")] if bare else []
    said += (
        [" and ".join(starred) + (" fits" if len(starred) == 1 else " fit") + " no schema"] if starred else []
    )
    which = ", ".join(said)
    return f"{where}: {name}: {which}" + ("" if strict else ", so the tool takes any arguments")


def where(module: ModuleType, function: Function) -> str:
    """The place of a function in the source, for people."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return module.__name__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def _is_function(value: object) -> bool:
    """Also one behind a decorator that says what it wraps, as `functools.cache` does."""
    return callable(value) and inspect.isroutine(inspect.unwrap(value))
