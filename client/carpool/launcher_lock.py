"""The single-instance lock of a runtime directory, and its holder.

Owns the lock file: locked (flock) by the launcher for its whole life, its text
says `pid=…`, `config=…`, `file=…`, `http=…` and `idle=…` for people and for `carpool down`. The lock is the
truth, the text only its description: a pid is believed only while the lock is held. A launcher that ends
takes its text with it, and leaves `awaited=…` if a service manager is to start the next one. One that was
killed leaves its text: the next starter takes configuration and address from it, unless the machine was
booted since (`boot=…`).

Standard library only: the launcher stays small.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

from carpool_protocol.bootstrap import paths

_PID_DIGITS = 9
"""A number with more digits is no pid: the system does not take it."""
_BOOT = "/proc/sys/kernel/random/boot_id"
_MAX_BYTES = 8192
_TRIES, _PAUSE_S = 10, 0.02
"""A process that asks `holder` locks for a moment; a launcher tries again rather than take it for another
launcher.
"""


class LockHolder:
    """The launcher that runs here: its pid, and the configuration (empty: the default one) and the address
    of an HTTP door (empty: that of the configuration) it was given. `file`: the configuration file in any
    case. `boot`: when the machine was started. `ends_idle`: it ends when nobody has used carpool for a while.
    `is_service`: a service manager starts it again after a restart.
    """

    def __init__(
        self,
        pid: int,
        config: str,
        http: str = "",
        boot: str = "",
        *,
        file: str = "",
        ends_idle: bool = False,
        is_service: bool = False,
    ) -> None:
        self.pid = pid
        self.config = config
        self.file = file or config
        self.http = http
        self.boot = boot
        self.ends_idle = ends_idle
        self.is_service = is_service


def take_lock(
    directory: str, config: str, http: str = "", *, ends_idle: bool = False, is_service: bool = False
) -> int | None:
    """Lock `directory` for this process. Returns the descriptor that holds the lock; `None` if another
    process has it. Raises `OSError` if the file cannot be written: a lock without a text could not be found.
    """
    fd = os.open(paths.lock_file(directory), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            try:
                os.ftruncate(fd, 0)
                text = f"pid={os.getpid()}\nconfig={config}\nfile={config or paths.config_file(os.environ)}\n"
                text += f"http={http}\n"
                text += f"idle={ends_idle:d}\nservice={is_service:d}\nboot={this_boot()}\n"
                data = text.encode("utf-8", "surrogateescape")
                if os.pwrite(fd, data, 0) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - closed below
            except OSError:
                os.close(fd)
                raise
            return fd
    os.close(fd)
    return None


@contextlib.contextmanager
def kept_free(directory: str) -> Iterator[bool]:
    """Keep launchers from starting for a moment. Yields False if one holds the lock. The text stays."""
    try:
        fd = os.open(paths.lock_file(directory), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # no launcher was ever here
        yield True
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)


def is_in_place(fd: int, directory: str) -> bool:
    """True if the lock that `fd` holds is the one that others find in `directory`."""
    ours = os.fstat(fd)
    try:
        found = os.stat(paths.lock_file(directory), follow_symlinks=False)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def release_lock(fd: int, *, is_awaited: bool = False) -> None:
    """Release the lock. The text goes first, so that no stale pid is ever read under another
    process's lock. `is_awaited`: a service manager starts the next launcher, and the text says so.
    """
    os.ftruncate(fd, 0)
    if is_awaited:
        with contextlib.suppress(OSError):  # a full disk: then `carpool down` does not wait for it
            os.pwrite(fd, awaited_text().encode(), 0)
    os.close(fd)


def is_awaited(directory: str, within_s: float) -> bool:
    """True if the last launcher here ended no longer ago than this for a service manager to start the next
    one, and none has started yet.
    """
    try:
        with open(paths.lock_file(directory), encoding="utf-8", errors="surrogateescape") as file:
            values = _values(file.read(_MAX_BYTES))
        age_s = time.monotonic() - float(values["awaited"])
    except (OSError, KeyError, ValueError):
        return False
    return 0 <= age_s <= within_s and values.get("boot") == this_boot()


def awaited_text(age_s: float = 0.0) -> str:
    """Return the text that a launcher leaves which ended so long ago for a service manager to start the next
    one.
    """
    return f"awaited={time.monotonic() - age_s:.3f}\nboot={this_boot()}\n"


def holder(directory: str) -> LockHolder | None:
    """Return the holder of the lock, or `None`. Pid 0: it is held, and the holder has not written its pid."""
    for _ in range(_TRIES):
        try:
            found, is_held = _look(directory)
        except FileNotFoundError:
            return None
        if not is_held:
            return None
        if found.pid:
            return found
        time.sleep(_PAUSE_S)
    return LockHolder(0, "")


def killed_holder(directory: str) -> LockHolder | None:
    """Return the last launcher here, if it was killed since the machine started and none has followed it,
    and nobody said `carpool down`.
    """
    try:
        found, is_held = _look(directory)
    except OSError:
        return None
    return found if not is_held and found.pid and found.boot == this_boot() else None


def forget_killed_holder(directory: str) -> None:
    """Forget the killed launcher, so that none continues it. Nothing happens while the lock is held."""
    with contextlib.suppress(OSError):  # a full disk, or there is no directory
        if killed_holder(directory) is not None and (fd := take_lock(directory, "")) is not None:
            release_lock(fd)


def this_boot() -> str:
    """Return an id of this start of the machine; empty where the system has none (macOS)."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _look(directory: str) -> tuple[LockHolder, bool]:
    """Return the text of the file, and whether the lock is held. Raises `OSError` if the file cannot be
    opened.
    """
    fd = os.open(paths.lock_file(directory), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(fd), True
    else:
        return _read(fd), False
    finally:
        os.close(fd)


def _values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def _read(fd: int) -> LockHolder:
    values = _values(os.pread(fd, _MAX_BYTES, 0).decode("utf-8", "surrogateescape"))
    pid = values.get("pid", "")
    number = int(pid) if pid.isdecimal() and len(pid) <= _PID_DIGITS else 0
    return LockHolder(
        number,
        values.get("config", ""),
        values.get("http", ""),
        values.get("boot", ""),
        file=values.get("file", ""),
        ends_idle=values.get("idle") == "1",
        is_service=values.get("service") == "1",
    )
