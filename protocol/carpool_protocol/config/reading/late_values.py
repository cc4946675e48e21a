"""Numbers and switches of settings that come from a variable.

Owns how the text of an expanded `${VAR}` is read as the number or switch that a setting needs. The rules are
those of a number in the file; no message quotes the text.

Pure. Knows nothing of: files, the origin of variables.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from carpool_protocol.config.reading.parse import order_problem
from carpool_protocol.config.schema.model import ServerConfig
from carpool_protocol.config.schema.settings import SERVER_SETTINGS, Setting
from carpool_protocol.config.schema.value_types import ValueProblem, read_value
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import KeyPath

_SETTINGS: Final[dict[KeyPath, Setting]] = {
    tuple(key.split(".")): each for each in SERVER_SETTINGS for key in (each.key, *each.also)
}
_SWITCHES: Final = {"true": True, "false": False, "1": True, "0": False}
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,9})?")


def fill_late_values(
    server: ServerConfig, filled: Mapping[KeyPath, str]
) -> ServerConfig | list[tuple[KeyPath, str]]:
    """The server with these values filled in, or the problems with their places.

    `filled`: the expanded texts of `server.late`, by the same paths.
    """
    problems: list[tuple[KeyPath, str]] = []
    outer: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    for path in server.late:
        setting = _SETTINGS[path]

        def refuse(refusal: ValueProblem, path: KeyPath = path) -> None:
            problems.append((path, f"once its variables are filled in: {refusal.text}"))

        group, _, field = setting.field.rpartition(".")
        (policy if group else outer)[field] = read_value(setting, _value(setting, filled[path]), refuse)
    if problems:
        return problems
    whole = replace(server, policy=replace(server.policy, **policy), late={}, **outer)
    problems = order_problem(_fields(whole), lambda key: key in server.lines)
    return problems or whole


def _value(setting: Setting, text: str) -> JsonValue:
    """The value as the file would hold it. Other texts stay text, which the setting refuses."""
    text = text.strip()
    if setting.kind == "switch":
        return _SWITCHES.get(text.lower(), text)
    if _NUMBER.fullmatch(text) is None:
        return text
    return float(text) if "." in text else int(text)


def _fields(server: ServerConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for setting in SERVER_SETTINGS:
        value: Any = server
        for name in setting.field.split("."):
            value = getattr(value, name)
        fields[setting.field] = value
    return fields
