"""Which names a Python module of a server may have.

Owns the rule for broker and `carpool check`. It is looked at once variables are filled in.

Pure. Knows nothing of: whether there is such a module.
"""

import re
from typing import Final

_MODULE: Final = re.compile(r"(?!.*\.py$)[^\W\d]\w*(\.[^\W\d]\w*)*")


def module_name_problem(name: str) -> str | None:
    """What is wrong with it as the name of a module; None: nothing."""
    if _MODULE.fullmatch(name) is not None:
        return None
    return "must be the name of a module, as package.module, not a file"
