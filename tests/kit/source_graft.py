"""Gives a process another text of one module while the module is imported. No file is changed.

Imports the standard library only, since a carpool under test may load a copy of it. Knows nothing of: which
text, which process.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType


class _TextLoader(importlib.machinery.SourceFileLoader):
    """Loads one module from text that is in no file."""

    text = ""

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.text, self.path, "exec")


class SourceGraft:
    """A finder for one module, by its path. `text` counts in place of what is in that file."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.used = False

    def put_in(self) -> None:
        """Find the module before all other finders do, in this process."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if not self.path.endswith(f"/{fullname.replace('.', '/')}.py"):
            return None
        loader = _TextLoader(fullname, self.path)
        loader.text = self.text
        self.used = True
        return importlib.machinery.ModuleSpec(fullname, loader, origin=self.path)
