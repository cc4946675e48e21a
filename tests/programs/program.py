"""The description of an agent program: how it is started, told of servers and told of a model.

Knows nothing of: single programs (`tests.programs.agents`), runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.programs.pinned import pinned
from tests.programs.script import ScriptedCall

Kind = Literal["agent", "client", "bridge in front", "bridge behind"]


@dataclass(frozen=True)
class Entry:
    """One MCP server as a program is told of it: a command, or the URL of a streamable HTTP server."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    url: str = ""


@dataclass(frozen=True)
class Home:
    """The directories of one run and the variables of its user's shell."""

    path: Path
    project: Path
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Setup:
    """What `carpool setup` knows of a program."""

    client: str
    """Its `--client`."""
    edit_entry: Callable[[Home, Callable[[Entry], Entry]], None]
    """Changes carpool's entry in the program's file, which setup wrote."""


@dataclass(frozen=True)
class Program:
    """One program at one version."""

    name: str
    """Also that of its pins and of its directory below `.venv/programs`."""
    title: str
    kind: Kind
    api: str
    """The model API that it speaks; empty without a model."""
    executable: Callable[[Path], list[str]]
    """Its command, given the directory that `tests/programs/install` filled."""
    configure: Callable[[Home, Mapping[str, Entry], str], None]
    """Writes its files for these servers and the model at this URL."""
    arguments: Callable[[str], list[str]]
    """The rest of its command for a prompt: not interactive, every tool allowed."""
    environ: Callable[[str], dict[str, str]]
    """Variables that it needs beside those of its user's shell, given the URL of the model."""
    entry: str
    """The entry that a user pastes for carpool; `{command}` stands for the path of carpool."""
    package: str
    """Its package in its pins: "npm PACKAGE" or "PyPI PACKAGE"."""
    lists_again: bool = False
    """It asks for the tools again when it is told that they have changed."""
    restarts_entry: bool = False
    """It starts an entry again whose process has ended."""
    is_askable: bool = False
    """It declares that its user can be asked."""
    asks_progress: bool = False
    """It wants to be told the progress of calls."""
    call_limit_s: int = 60
    """So long it waits at least for a call that tells no progress."""
    setup: Setup | None = None
    idle: ScriptedCall | None = None
    """A tool of the program's own that a turn can call without effect, to come to the next turn."""
    notes: tuple[str, ...] = ()
    """Sentences for the page about the program itself."""

    @property
    def version(self) -> str:
        """The version that is pinned."""
        return pinned(self.name, self.package)
