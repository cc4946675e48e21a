"""One setting: what its key, kind, default and sentence are. The tables are `settings` and `settings_http`.

Knows nothing of: which settings there are.
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
`token map`: names, each with `sha256:` and 64 hex digits, or an object of that and a profile. `url`, `secret`
and the values of a `header map` are templates, too, of which nothing secret is shown.
"""

Default = None | bool | int | float | str | tuple[str, ...]
"""`None`: nothing set. Maps are empty by default."""


class Setting(Struct, frozen=True, kw_only=True):
    """One key that a configuration file may hold."""

    key: str
    """Dotted where it stands in an object: `pool.min`."""
    also: tuple[str, ...] = ()
    """Other spellings of the key, as other programs write them."""
    field: str
    """Where its value lives in `model`: `max_instances` in `Config`, `policy.idle_s` in `ServerConfig`."""
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
    """Other spellings of choices: theirs, ours."""
    later: tuple[str, ...] = ()
    """Choices that are known and refused: this version cannot do them yet."""
    no_variables: str = ""
    """What to do in place of writing `${VAR}` for a `count`, as a sentence."""
    check: Callable[[str], str | None] | None = None
    """What is wrong with a `text` or one of the `texts`, as a sentence."""
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
    """Every field of a section. What is required is present here: its absence is a problem already."""
    fields: dict[str, Any] = {}
    for setting in settings:
        if setting.field in found:
            fields[setting.field] = found[setting.field]
        elif setting.default is not UNSET:
            fields[setting.field] = {} if setting.kind.endswith("map") else setting.default
    return fields


def check_root(root: str) -> str | None:
    """What is wrong with the root of a named workspace; None when it may be used. `..` is refused: through a
    symbolic link it is not what it looks like.
    """
    if not (root == "~" or root.startswith(("/", "~/"))) or "\0" in root or ".." in root.split("/"):
        return "must be an absolute directory, or one below the home directory like ~/code/shop"
    return None


def has_wildcard(step: str) -> bool:
    """Whether a step of a path holds a wildcard."""
    return not _MAGIC.isdisjoint(step)


def check_pattern(pattern: str) -> str | None:
    """What is wrong with a pattern of `include`; None when it may be used."""
    if not pattern or pattern[0] in "/~" or ".." in pattern.split("/"):
        return "must be a pattern below the directory of this file, like servers.d/*.json"
    if sum(map(has_wildcard, pattern.split("/"))) > _MAGIC_STEPS:
        return f"may have *, ? and [ in {_MAGIC_STEPS} of its steps; more would search whole trees"
    return None
