"""The optional parts of carpool: what each one needs, and the command that installs it.

Owns the requirements of each part, named as in `[project.optional-dependencies]` of `pyproject.toml`. The
command names the packages themselves: carpool is not on a package index.

Refuses to know what a part does.
"""

import shlex
import sys
from importlib.util import find_spec
from typing import Final, Literal

Extra = Literal["http", "otel", "python", "remote"]

REQUIREMENTS: Final[dict[Extra, tuple[str, ...]]] = {
    "http": ("httptools>=0.6.4", "uvloop>=0.21"),
    "otel": ("opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-http>=1.30"),
    "python": ("mcp>=2.3,<3",),
    "remote": ("mcp>=2.3,<3",),
}
_MODULES: Final[dict[Extra, str]] = {
    "http": "httptools",
    "otel": "opentelemetry.exporter.otlp.proto.http",
    "python": "mcp",
    "remote": "mcp",
}


def is_installed(extra: Extra) -> bool:
    """True where this Python has what the part needs."""
    try:
        return find_spec(_MODULES[extra]) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def install_command(extra: Extra, interpreter: str = sys.executable) -> str:
    """A shell command: `/opt/venv/bin/python -m pip install 'mcp>=2.3,<3'`."""
    return shlex.join([interpreter, "-m", "pip", "install", *REQUIREMENTS[extra]])
