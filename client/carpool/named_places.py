"""The refusal of places in projects that variables name, with what the running carpool allows.

Owns one exception to `trusted_places`: `CARPOOL_CONFIG` may lead to a file in a project, also by a relative
path or a link, if the carpool that runs here has this file already, because somebody typed it (`carpool up
--config`). Without it a shell that has the variable could start carpool and neither look at it nor end it.

Shim, command line and Python client all call this, so the same environment gives the same verdict
everywhere; the shim only after `trusted_places` has refused a place, because it imports as little as it can.
Refuses to know which places are trusted.
"""

import os
from collections.abc import Mapping, Sequence

from carpool import launcher_lock
from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.bootstrap.trusted_places import VARIABLES, UntrustedPlaceError


def refuse_untrusted(environ: Mapping[str, str], variables: Sequence[str] = VARIABLES) -> None:
    """Raise `UntrustedPlaceError` if one of these variables names an untrusted place in a project."""
    try:
        trusted_places.refuse_untrusted(environ, variables)
    except UntrustedPlaceError:
        # The runtime directory first: a project could bring one with a lock file of its own.
        trusted_places.refuse_untrusted(
            environ, [each for each in variables if each != paths.CONFIG_VARIABLE]
        )
        if not file_in_force(environ):
            raise


def file_in_force(environ: Mapping[str, str]) -> str:
    """Return the file of the carpool that runs here, as that one names it, if `CARPOOL_CONFIG` leads to it;
    else empty.
    """
    if not environ.get(paths.CONFIG_VARIABLE):
        return ""
    held = launcher_lock.holder(paths.runtime_dir(environ, os.getuid()))
    if held is None or not held.file or not paths.is_same_file(held.file, paths.config_file(environ)):
        return ""
    return held.file
