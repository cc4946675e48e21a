"""`carpool check` names functions without types, and runs nothing."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from carpool.check.modules import untyped_functions
from carpool.pymodule.function_choice import public_functions, without_types
from tests.behaviours import behaviour
from tests.kit.private_daemon import PrivateDaemon


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, *b: int, c=1, **d: int): ...", [("m.py:1", "f", ["a", "*b", "c", "**d"])]),
        ("@some\n@other\nasync def f(a, /, b: int): ...", [("m.py:1", "f", ["a"])]),
        ("def f(a: int, *, b: str = ''): ...\ndef _g(a): ...\nclass C:\n    def h(self, a): ...", []),
        ("__all__ = ['_g', 'i']\ndef f(a): ...\ndef _g(a): ...", [("m.py:3", "_g", ["a"])]),
        ("__all__ = made()\ndef f(a): ...", [("m.py:2", "f", ["a"])]),
    ],
)
def test_functions_without_types_are_found_in_the_text(
    source: str, found: list[tuple[str, str, list[str]]]
) -> None:
    assert list(untyped_functions(source, "m.py")) == found


@pytest.mark.parametrize(
    "source",
    [
        "def f(a, *b: int, c=1, **d: int): ...\ndef g(a: int): ...\ndef _h(a): ...",
        "import functools\n@functools.cache\ndef f(a, /, b: int): ...\nasync def g(*, c): ...",
        "__all__ = ('_g', 'f')\ndef i(a): ...\ndef f(x, y: int): ...\ndef _g(a): ...",
    ],
)
def test_the_text_says_of_functions_what_the_module_that_runs_says(source: str) -> None:
    module = ModuleType("m")
    exec(compile(source, "/x/m.py", "exec"), vars(module))
    runs = {
        (each.where, each.name, *bare)
        for each in public_functions(module)
        if (bare := without_types(each.function))
    }
    assert {(where, name, *bare) for where, name, bare in untyped_functions(source, "m.py")} == runs


@behaviour("python:untyped")
def test_check_names_them_in_the_users_and_in_a_projects_modules_and_runs_nothing(
    house: PrivateDaemon, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    code = house.base / "code" / "pack"
    code.mkdir(parents=True)
    (code / "loose.py").write_text(f"open({str(ran)!r}, 'w')\ndef shout(text):\n    return text\n")
    (code / "broken.py").write_text("x = (\n")
    (code / "endless.py").write_text("x = 1" + "+1" * 100_000)
    (code / "warned.py").write_text("def f(a: str): return '\\d'\n")
    file = house.base / ".config" / "carpool" / "carpool.json"
    file.parent.mkdir(parents=True)
    servers = {
        "mine": {"python": "pack.loose", "cwd": "~/code"},
        "hard": {"python": "pack.${NAME}", "cwd": "code", "strict": True},
        "broken": {"python": "pack.broken", "cwd": "code"},
        "endless": {"python": "pack.endless", "cwd": "code"},
        "warned": {"python": "pack.warned", "cwd": "code"},
        "installed": {"python": "json"},
        "file": {"python": "${NAME}.py", "cwd": "code"},
        "off": {"python": "pack.loose", "cwd": "code", "disabled": True},
    }
    file.write_text(json.dumps({"mcpServers": servers, "env_file": "env"}))
    (file.parent / "env").write_text("NAME=loose\n")
    (file.parent / "env").chmod(0o600)
    done = house.run("check", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["warnings"] == [
        f"{file}:1: mcpServers.file.python: must be the name of a module, as package.module, not a file",
        "mine: loose.py:2: shout: text has no type, so the tool takes any arguments",
        "hard: loose.py:2: shout: text has no type; with `strict` that keeps hard from starting",
        "broken: broken.py:1: is no Python",
        "endless: endless.py: is too deeply nested to be looked at",
    ]
    assert not ran.exists()
    assert house.run("check").stdout.endswith(": not all right: file is misconfigured\n")
