"""Homes of the shapes that users have, written by the test: clones with `.git`, shims, lines of a profile.

A shape that brings a tool of its own (nvm, pyenv, rbenv, asdf, mise, volta, Homebrew) has
`odd-server` where such a tool puts programs, with an interpreter beside it that only the same PATH finds, as
`npx` needs its `node`.

Knows nothing of: programs, carpool.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.live import SERVERS
from tests.programs.program import Home

PLAIN_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
COMMAND: Final = "odd-server"
"""The server's name in the PATH of a home that has a tool."""


@dataclass(frozen=True)
class Shape:
    """The shape of one home. Paths are below it."""

    installed: str = ""
    """The directory that holds the program itself."""
    on_path: tuple[str, ...] = ()
    """The directories that the user's shell puts first in PATH."""
    shim: str = ""
    """The text of a shim for `installed` in the first directory of PATH; empty where that holds the
    program.
    """
    clones: tuple[str, ...] = ()
    """Directories that the tool's installer makes with `git clone`."""
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the user's shell; `~` stands for the home."""
    without: tuple[str, ...] = ()


_FEW: Final = ("LANG", "SHELL", "TERM", "USER", "LOGNAME")
_PYENV: Final = '#!/bin/sh\n[ "$1" = exec ] || exit 1\nshift\nprogram=$1\nshift\n'

SHAPES: Final[dict[str, Shape]] = {
    "fresh": Shape(),
    "xdg": Shape(
        variables={
            "XDG_CONFIG_HOME": "~/xdg/config",
            "XDG_STATE_HOME": "~/xdg/state",
            "XDG_DATA_HOME": "~/xdg/data",
            "XDG_CACHE_HOME": "~/xdg/cache",
        }
    ),
    "german": Shape(variables={"LANG": "de_DE.UTF-8", "LANGUAGE": "de:en", "LC_TIME": "de_DE.UTF-8"}),
    "few variables": Shape(without=_FEW),
    "nvm": Shape(
        installed=".nvm/versions/node/v20.20.2/bin",
        on_path=(".nvm/versions/node/v20.20.2/bin",),
        clones=(".nvm",),
        files={".nvm/nvm.sh": "# nvm\n", ".nvm/alias/default": "20\n"},
        variables={"NVM_DIR": "~/.nvm"},
    ),
    "pyenv": Shape(
        installed=".pyenv/versions/3.11.7/bin",
        on_path=(".pyenv/shims", ".pyenv/bin"),
        shim=f'#!/bin/sh\nexec pyenv exec {COMMAND} "$@"\n',
        clones=(".pyenv",),
        files={
            ".pyenv/version": "3.11.7\n",
            ".pyenv/bin/pyenv": _PYENV
            + 'PATH="$HOME/.pyenv/versions/3.11.7/bin:$PATH"\nexport PATH\nexec "$program" "$@"\n',
        },
        variables={"PYENV_ROOT": "~/.pyenv"},
    ),
    "rbenv": Shape(
        installed=".rbenv/versions/3.3.6/bin",
        on_path=(".rbenv/shims", ".rbenv/bin"),
        shim='#!/usr/bin/env bash\nset -e\nexport RBENV_ROOT="$HOME/.rbenv"\n'
        f'exec "$HOME/.rbenv/bin/rbenv" exec {COMMAND} "$@"\n',
        clones=(".rbenv",),
        files={
            ".rbenv/version": "3.3.6\n",
            ".rbenv/bin/rbenv": _PYENV
            + 'PATH="$RBENV_ROOT/versions/3.3.6/bin:$PATH"\nexport PATH\nexec "$program" "$@"\n',
        },
    ),
    "asdf": Shape(
        installed=".asdf/installs/nodejs/20.20.2/bin",
        on_path=(".asdf/shims", ".asdf/bin"),
        shim=f'#!/bin/sh\nexec "$HOME/.asdf/bin/asdf" exec {COMMAND} "$@"\n',
        clones=(".asdf",),
        files={
            ".tool-versions": "nodejs 20.20.2\n",
            ".asdf/bin/asdf": _PYENV
            + 'PATH="$HOME/.asdf/installs/nodejs/20.20.2/bin:$PATH"\nexport PATH\nexec "$program" "$@"\n',
        },
    ),
    "mise": Shape(
        installed=".local/share/mise/installs/node/20.20.2/bin",
        on_path=(".local/share/mise/installs/node/20.20.2/bin", ".local/bin"),
        files={".config/mise/config.toml": '[tools]\nnode = "20.20.2"\n'},
        variables={"MISE_SHELL": "bash"},
    ),
    "volta": Shape(
        installed=".volta/tools/image/node/20.20.2/bin",
        on_path=(".volta/bin",),
        shim='#!/bin/sh\nPATH="$HOME/.volta/tools/image/node/20.20.2/bin:$PATH"\nexport PATH\n'
        f'exec {COMMAND} "$@"\n',
        variables={"VOLTA_HOME": "~/.volta"},
    ),
    "Homebrew": Shape(
        installed="homebrew/Cellar/odd/1.0/bin",
        on_path=("homebrew/bin", "homebrew/sbin"),
        clones=("homebrew",),
        variables={"HOMEBREW_PREFIX": "~/homebrew"},
    ),
}
TOOLS: Final = tuple(name for name, shape in SHAPES.items() if shape.installed)
"""The shapes that have `odd-server` in the PATH."""


def program(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def repository(path: Path) -> None:
    """Make an empty git repository of this directory, without git."""
    for name in ("objects", "refs/heads"):
        (path / ".git" / name).mkdir(parents=True, exist_ok=True)
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (path / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")


def make_home(base: Path, name: str, variables: Mapping[str, str]) -> Home:
    """Write a home of this shape below `base`; `variables` are set in the user's shell."""
    shape = SHAPES[name]
    home = base / "home"
    project = home / "work" / "project"
    project.mkdir(parents=True)
    repository(project)
    for each in shape.clones:
        repository(home / each)
    for file, text in shape.files.items():
        program(home / file, text)
    if shape.installed:
        _install(home, shape)
    told = {
        name: value.replace("~", str(home)) if value.startswith("~") else value
        for name, value in shape.variables.items()
    }
    path = os.pathsep.join([*(str(home / each) for each in shape.on_path), PLAIN_PATH])
    lines = [f"export {key}={value!r}" for key, value in {**told, "PATH": path}.items()]
    (home / ".bashrc").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (home / ".profile").write_text('. "$HOME/.bashrc"\n', encoding="utf-8")
    environ = {
        "HOME": str(home),
        "PATH": path,
        "LANG": "C.UTF-8",
        # A login shell is asked only where it says something that PATH does not.
        "SHELL": "/bin/bash" if shape.installed else "/bin/false",
        "TERM": "dumb",
        "USER": "ann",
        "LOGNAME": "ann",
        **told,
    }
    kept = {key: value for key, value in environ.items() if key not in shape.without}
    return Home(home, project, {**kept, **variables})


def _install(home: Path, shape: Shape) -> None:
    """Write `odd-server`, the interpreter that it needs in PATH, and its shim."""
    interpreter = f'#!/bin/sh\nshift\nexec {sys.executable} -S -E {SERVERS / "odd.py"} "$@"\n'
    program(home / shape.installed / "odd-interpreter", interpreter)
    program(home / shape.installed / COMMAND, "#!/usr/bin/env odd-interpreter\n")
    first = home / shape.on_path[0]
    first.mkdir(parents=True, exist_ok=True)
    if shape.shim:
        program(first / COMMAND, shape.shim)
    elif first != home / shape.installed:
        for name in (COMMAND, "odd-interpreter"):
            (first / name).symlink_to(os.path.relpath(home / shape.installed / name, first))
