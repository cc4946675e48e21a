"""The import of a user's module, and the error text when it fails.

Owns the search path (the directory the server runs in comes first) and the sentence. A traceback, where one
helps, goes to stderr before it. Invariant: where the directory has the module, no other one of that name is
taken for it that Python or the SDK has loaded before.

Knows nothing of: the SDK, what a module is for.
"""

import importlib
import importlib.util
import os
import sys
import traceback
from importlib.machinery import PathFinder
from types import ModuleType


class CannotLoadError(Exception):
    """The module cannot be imported. The text says why and what to do."""


def load(name: str) -> ModuleType:
    """Import it. Raises `CannotLoadError`."""
    directory = os.getcwd()
    sys.path.insert(0, directory)
    if taken := _shadowed_text(name, directory):
        raise CannotLoadError(taken)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None:
            raise CannotLoadError(_import_failed(name, error)) from None
        if name == error.name or name.startswith(f"{error.name}."):
            raise CannotLoadError(
                f"there is no module {name} in {directory}, nor installed for {sys.executable}; the server's "
                "`cwd` says where to look"
            ) from None
        raise CannotLoadError(
            f"{_place(name, error)} imports {error.name}, which {sys.executable} does not have: install it "
            "there, or let `interpreter` name a Python that has it"
        ) from None
    except BaseException as error:  # noqa: BLE001 - whatever somebody's module does
        traceback.print_exception(error)
        raise CannotLoadError(_import_failed(name, error)) from None


def _shadowed_text(name: str, directory: str) -> str:
    """Return the error text if the import would give a module of Python or of the SDK's needs instead of the
    one in the directory; empty if it would not.
    """
    top = name.partition(".")[0]
    here = PathFinder.find_spec(top, [directory])
    if (
        here is None or here.origin is None
    ):  # a directory that is no package gives way, as everywhere in Python
        return ""
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # loaded, and says nothing of itself
        found = None
    if found is not None and found.origin == here.origin:
        return ""
    owner = "Python" if top in sys.stdlib_module_names else "the MCP SDK or something that it needs"
    return f"{here.origin} cannot be a server: {top} is the name of a module of {owner} as well; rename it"


def _import_failed(name: str, error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        line = f"{os.path.basename(error.filename or name)}:{error.lineno}"
        return f"{name} cannot be imported: {type(error).__name__}: {error.msg} ({line})"
    text = str(error).partition("\n")[0]
    kind = type(error).__name__
    return f"{name} cannot be imported: {f'{kind}: {text}' if text else kind} ({_place(name, error)})"


def _place(name: str, error: BaseException) -> str:
    """The line it happened in: the last one that is not the import machinery's."""
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen")
    ]
    # The first is ours.
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if len(frames) > 1 else name
