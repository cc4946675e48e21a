"""The switches that are in force, kept for the brokers after this one.

Owns the way from `overrides` to the file in the runtime directory and back. A session's own switches are
those of the broker's heritage: another launcher gives its sessions the same ids anew.

Knows nothing of: who switches, what follows.
"""

import logging

from carpool_broker.core.configuration.overrides import Overrides
from carpool_protocol.files.overrides_file import OverridesFile, read_overrides, write_overrides
from carpool_protocol.ids import ServerName, SessionId

log = logging.getLogger("carpool.broker")


class OverrideStore:
    """The switches of one carpool."""

    def __init__(self, path: str = "", carpool: str = "") -> None:
        """`path`: without one nothing is kept. `carpool`: the same for all brokers of a launcher."""
        self._path = path
        self._carpool = carpool
        self.overrides = Overrides()
        if path:
            held = read_overrides(path)
            self.overrides.global_overrides = {ServerName(name): on for name, on in held.servers.items()}
            if held.carpool == carpool:
                self.overrides.session_overrides = {
                    SessionId(session): {ServerName(name): on for name, on in own.items()}
                    for session, own in held.sessions.items()
                    if own
                }

    def save(self) -> None:
        """They are others now. Where that cannot be written they hold as long as this broker."""
        if not self._path:
            return
        held = OverridesFile(
            dict(self.overrides.global_overrides),  # type: ignore[arg-type]
            dict(self.overrides.session_overrides),  # type: ignore[arg-type]
            self._carpool,
        )
        try:
            write_overrides(self._path, held)
        except OSError as error:
            log.error(  # noqa: TRY400 - where it was raised helps nobody
                "what is enabled and disabled cannot be kept: %s", error.strerror or type(error).__name__
            )
