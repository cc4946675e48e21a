"""The place of this carpool: its runtime directory and its logs.

Owns that the directory is private before anything is done in it. Standard library only: launcher and verbs
both begin here.

Knows nothing of: how the directory is found (`paths`), the processes in it.
"""

import os
from collections.abc import Mapping

from carpool_protocol.bootstrap import paths


class RuntimePlace:
    """The place of this carpool: the runtime directory, private, and a note if it is not the wished one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self.directory, self.note = paths.find_runtime_dir(environ, os.getuid())
        paths.ensure_private(self.directory)
        self.logs = paths.log_dir(environ, self.directory)
