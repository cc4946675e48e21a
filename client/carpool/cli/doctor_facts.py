"""Gathers the facts for `carpool doctor`: configuration, daemon, directories.

Owns the ways to each fact; each is bounded in time, and a fact that cannot be had is left out. Starts
nothing. Knows nothing of: which fact is a problem (`diagnose`).
"""

import os
import shutil
from typing import Any

from carpool import launcher_lock
from carpool.check import names as check_names
from carpool.check.layers import CheckedLayers
from carpool.cli.check import known_tools, read_checked
from carpool.cli.main import broker_request
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.doctor.diagnose import Facts, WrittenDirectory
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE

ANSWER_S = 5.0
"""The broker may take so long to answer."""


def gather_facts() -> Facts:
    """Return the facts about this machine and this directory."""
    found = read_checked(None)
    directory = paths.runtime_dir(os.environ, os.getuid())
    said = {*found.absent.values(), *found.misconfigured.values(), found.door}
    cut = check_names.shortened(known_tools(), found.config) if found.config is not None else []
    return Facts(
        installed=RELEASE,
        config_problems=tuple(each.render() for each in found.problems),
        misconfigured=found.misconfigured,
        absent=dict(found.absent.items()),
        unset=tuple(found.unset),
        waiting=_waiting(found),
        warnings=tuple(text for text in found.warnings if text not in said),
        door=found.door,
        names_cut=tuple(check_names.name_lines(cut)),
        places=_places(directory),
        status=_status(directory),
        held=launcher_lock.holder(directory) is not None,
        socket=os.path.lexists(paths.agents_socket(directory)),
    )


def _waiting(found: CheckedLayers) -> str:
    return found.waiting if found.project is not None else ""


def _status(directory: str) -> dict[str, Any] | None:
    try:
        with ControlClient(directory, control=True, attach_s=ANSWER_S) as client:
            return broker_request(client, "carpool/status", {}, ANSWER_S)
    except (ControlClientError, AnsweredError):
        return None


def _places(directory: str) -> tuple[WrittenDirectory, ...]:
    state = paths.state_dir(os.environ, directory)
    named = ((directory, "CARPOOL_RUNTIME_DIR"), (state, "CARPOOL_STATE_DIR"))
    return tuple(written_directory(path, variable) for path, variable in named)


def written_directory(path: str, variable: str) -> WrittenDirectory:
    """Return the facts about a directory, or about the nearest one above it that exists.

    A path that cannot be examined (no right to search a directory above it, a name that is too long) counts
    as one that does not exist.
    """
    there = path
    while not os.path.exists(there) and there != os.path.dirname(there):
        there = os.path.dirname(there)
    try:
        free_bytes = shutil.disk_usage(there).free
    except OSError:  # another process has just removed it
        return WrittenDirectory(path, variable, writable=False, free_bytes=0)
    writable = os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK) and _may_exist(path)
    return WrittenDirectory(path, variable, writable, free_bytes)


def _may_exist(path: str) -> bool:
    """Return True if the path exists, or if nothing but its absence keeps it from being examined."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
