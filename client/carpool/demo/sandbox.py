"""The private carpool of `carpool demo`: which servers it runs.

Knows nothing of: agents, figures, how a private carpool is started and ended (`sandbox`).
"""

import json
import sys

from carpool.demo.questions import MODULES
from carpool.demo.repository import QUIET
from carpool.launcher.sandbox import PrivateCarpool


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class DemoCarpool(PrivateCarpool):
    """A private carpool with the demo's servers, not up yet."""

    def __init__(self) -> None:
        super().__init__("carpool-demo-")

    def server_argv(self, server: str) -> list[str]:
        """Return the command line of a server, the same with carpool and without."""
        return [sys.executable, "-m", MODULES[server]]

    def configure(self) -> str:
        """Write the configuration. Its text is what a user would write."""
        servers = {
            name: {"command": argv[0], "args": argv[1:], "env": QUIET, "cwd": str(self.base)}
            for name in MODULES
            for argv in [self.server_argv(name)]
        }
        text = json.dumps({"mcpServers": servers}, indent=2)
        self.config_file.write_text(text)
        return text
