"""The way in which this carpool was installed, and the command that adds packages to it.

Owns how uv, pipx and pip are recognised. `uv tool upgrade` takes out what its receipt does not name, so the
command for uv repeats the receipt.

Refuses to know which packages a part of carpool needs (`extras`).
"""

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_PLACES: Final = ("path", "directory", "editable")
"""Keys of a receipt of uv that name a file or a directory."""


def add_packages_command(packages: Sequence[str]) -> str:
    """Return the shell command that adds packages to the environment of this carpool."""
    environment = Path(sys.prefix)
    if (environment / "pipx_metadata.json").is_file():
        return shlex.join(["pipx", "inject", environment.name, *packages])
    if words := _uv_tool_words(environment / "uv-receipt.toml"):
        return shlex.join([*words, *(word for each in packages for word in ("--with", each))])
    if find_spec("pip") is None:
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *packages])
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def _uv_tool_words(file: Path) -> list[str]:
    """Return the `uv tool install` that a receipt stands for; empty if it cannot be repeated."""
    import tomllib  # late: few need it

    try:
        tool = tomllib.loads(file.read_text(encoding="utf-8"))["tool"]
        carpool, *others = tool["requirements"]
        words = _source_words(carpool)
        if not words or any(each.keys() - {"name", "specifier"} for each in others):
            return []
        more = [word for each in others for word in ("--with", each["name"] + each.get("specifier", ""))]
        python = ["--python", tool["python"]] if "python" in tool else []
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return ["uv", "tool", "install", *python, *words, *more]


def _source_words(requirement: dict[str, Any]) -> list[str]:
    """Return the words for where carpool comes from; empty if that is no file here, or not there any more."""
    key = next((each for each in _PLACES if each in requirement), "")
    if not key or not os.path.exists(requirement[key]):
        return []
    extras = f"[{','.join(requirement['extras'])}]" if requirement.get("extras") else ""
    return [*(["--editable"] if key == "editable" else []), requirement[key] + extras]


def remove_command() -> str:
    """Return the shell command that removes the program itself."""
    environment = Path(sys.prefix)
    if (environment / "pipx_metadata.json").is_file():
        return shlex.join(["pipx", "uninstall", environment.name])
    if (environment / "uv-receipt.toml").is_file():
        return shlex.join(["uv", "tool", "uninstall", environment.name])
    if find_spec("pip") is None:
        return shlex.join(["uv", "pip", "uninstall", "--python", sys.executable, "carpool"])
    return shlex.join([sys.executable, "-m", "pip", "uninstall", "carpool"])
