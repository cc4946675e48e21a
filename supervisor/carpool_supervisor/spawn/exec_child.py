"""From fork to exec: turns a forked copy of the spawner into a server.

Owns everything that a server process gets: its own session and process group, a parent-death signal, the
limit that marks its instance (`marks`), the limit of core dumps that carpool was started with, default signal
handlers, an empty signal mask, its directory, three pipes and no other descriptor of ours, its own
environment. Failures are reported exactly on the report pipe, which is close-on-exec: end of file there means
that exec succeeded.

Runs in the spawner, so it imports the standard library only and few modules (decision 0002). Knows nothing
of: the request's origin, the process after exec.
"""

import _signal  # type: ignore[import-not-found]  # no stub; `signal` drags in enum, 0.7 MB
import errno
import marshal
import os
import resource
import sys

from carpool_supervisor import marks

LINUX = sys.platform == "linux"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> bool:
    """Call prctl(2) with one argument. `_ctypes` alone costs 0.1 MB, `ctypes` around it 0.5 MB.

    False if it cannot be called; process groups, marks and the end of file still work then.
    """
    try:
        import _ctypes

        address = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")  # type: ignore[arg-type]  # None: this program
        return bool(_ctypes.call_function(address, (option, value, 0, 0, 0)) == 0)
    except (ImportError, AttributeError):  # private names: they may change
        pass
    try:
        import ctypes
    except ImportError:
        return False
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def limit_core_dumps(size_bytes: int) -> None:
    """Limit core dumps of this process and its children. If the system allows fewer, its limit stays."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (size_bytes, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (OSError, ValueError):
        return


def exec_server(
    argv: list[bytes],
    env: dict[bytes, bytes],
    cwd: bytes,
    *,
    fds: list[int],
    report_fd: int,
    parent: int,
    limit: int,
    core_bytes: int,
) -> None:
    """Turn into the server; never returns. Call in the forked child with every signal blocked.

    `fds` (stdin, stdout, stderr) and `report_fd` are above 2 and close-on-exec, as every other descriptor
    of the process must be. On failure `report_fd` gets `marshal.dumps((stage, errno))`, stage one of
    `setup`, `cwd`, `command`, `interpreter`.
    """
    stage, number = "setup", 0
    try:
        os.setsid()
        marks.set_limit(limit)
        limit_core_dumps(core_bytes)
        if LINUX:
            prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
            if os.getppid() != parent:  # it died before the signal was armed
                os._exit(127)
        _signal.set_wakeup_fd(-1)
        for each in _signal.valid_signals():
            if each not in {_signal.SIGKILL, _signal.SIGSTOP}:
                _signal.signal(each, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        stage = "cwd"
        os.chdir(cwd)
        stage, number = _exec(argv, env)
    except OSError as error:
        number = error.errno or 0
    except BaseException:  # noqa: BLE001  # whatever it is: a forked copy of the spawner must not run on
        number = 0
    try:
        os.write(report_fd, marshal.dumps((stage, number)))
    finally:
        os._exit(127)


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> tuple[str, int]:
    """Call execvpe(3) with the PATH of `env`. Returns the errno that best explains why nothing could
    be run.
    """
    command = argv[0]
    if b"/" in command:
        places = [command]
    else:
        path = env.get(b"PATH", os.fsencode(os.defpath))
        places = [os.path.join(folder or b".", command) for folder in path.split(b":")]
    most = errno.ENOENT
    for place in places:
        try:
            os.execve(place, argv, env)  # noqa: S606  # a shell is what we do not want
        except OSError as error:
            if error.errno == errno.ENOENT and os.path.isfile(place):
                return "interpreter", errno.ENOENT
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                continue
            most = error.errno or most
            if most != errno.EACCES:  # as execvp(3): a forbidden file does not end the search
                break
    return "command", most
