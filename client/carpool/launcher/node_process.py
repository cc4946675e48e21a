"""The launcher's decision if the node's process runs.

Owns the exit codes of that process. A launcher reads no JSON: it finds out from the configuration file and
from the file of `carpool up --cluster` that a node may be wanted. A node that has left its cluster stays away
until carpool is started again, or until that verb says otherwise. Standard library only: the launcher stays
small.

Knows nothing of: clusters, when a process is started again (`restart_policy`).
"""

import contextlib
import os

from carpool.launcher.http_door import is_word_in
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.text.file_stamps import Stamp, stamp
from carpool_protocol.runtime.node_join import read_join

EXIT_CONFIG, EXIT_UNWANTED, EXIT_LEFT = 2, 3, 4
"""Exit codes: the node cannot work as configured; no cluster is configured; the node has left its cluster."""


class NodeProcessWatch:
    """Decides when the node's process runs."""

    def __init__(self, directory: str, config: str, environ: dict[str, str]) -> None:
        self._directory = directory
        self._path = config or paths.config_file(environ)
        self._seen: object = None
        """The files as they were when the process was last started, or found unwanted."""
        self._has_left = False
        self._join_at_leave: Stamp = None
        """The stamp of the file of `carpool up --cluster` when the node left its cluster."""

    def is_start_due(self) -> bool:
        """True if a process that does not run should be started: a file is new or changed, and may want it.
        A wrong yes costs one short process. If none is wanted, the file with the last one's problem goes.
        """
        stamps = (stamp(self._path), stamp(paths.node_join_file(self._directory)))
        if self._has_left and stamps[1] == self._join_at_leave:
            return False
        self._has_left = False
        if stamps == self._seen:
            return False
        self._seen = stamps
        if read_join(self._directory).url or is_word_in(self._path, b'"cluster"'):
            return True
        with contextlib.suppress(OSError):
            os.unlink(paths.node_file(self._directory))
        return False

    def should_restart(self, status: int) -> bool:
        """True if it should be started again after this exit. Otherwise it waits for a change, or, after a
        leave, for `carpool up --cluster` or the next start of carpool.
        """
        self._has_left = status == EXIT_LEFT
        self._join_at_leave = stamp(paths.node_join_file(self._directory))
        return status not in {EXIT_CONFIG, EXIT_UNWANTED, EXIT_LEFT}
