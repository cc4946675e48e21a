"""Overrides in force, kept on disk for later brokers.

Owns the conversion between `overrides` and the file in the runtime directory. Overrides of single sessions
count only under the same launcher: another one gives its sessions the same ids.

Knows nothing of: operators, the effect of an override.
"""

import logging

from carpool_broker.core.configuration.overrides import Overrides
from carpool_protocol.files.overrides_file import OverridesFile, read_overrides, write_overrides
from carpool_protocol.ids import ServerName, SessionId

log = logging.getLogger("carpool.broker")


class OverrideStore:
    """The overrides of one carpool."""

    def __init__(self, path: str = "", carpool: str = "") -> None:
        """`path`: empty: nothing is kept. `carpool`: the same for all brokers of one launcher."""
        self._path = path
        self._carpool = carpool
        self.overrides = Overrides()
        if path:
            held = read_overrides(path)
            self.overrides.global_overrides = {ServerName(name): on for name, on in held.servers.items()}
            self.overrides.paused = {ServerName(name) for name in held.paused}
            if held.carpool == carpool:
                self.overrides.session_overrides = {
                    SessionId(session): {ServerName(name): on for name, on in own.items()}
                    for session, own in held.sessions.items()
                    if own
                }

    def save(self) -> None:
        """Write the present overrides. If that fails, they last as long as this broker."""
        if not self._path:
            return
        held = OverridesFile(
            dict(self.overrides.global_overrides),  # type: ignore[arg-type]
            dict(self.overrides.session_overrides),  # type: ignore[arg-type]
            sorted(self.overrides.paused),
            self._carpool,
        )
        try:
            write_overrides(self._path, held)
        except OSError as error:
            log.error(  # noqa: TRY400 - a traceback would not help
                "the overrides of `carpool enable`, `disable` and `pause` cannot be saved: %s",
                error.strerror or type(error).__name__,
            )
