"""The program that a command line starts, and its entry in the well-known list, as values.

Owns three answers: the program (`program_of`, a name without arguments, so without secrets), whether it is
another one in another directory, and its entry (`WellKnownServers.find`). An npm or PyPI package is
recognized behind npx, uvx and similar runners, as `python -m`, as a script in `node_modules` and by the name
of its own command; an image behind `docker run`.

Invariants: `program_of` never holds a value of an argument except the program's own name or path. Only
certain matches count. Knows nothing of: the path of the list on disk, the network.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from carpool_protocol.link.messages import Mode

_NPM_RUNNERS: Final = frozenset({"npx", "bunx", "pnpx"})
_PYPI_RUNNERS: Final = frozenset({"uvx"})
_SUBCOMMANDS: Final = {
    ("npm", "exec"): "npm",
    ("npm", "x"): "npm",
    ("pnpm", "dlx"): "npm",
    ("yarn", "dlx"): "npm",
    ("bun", "x"): "npm",
    ("uv", "tool", "run"): "pypi",
    ("pipx", "run"): "pypi",
    ("docker", "run"): "image",
    ("podman", "run"): "image",
    ("uv", "run"): "command",
}
_WITH_VALUE: Final = frozenset(
    (
        *("--registry", "--cache", "--userconfig", "--prefix", "-w", "--workspace", "-c", "--call"),  # npx
        *(
            "--with",
            "--with-editable",
            "--with-requirements",
            "--python",
            "--index",
            "--index-url",
            "-i",
            "-f",
        ),
        *("--default-index", "--extra-index-url", "--find-links", "--env-file", "--directory", "--project"),
        *("--config-file", "--constraints", "--refresh-package", "--extra", "--group"),
    )
)
"""Options of the runners that take a value."""

_PACKAGE_OPTIONS: Final = frozenset({"-p", "--package", "--from", "--spec"})
"""Options that name the package; the word that follows is a command in it. (`-p` of uvx is a Python
version.)
"""

_INTERPRETERS: Final = re.compile(
    r"python[0-9.]*|pypy[0-9.]*|node|nodejs|bun|deno|tsx|ts-node|ruby|perl|java"
).fullmatch
_SHELLS: Final = re.compile(r"(ba|z|da|k|fi)?sh|pwsh").fullmatch
_assignment = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=").match
_npm_name = re.compile(r"(@[a-z0-9~._-]+/)?[a-z0-9~._-]+").match
_pypi_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").match
_image_name = re.compile(r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)+(:[\w.-]+)?").fullmatch
_in_node_modules = re.compile(r".*/node_modules/((?:@[^/]+/)?[^/]+)").match


class LaunchedProgram(Struct, frozen=True):
    """The program that a command line starts."""

    kind: Literal["npm", "pypi", "module", "image", "script", "command"]
    name: str
    path: str = ""
    """The file that is run, if it is given by a path: absolute, or relative to the directory."""
    is_local: bool = False
    """True if its path, or the directory, decides which program it is."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class WellKnownServer(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One server of the list."""

    title: str
    npm: tuple[str, ...] = ()
    pypi: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    """For `python -m`; the PyPI name with `_` counts without being listed."""
    commands: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    """Without host and tag."""
    mode: Mode
    why: str
    """A sentence for people: the property of the server that decides."""
    note: str = ""
    """Advice for its user, needed for this mode to work."""
    most: Annotated[int, Meta(ge=0)] = 0
    """The most instances if agents share them: more would interfere outside their processes, for instance by
    writing the same file. 0: as many as the mode allows.
    """
    source: str
    """The proof: repository, commit and file, or a sentence of its documentation."""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    about: str
    servers: tuple[WellKnownServer, ...]


class WellKnownServers:
    """The well-known list, indexed by program."""

    def __init__(self, entries: Sequence[WellKnownServer]) -> None:
        """Raises ValueError if two entries claim one program."""
        self.entries = tuple(entries)
        self._index: dict[str, WellKnownServer] = {}
        for entry in entries:
            for name in _names(entry):
                if self._index.setdefault(name, entry) is not entry:
                    raise ValueError(
                        f"{name} is in the list twice: {self._index[name].title} and {entry.title}"
                    )

    def find(self, argv: Sequence[str]) -> WellKnownServer | None:
        """The entry for the program of this command line."""
        program = program_of(argv)
        return None if program is None else self._index.get(str(program))


def read_well_known(data: bytes) -> WellKnownServers:
    """Read the list from its file. Raises ValueError if it has the wrong form."""
    return WellKnownServers(msgspec.json.decode(data, type=_File).servers)


def _names(entry: WellKnownServer) -> set[str]:
    pypi = [_folded(name) for name in entry.pypi]
    modules = {*entry.modules, *(name.replace("-", "_") for name in pypi)}
    commands = {*entry.commands, *pypi}
    found = {f"npm:{name}" for name in entry.npm} | {f"pypi:{name}" for name in pypi}
    found |= {f"module:{name}" for name in modules} | {f"command:{name}" for name in commands}
    return found | {f"image:{name}" for name in entry.images}


def _folded(name: str) -> str:
    """A PyPI name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def program_of(argv: Sequence[str]) -> LaunchedProgram | None:
    """The program behind the runners, or None if it cannot be determined."""
    words = list(argv)
    while words and (_stem(words[0]) == "env" or _assignment(words[0])):
        words.pop(0)
    if not words or words[0].startswith("-"):
        return None
    first, rest = _stem(words[0]), words[1:]
    if first in _NPM_RUNNERS:
        return _packaged("npm", rest)
    if first in _PYPI_RUNNERS:
        return _packaged("pypi", rest)
    for spoken, kind in _SUBCOMMANDS.items():
        if first == spoken[0] and (after := _after(rest, spoken[1:])) is not None:
            return _run(kind, after)
    if first in {each[0] for each in _SUBCOMMANDS} and first != "bun":
        return None
    if _INTERPRETERS(first):
        return _interpreted(first, rest)
    if "/" in words[0]:
        name = first if _installed(words[0]) else words[0]
        return LaunchedProgram("command", name, words[0], is_local=True)
    # `make serve`, `bash run.sh`: a word that is no option may name a file of the directory.
    names_more = bool(rest) and not rest[0].startswith("-")
    return LaunchedProgram("command", first, is_local=names_more or _SHELLS(first) is not None)


def _run(kind: str, words: list[str]) -> LaunchedProgram | None:
    match kind:
        case "image":
            return _image(words)
        case "command":
            inner = _first(words)
            program = program_of(words[inner:]) if inner is not None else None
            return program and replace(program, is_local=True)  # the project of the directory may have it
        case "npm":
            return _packaged("npm", words)
        case _:
            return _packaged("pypi", words)


def _stem(word: str) -> str:
    """`/usr/bin/npx` is npx."""
    return word.rpartition("/")[2]


def _installed(path: str) -> bool:
    """True if a path lies in a directory of commands, so its last part names the program."""
    return path.split("/")[-2:-1] in (["bin"], [".bin"])


def _after(words: list[str], spoken: tuple[str, ...]) -> list[str] | None:
    """The words after the subcommand, without options before it."""
    for each in spoken:
        at = _first(words)
        if at is None or words[at] != each:
            return None
        words = words[at + 1 :]
    return words


def _first(words: Sequence[str]) -> int | None:
    """The index of the first word that is no option."""
    skip = False
    for at, word in enumerate(words):
        if skip:
            skip = False
        elif word == "--":
            return at + 1 if at + 1 < len(words) else None
        elif word.startswith("-"):
            skip = word in _WITH_VALUE
        else:
            return at
    return None


def _packaged(kind: Literal["npm", "pypi"], words: list[str]) -> LaunchedProgram | None:
    for at, word in enumerate(words):
        option, _, value = word.partition("=")
        if option in _PACKAGE_OPTIONS and not (kind == "pypi" and option == "-p"):
            after = words[at + 1 :] if value else words[at + 2 :]
            spec = value or (words[at + 1] if at + 1 < len(words) else "")
            return _package(kind, spec) or _command(after, is_local="://" not in spec)
        if not word.startswith("-"):
            break
    if kind == "pypi" and words[:1] == ["-p"]:
        words = words[2:]
    at_package = _first(words)
    return None if at_package is None else _package(kind, words[at_package])


def _command(words: list[str], *, is_local: bool) -> LaunchedProgram | None:
    """The command that is run from a package given as an address or (`is_local`) as a path."""
    at = _first(words)
    return None if at is None else LaunchedProgram("command", _stem(words[at]), is_local=is_local)


def _package(kind: Literal["npm", "pypi"], spec: str) -> LaunchedProgram | None:
    """The name in `@scope/name@1.2`, `name==1.2`, `name[extra]>=1`, `name@latest`; None for an address or a
    path.
    """
    found = (_npm_name if kind == "npm" else _pypi_name)(spec)
    if found is None or spec[found.end() : found.end() + 1] not in {
        "",
        "@",
        "=",
        "[",
        ">",
        "<",
        "~",
        "!",
        ";",
        " ",
    }:
        return None
    if spec.startswith("."):
        return None
    return LaunchedProgram(kind, found[0] if kind == "npm" else _folded(found[0]))


def _image(words: list[str]) -> LaunchedProgram | None:
    """Options of `docker run` are many and take values, so the image is the first word of the form
    host/owner/name.
    """
    for word in words:
        path = word.split("@")[0]
        if _image_name(path):
            parts = re.sub(r":[\w.-]+$", "", path).split("/")
            if "." in parts[0] or ":" in parts[0]:
                parts = parts[1:]
            return LaunchedProgram("image", "/".join(parts))
    return None


def _interpreted(interpreter: str, words: list[str]) -> LaunchedProgram | None:
    if words[:1] == ["-m"] or (len(words) > 1 and words[0].startswith("-") and words[1] == "-m"):
        at = words.index("-m") + 1
        return LaunchedProgram("module", words[at], is_local=True) if at < len(words) else None
    if interpreter in {"bun", "deno"} and words[:1] == ["run"]:
        words = words[1:]
    at_script = _first(words)
    if at_script is None or any(word in {"-c", "-e", "--eval", "-jar"} for word in words[:at_script]):
        return None
    script = words[at_script]
    package = _in_node_modules(script)
    if package and package[1] != ".bin":
        return LaunchedProgram("npm", package[1], script, is_local=True)
    return LaunchedProgram("script", script, script, is_local=True)
