"""One setting: key, kind, default and description. The tables are `settings` and its sister modules.

Knows nothing of: the existing settings.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType

MiB: Final = 1024 * 1024
_MAGIC: Final = frozenset("*?[")
_MAGIC_STEPS: Final = 2

Kind = Literal[
    "text",
    "template",
    "switch",
    "count",
    "seconds",
    "fraction",
    "texts",
    "templates",
    "template map",
    "seconds map",
    "token map",
    "url",
    "secret",
    "header map",
]
"""`template`: text in which `${VAR}` is expanded. `count`: a whole number. `seconds`: a positive number.
`fraction`: a number from 0 to 1.

`token map`: names, each with `sha256:` and 64 hex digits, or an object of that and its limits; or false.
`url`, `secret` and the values of a `header map` are templates too, and their secret parts are never shown.
"""

Default = None | bool | int | float | str | tuple[str, ...]
"""`None`: not set. Maps are empty by default."""


class Setting(Struct, frozen=True, kw_only=True):
    """One key that a configuration file may hold."""

    key: str
    """With a dot if it stands in an inner object: `pool.min`."""
    also: tuple[str, ...] = ()
    """Other spellings of the key, as other programs write them."""
    field: str
    """The place of its value in `model`: `max_instances` in `Config`, `policy.idle_s` in `ServerConfig`."""
    kind: Kind
    default: Default | UnsetType = None
    """`UNSET`: the setting is required."""
    unit: str = ""
    low: float = 0
    """The least value of a `count`. `seconds` are always above zero unless `zero` is set."""
    high: float = 1_000_000_000
    zero: bool = False
    """`seconds` may be 0."""
    choices: tuple[str, ...] = ()
    spellings: tuple[tuple[str, str], ...] = ()
    """Other spellings of choices, as pairs: theirs, carpool's."""
    later: tuple[str, ...] = ()
    """Known choices that this version refuses because it does not support them yet."""
    no_variables: str = ""
    """Advice for people who write `${VAR}` for a `count`, as a sentence."""
    alone: bool = False
    """`texts` may also be one text without a list."""
    check: Callable[[str], str | None] | None = None
    """Returns the problem of a `text` or of one of the `texts`, as a sentence."""
    text: str


def seconds(key: str, field: str, default: float, text: str, *, zero: bool = False) -> Setting:
    return Setting(key=key, field=field, kind="seconds", default=default, unit="s", zero=zero, text=text)


def count(
    key: str, field: str, default: int, unit: str, text: str, *, low: int = 1, high: int = 1_000_000
) -> Setting:
    return Setting(
        key=key, field=field, kind="count", default=default, unit=unit, low=low, high=high, text=text
    )


def size(key: str, field: str, default: int, text: str) -> Setting:
    """At least 64 KiB: below that ordinary calls would already not fit."""
    return count(key, field, default, "bytes", text, low=64 * 1024, high=1024 * 1024 * MiB)


def with_defaults(settings: tuple[Setting, ...], found: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a section, with defaults. Required settings are present: their absence is a problem
    already.
    """
    fields: dict[str, Any] = {}
    for setting in settings:
        if setting.field in found:
            fields[setting.field] = found[setting.field]
        elif setting.default is not UNSET:
            fields[setting.field] = {} if setting.kind.endswith("map") else setting.default
    return fields


def check_root(root: str) -> str | None:
    """The problem of the root of a named workspace; None if it may be used.

    `..` is refused: through a symbolic link it leads elsewhere than it seems.
    """
    if not (root == "~" or root.startswith(("/", "~/"))) or "\0" in root or ".." in root.split("/"):
        return "must be an absolute directory, or one below the home directory like ~/code/shop"
    return None


def has_wildcard(step: str) -> bool:
    """True if a step of a path holds a wildcard."""
    return not _MAGIC.isdisjoint(step)


def check_pattern(pattern: str) -> str | None:
    """The problem of a pattern of `include`; None if it may be used."""
    if not pattern or pattern[0] in "/~" or ".." in pattern.split("/"):
        return "must be a pattern below the directory of this file, like servers.d/*.json"
    if sum(map(has_wildcard, pattern.split("/"))) > _MAGIC_STEPS:
        return f"may have *, ? and [ in {_MAGIC_STEPS} of its steps; more would search whole trees"
    return None
