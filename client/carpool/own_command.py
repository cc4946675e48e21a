"""How somebody else starts carpool: the command that is written into other programs' files and units.

Owns where our executable is. It is said by its whole path: who starts it later has another PATH. And another
directory: none of our modules may come from there (`-P`).

Knows nothing of: what is done with it.
"""

import os
import shutil
import sys
from pathlib import Path


def executable() -> list[str]:
    """Absolute, the one in PATH where that is this carpool."""
    beside = Path(sys.executable).with_name("carpool")
    there = shutil.which("carpool")
    if not beside.exists():
        return [os.path.abspath(there)] if there else [sys.executable, "-P", "-m", "carpool"]
    if there is not None and os.path.samefile(there, beside):
        return [os.path.abspath(there)]
    return [str(beside)]


def is_in_path() -> bool:
    """Whether the bare name is enough, for who has the same PATH."""
    there = shutil.which("carpool")
    return there is not None and executable() == [os.path.abspath(there)]
