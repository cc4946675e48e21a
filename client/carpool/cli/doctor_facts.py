"""Gathers the facts for `carpool doctor`: configuration, daemon, directories.

Owns the ways to each fact; each is bounded in time, and a fact that cannot be had is left out. Starts
nothing. Knows nothing of: which fact is a problem (`diagnose`).
"""

import os
import shutil
import stat
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from carpool import launcher_lock
from carpool.check import names as check_names
from carpool.check.layers import CheckedLayers
from carpool.check.open_files import OpenFile, is_readable_by_all, open_files
from carpool.check.server_path import path_of_servers
from carpool.cli.check import read_checked
from carpool.cluster.node_facts import read_facts
from carpool.cluster.settings import cluster_files
from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.doctor.cluster_problems import MissingFile
from carpool.doctor.diagnose import Facts, NotPrivate, WrittenDirectory, failing_calls
from carpool.logs.log_tail import LogTail
from carpool.logs.records import LogFilter, LogReader
from carpool.readings.config_here import is_named, way_to_take, with_config_here
from carpool_protocol.bootstrap import paths
from carpool_protocol.bootstrap.release import RELEASE
from carpool_protocol.config.reading.load import home_of
from carpool_protocol.config.schema.model import Config

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_LOG_LINES = 100
_WARNINGS = LogFilter("warning")
ANSWER_S = 5.0
"""The broker may take so long to answer."""
SUPERVISOR_S = 2.0
"""The broker waits for its supervisors no longer than this, which is less than `ANSWER_S`."""


class _BrokerFacts(NamedTuple):
    """What the broker says. `status` is None if none runs, or if it does not answer."""

    status: dict[str, Any] | None
    tools: list[dict[str, Any]]


def gather_facts() -> Facts:
    """Return the facts about this machine and this directory.

    If the runtime directory cannot be used, no verb goes on, so only that is told.
    """
    directory = paths.runtime_dir(os.environ, os.getuid())
    state = paths.state_dir(os.environ, directory)
    places = (
        written_directory(directory, paths.RUNTIME_VARIABLE),
        written_directory(state, paths.STATE_VARIABLE),
    )
    if unusable := _unusable(directory):
        # A directory that cannot be written is told as that.
        open_ones = (unusable,) if places[0].writable else ()
        return Facts(installed=RELEASE, not_private=open_ones, places=places)
    broker = _ask_broker(directory)
    if (status := broker.status) is not None:
        status = with_config_here(status, os.environ, directory)
    found = read_checked(None, lambda config: path_of_servers(status, login_shell=config.login_shell))
    said = {*(each.text for each in found.absent.values()), *found.misconfigured.values(), *found.shadowed}
    cut = check_names.shortened(broker.tools, found.config) if found.config is not None else []
    return Facts(
        installed=RELEASE,
        config_problems=tuple(each.render() for each in found.problems),
        misconfigured=found.misconfigured,
        absent=dict(found.absent.items()),
        unset=tuple(found.unset),
        waiting=_waiting(found),
        warnings=tuple(text for text in found.warnings if text not in {*said, found.door}),
        shadowed=tuple(found.shadowed),
        open_files=() if found.config is None else tuple(_open_files(found.config, found)),
        door=found.door,
        names_cut=tuple(check_names.name_lines(cut)),
        not_private=tuple(_open_state(state)),
        places=places,
        status=status,
        config_named=is_named(os.environ, directory),
        config_way=way_to_take(os.environ, directory),
        last_warnings=_last_warnings(paths.log_dir(os.environ, directory), broker.status),
        held=launcher_lock.holder(directory) is not None,
        socket=_kind_at(paths.agents_socket(directory)),
        node=read_facts(directory),
        cluster_files=() if found.config is None else tuple(missing_files(found.config, _home())),
    )


def _home() -> str:
    return home_of(os.environ)


def _open_files(config: Config, found: CheckedLayers) -> Iterator[OpenFile]:
    """Yield the files with secrets that all users can read, those of the cluster among them."""
    yield from open_files(config, found.env_files)
    for setting, path in cluster_files(config, _home()):
        if setting in {"cluster.credentials", "cluster.key"} and is_readable_by_all(path):
            yield OpenFile(path, (f"`{setting}`",), may_restrict=os.stat(path).st_uid == os.getuid())


def missing_files(config: Config, home: str) -> Iterator[MissingFile]:
    """Yield the files that the cluster needs and that cannot be read."""
    for setting, path in cluster_files(config, home):
        if not os.access(path, os.R_OK):
            yield MissingFile(setting, path)


def _kind_at(path: str) -> Literal["", "socket", "other"]:
    try:
        return "socket" if stat.S_ISSOCK(os.lstat(path).st_mode) else "other"
    except OSError:
        return ""


def _waiting(found: CheckedLayers) -> str:
    return found.waiting if found.project is not None else ""


def _ask_broker(directory: str) -> _BrokerFacts:
    """Ask once, with a bound: a broker that is stopped must not hold up the rest. The status alone tells that
    it answers; its tools may take too long.
    """
    status: dict[str, Any] | None = None
    tools: dict[str, Any] = {}
    try:
        with ControlClient(directory, control=True, attach_s=ANSWER_S) as client:
            status = _decode(client.request("carpool/status", {"within_s": SUPERVISOR_S}, ANSWER_S))
            tools = _decode(client.request("carpool/tools", {"offline": True}, ANSWER_S))
    except (ControlClientError, AnsweredError, msgspec.MsgspecError, UnicodeDecodeError):
        pass
    return _BrokerFacts(status, tools.get("tools") or [])


def _last_warnings(logs: str, status: dict[str, Any] | None) -> dict[str, str]:
    """Return the last warning in the log of each server whose calls fail.

    The status of a server of a project has nothing of it any more once its agents have left.
    """
    found = {}
    for name in failing_calls(status or {}):
        lines = LogTail(paths.server_log(logs, name)).last_lines(_LOG_LINES)
        warnings = [
            each.message for each in LogReader(f"server-{name}").read(lines) if _WARNINGS.matches(each)
        ]
        if warnings:
            found[name] = warnings[-1]
    return found


# --- directories ----------------------------------------------------------------------------------------


def _unusable(directory: str) -> NotPrivate | None:
    """Return why no verb uses this runtime directory; None if it can be used."""
    try:
        paths.ensure_private(directory)
    except paths.NotPrivateError as error:
        return NotPrivate(directory, str(error), _may_restrict(directory))
    except OSError:  # it has just been removed
        return None
    return None


def _open_state(state: str) -> Iterator[NotPrivate]:
    """Yield the fault of a state directory that is there and not private."""
    if os.path.isdir(state):
        try:
            paths.ensure_private(state, paths.STATE_VARIABLE)
        except paths.NotPrivateError as error:
            yield NotPrivate(state, str(error), _may_restrict(state))


def _may_restrict(path: str) -> bool:
    """Return True if this user owns the directory, so that taking rights away can repair it."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_open = bool(found.st_mode & 0o077)
    return is_open and stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


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
