"""The command that starts carpool: for other programs' files and units, and for processes of our own.

Owns where our executable is. To others it is said by its whole path: who starts it later has another PATH,
and another directory: none of our modules may come from there (`-P`).

Knows nothing of: what is done with it.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from carpool_protocol.runtime.login_path import login_path

_ACTIVE: Final = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables that name the environment that is active in this shell."""


def executable() -> list[str]:
    """Return the absolute path of carpool's executable; the one in PATH if that is this carpool."""
    beside = Path(sys.executable).with_name("carpool")
    there = shutil.which("carpool")
    if not beside.exists():
        return [os.path.abspath(there)] if there else [sys.executable, "-P", "-m", "carpool"]
    if there is not None and os.path.samefile(there, beside):
        return [os.path.abspath(there)]
    return [str(beside)]


def carpool_argv() -> list[str]:
    """Return the command that runs carpool with this Python: its installed command, which agents'
    configurations name (a shim of it is 0.7 MB smaller than with `-m`), else the module.
    """
    command = os.path.join(os.path.dirname(sys.executable), "carpool")
    return [command] if os.access(command, os.X_OK) else [sys.executable, "-P", "-m", "carpool"]


def is_in_path() -> bool:
    """True if the bare name starts this carpool in the user's next shell, too. A directory that only this
    shell has in its PATH does not count, such as that of an active environment.
    """
    lasting = [each for each in os.environ.get("PATH", "").split(os.pathsep) if _lasts(each)]
    if not _finds_us(lasting):
        return False
    said = login_path(os.environ)
    return said is None or _finds_us(filter(os.path.isabs, said.split(os.pathsep)))


def _finds_us(directories: Iterable[str]) -> bool:
    there = shutil.which("carpool", path=os.pathsep.join(directories))
    return there is not None and os.path.samefile(there, executable()[0])


def _lasts(directory: str) -> bool:
    """True if an entry of PATH is one of the user's own, as far as can be seen."""
    if not os.path.isabs(directory):
        return False
    above = os.path.dirname(os.path.realpath(directory))
    active = {os.path.realpath(os.environ[name]) for name in _ACTIVE if os.environ.get(name)}
    marks = (os.path.join(above, each) for each in ("pyvenv.cfg", "conda-meta"))
    return above not in active and not any(map(os.path.lexists, marks))
