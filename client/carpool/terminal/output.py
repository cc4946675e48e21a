"""The end of a verb whose output cannot be written: one sentence and exit code 1, never a traceback.

Owns what counts as that. A reader that has what it wants (`carpool ps | head -1`) is no failure.
Standard library only, and modules that every interpreter has loaded: `up` and `--version` go through here.
"""

import gc
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # to import these takes longer than `--version` does
    from collections.abc import Callable
    from typing import Any, NoReturn

EXIT_FAILED = 1
_STDOUT = 1


class _Stdout(io.FileIO):
    """Descriptor 1, which remembers why it did not take something."""

    failed: OSError | None = None

    def write(self, data: "Any", /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failed = error
            raise


def run_to_end(main: "Callable[[], int]") -> "NoReturn":
    """Run `main` and exit with its code, or with 1 where stdout does not take what it says."""
    raw = _take_stdout()
    code: int | str | None
    try:
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
    except OSError:
        if raw.failed is None:
            raise
        # Python writes what is left when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        code = 0
        if not isinstance(raw.failed, BrokenPipeError):
            code = EXIT_FAILED
            try:
                sys.stderr.write(f"carpool: cannot write the output: {raw.failed.strerror}\n")
            except (OSError, AttributeError):  # a stderr that is full, or closed
                code = EXIT_FAILED
    gc.freeze()  # to look for cycles among all that was imported takes a tenth of `carpool status`
    sys.exit(code)


def _take_stdout() -> _Stdout:
    """Put ours in the place of `sys.stdout`. A closed one (`>&-`) becomes one that takes nothing: no file or
    socket of ours gets its number.
    """
    before = sys.stdout
    if before is None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        if nothing != _STDOUT:
            os.dup2(nothing, _STDOUT)
            os.close(nothing)
        os.set_inheritable(_STDOUT, True)
    raw = _Stdout(_STDOUT, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else "utf-8",
        errors=before.errors if before else "replace",
        line_buffering=isinstance(before, io.TextIOWrapper)
        and (before.line_buffering or before.write_through),
    )
    return raw
