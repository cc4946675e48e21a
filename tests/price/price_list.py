"""Prices of calls: for each function on the way, how often a call enters it and how many bytecodes it runs,
and how many the functions of a process may run together.

Owns what a price list holds, its file, and the names of functions. There is one file for each minor version
of Python, because their compilers differ. Each function of carpool has an entry. The functions of a library
have one together, which is compared only with the same version of the library.
Knows nothing of: how prices are measured, which price is too high.
"""

import json
import platform
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, Self

from msgspec import Struct

from tests.kit.private_daemon import ROOTS

FOLDER: Final = Path(__file__).parent / "lists"
STANDARD_LIBRARY: Final = "standard library"
_GENERATED: Final = re.compile(r"<attrs generated \w+ (\w+)")


class FunctionPrice(NamedTuple):
    """The part of one function in the price of a call."""

    entries: float
    bytecodes: float


Way = dict[str, FunctionPrice]
"""The functions that a call enters in one process."""


class PriceList(Struct, forbid_unknown_fields=True):
    """The prices of all kinds of call under one version of Python."""

    libraries: dict[str, str]
    """The version of each library that is on the way, by its name in `prices`."""
    prices: dict[str, dict[str, Way]]
    """Kind of call, process, function."""
    allowed: dict[str, dict[str, float]]
    """Kind of call, process: the bytecodes of a call that are allowed. They do not go up when functions are
    recorded again.
    """

    @classmethod
    def of(cls, libraries: dict[str, str], prices: dict[str, dict[str, Way]]) -> Self:
        """Return a list that allows what these functions run."""
        allowed = {
            kind: {process: total(way) for process, way in processes.items()}
            for kind, processes in prices.items()
        }
        return cls(libraries, prices, allowed)


def total(way: Way) -> float:
    """Return the bytecodes of these functions together."""
    return sum(price.bytecodes for price in way.values())


def python_version() -> str:
    """Return the version that names a list."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def list_path(version: str) -> Path:
    """Return the path of the list of this version of Python."""
    return FOLDER / f"python{version}.json"


def versions() -> list[str]:
    """Return the versions of Python that have a list."""
    return sorted(path.stem.removeprefix("python") for path in FOLDER.glob("python*.json"))


def read_list(path: Path) -> PriceList | None:
    """Return the list in this file; None if there is no file."""
    return parse_list(path.read_text(encoding="utf-8")) if path.exists() else None


def parse_list(text: str) -> PriceList:
    """Return the list that a file holds. The first ones allowed what their functions run."""
    kept = json.loads(text)
    prices: dict[str, dict[str, Way]] = {}
    for process, functions in kept["prices"].items():
        for function, kinds in functions.items():
            for kind, (entries, bytecodes) in kinds.items():
                way = prices.setdefault(kind, {}).setdefault(process, {})
                way[function] = FunctionPrice(entries, bytecodes)
    found = PriceList.of(kept["libraries"], prices)
    found.allowed = kept.get("allowed", found.allowed)
    return found


def write_list(path: Path, prices: PriceList) -> None:
    """Write the list with one line for each function, so that a difference of two lists can be read."""
    rows: dict[str, dict[str, dict[str, list[float]]]] = {}
    for kind, processes in prices.prices.items():
        for process, way in processes.items():
            for function, price in way.items():
                of_kinds = rows.setdefault(process, {}).setdefault(function, {})
                of_kinds[kind] = [_short(price.entries), _short(price.bytecodes)]
    parts = [
        f"  {json.dumps(process)}: {{\n"
        + ",\n".join(f"   {json.dumps(each)}: {json.dumps(functions[each])}" for each in sorted(functions))
        + "\n  }"
        for process, functions in sorted(rows.items())
    ]
    libraries = json.dumps(dict(sorted(prices.libraries.items())))
    allowed_rows = {
        kind: {process: _short(most) for process, most in sorted(each.items())}
        for kind, each in prices.allowed.items()
    }
    allowed = ",\n".join(f"  {json.dumps(kind)}: {json.dumps(row)}" for kind, row in allowed_rows.items())
    rows_text = ",\n".join(parts)
    text = (
        f'{{\n "libraries": {libraries},\n "allowed": {{\n{allowed}\n }},\n'
        f' "prices": {{\n{rows_text}\n }}\n}}\n'
    )
    path.write_text(text, encoding="utf-8")


def _short(number: float) -> float:
    """Two digits behind the point, and none of a whole number."""
    return int(number) if number == int(number) else round(number, 2)


def function_name(file: str, function: str) -> str:
    """Return the name of a function in a price list: path and name, or for a library `(LIBRARY)`."""
    for root in ROOTS:
        if file.startswith(f"{root}/"):
            return f"{file[len(root) + 1 :]} {function}"
    return f"({_library_of(file)})"


def is_library(name: str) -> bool:
    """True if this is the common name of a library's functions."""
    return name.startswith("(")


@cache
def _library_of(file: str) -> str:
    if (generated := _GENERATED.match(file)) is not None:
        return generated[1]
    _, found, inside = file.rpartition("/site-packages/")
    return inside.partition("/")[0].removesuffix(".py") if found else STANDARD_LIBRARY


def library_versions(functions: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each library among these names of functions."""
    by_package = metadata.packages_distributions()
    found: dict[str, str] = {}
    for name in sorted(set(filter(is_library, functions))):
        package = name.strip("()")
        if package == STANDARD_LIBRARY:
            found[name] = platform.python_version()
        elif package in by_package:
            found[name] = metadata.version(by_package[package][0])
        else:
            found[name] = "unknown"
    return found
