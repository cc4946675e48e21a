"""`python -m carpool.pymodule [--strict] MODULE`: serve a module's functions over stdio.

The last line on stderr is the reason of a failure: agents and `carpool status` are shown it.
"""

import gc
import sys
from collections.abc import Sequence

from carpool.pymodule.load import CannotLoadError, load
from carpool.pymodule.stdio import claim
from carpool_protocol.bootstrap.extras import install_command


def log_line(text: str) -> None:
    """For the server's log."""
    print(text, file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    """Returns the exit code: 0 at the end of the wire, 1 where the module cannot be served, 2: usage."""
    *flags, name = words or ("",)
    if not name or name.startswith("-") or flags not in ([], ["--strict"]):
        log_line("usage: python -m carpool.pymodule [--strict] MODULE")
        return 2
    source, sink = claim()
    gc.disable()  # what is imported stays: collections in between find nothing, and take their time
    try:
        # Before the module's directory is searched: a file there may be called like one of its needs.
        from carpool.pymodule.server import UntypedModuleError, serve, tools_of
    except ImportError as error:
        log_line(
            f"a server made of a Python module needs the MCP SDK 2.3 or newer ({error}): "
            f"{install_command('python')}"
        )
        return 1
    gc.freeze()
    gc.enable()
    try:
        module = load(name)
        tools = tools_of(module, strict=bool(flags), say=log_line)
    except (CannotLoadError, UntypedModuleError) as error:
        log_line(str(error))
        return 1
    serve(module, tools, source, sink)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
