"""Functions of a module as tools: which ones, with which schemas; results and mistakes."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from carpool.pymodule.__main__ import main
from carpool.pymodule.function_choice import public_functions, without_types
from carpool.pymodule.load import CannotLoadError, load
from carpool.pymodule.server import UntypedModuleError, tools_of
from carpool.pymodule.tools import tool_of
from tests.behaviours import behaviour
from tests.client.pymodule.offered_modules import called, forget, module_of, offered, texts

__all__ = ["forget"]


def names(source: str) -> list[str]:
    return [each.name for each in public_functions(module_of(source))]


@behaviour("python:run")
def test_the_functions_that_a_module_defines_are_its_tools_in_their_order() -> None:
    assert names(
        "from os.path import join\n"
        "import functools, json\n"
        "def b(): ...\n"
        "async def a(): ...\n"
        "def _hidden(): ...\n"
        "class Thing:\n    def method(self): ...\n"
        "number = 3\n"
        "@functools.cache\ndef kept(): ...\n"
    ) == ["b", "a", "kept"]


def test_names_in_all_are_the_tools_wherever_they_are_from() -> None:
    assert names(
        "from os.path import join\n__all__ = ['join', 'f', 'Thing', 'gone', 'join']\n"
        "def f(): ...\ndef g(): ...\nclass Thing: ...\n"
    ) == ["join", "f"]


def test_parameters_that_have_no_schema_are_named() -> None:
    module = module_of(
        "def f(a, b: int, *c: int, d=1, **e: int) -> int: ...\ndef g(a: int, *, b: str = 'x'): ..."
    )
    found = [without_types(each.function) for each in public_functions(module)]
    assert found == [["a", "*c", "d", "**e"], []]


@behaviour("python:schemas")
def test_a_schema_is_made_of_types_models_defaults_and_descriptions() -> None:
    tools, said = offered('''
from dataclasses import dataclass
from typing import Annotated, Literal, Optional
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

class Point(BaseModel):
    x: int
    y: float = 0

@dataclass
class Box:
    corner: Point
    name: str = "box"

class Extra(TypedDict):
    key: int

def f(
    box: Box,
    extra: Extra,
    way: Literal["up", "down"],
    who: Annotated[str, Field(description="Whose.")] = "me",
    other: Optional[Point] = None,
    many: list[int | str] = [],
) -> Point:
    """Move a box.

    Slowly.
    """
''')
    assert said == []
    tool = tools["f"]
    assert tool.description == "Move a box.\n\nSlowly."
    schema = tool.parameters
    assert schema["type"] == "object"
    assert schema["required"] == ["box", "extra", "way"]
    properties = schema["properties"]
    assert properties["way"]["enum"] == ["up", "down"]
    assert (properties["who"]["description"], properties["who"]["default"]) == ("Whose.", "me")
    assert properties["many"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert schema["$defs"]["Box"]["properties"]["corner"] == {"$ref": "#/$defs/Point"}
    assert schema["$defs"]["Extra"]["required"] == ["key"]
    assert tool.output_schema["properties"]["x"] == {"title": "X", "type": "integer"}


def test_tags_of_the_module_and_of_a_function_and_its_version_are_in_its_meta() -> None:
    tools, _ = offered(
        "__tags__ = ['all']\ndef f(): ...\ndef g(): ...\n"
        "g.__tags__ = ('all', 'own', 3)\ng.__version__ = '2'\n"
    )
    assert tools["f"].meta == {"carpool/tags": ["all"]}
    assert tools["g"].meta == {"carpool/tags": ["all", "own"], "carpool/version": "2"}


@behaviour("python:untyped")
def test_a_function_without_types_takes_any_arguments_and_is_named_with_its_line() -> None:
    source = (
        "def g(n: int) -> int:\n    return n\n\n"
        "def f(text, times: int = 2, **more):\n    return [text * times, more]\n"
    )
    tools, said = offered(source)
    assert tools["f"].parameters == {"type": "object"}
    assert said == ["mine.py:4: f: text has no type, **more fits no schema, so the tool takes any arguments"]
    assert texts(called(source, text="a", other=1)) == ["aa", '{\n  "other": 1\n}']


@behaviour("python:untyped")
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def f(text):\n    ...\n", "mine.py:1: f: text has no type"),
        ("def f(*all: int, **more: int):\n    ...\n", "mine.py:1: f: *all and **more fit no schema"),
        (
            "def f(x: 'Gone') -> None: ...\n",
            "mine.py:1: f: is no tool: NameError: name 'Gone' is not defined",
        ),
    ],
)
def test_strict_refuses_the_module_and_names_the_function(source: str, line: str) -> None:
    said: list[str] = []
    with pytest.raises(UntypedModuleError, match="; with `strict` that keeps mine from starting"):
        tools_of(module_of(source), strict=True, say=said.append)
    assert said == [line]


def test_a_function_that_no_tool_can_be_made_of_leaves_the_others_alone() -> None:
    tools, said = offered("class Odd: ...\ndef f(odd: Odd): ...\ndef g(n: int): ...\n")
    assert list(tools) == ["g"]
    assert said[0].startswith("mine.py:2: f: is no tool: ")


def test_a_module_without_functions_says_what_would_count() -> None:
    with pytest.raises(UntypedModuleError, match="mine has no functions to offer"):
        offered("x = 1\n")


def test_a_module_whose_functions_all_fail_names_the_first_and_why() -> None:
    with pytest.raises(UntypedModuleError) as refused:
        offered("class Odd: ...\ndef f(odd: Odd): ...\ndef g(odd: Odd): ...\n")
    text = str(refused.value)
    assert text.startswith("mine has no function that can be offered: mine.py:2: f: is no tool: ")
    assert text.endswith(" (and 1 more)")


@pytest.mark.parametrize(
    ("before", "returned"),
    [
        ("from collections.abc import Iterable\nclass Odd: ...", "Iterable[Odd] | None"),
        ("class Odd:\n    kept: 'OnlyForCheckers'", "Odd"),  # as pandas.DataFrame
    ],
)
def test_a_return_type_without_a_schema_costs_the_output_schema_only(before: str, returned: str) -> None:
    tools, said = offered(f"{before}\ndef f(n: int) -> {returned}: ...\n")
    assert (said, tools["f"].output_schema) == ([], None)
    assert tools["f"].parameters["required"] == ["n"]


@behaviour("python:failures")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "there is no module mine in "),
        ("import mine_gone\n", "mine.py:1 imports mine_gone, which "),
        ("x = (\n", "mine cannot be imported: SyntaxError: "),
        (
            "def f():\n    raise OSError('no\\nluck')\nf()\n",
            "mine cannot be imported: OSError: no (mine.py:2)",
        ),
        ("raise SystemExit\n", "mine cannot be imported: SystemExit (mine.py:1)"),
        ("raise KeyboardInterrupt\n", "mine cannot be imported: KeyboardInterrupt (mine.py:1)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_its_line(
    source: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    with pytest.raises(CannotLoadError) as caught:
        load("mine")
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


@behaviour("python:failures")
@pytest.mark.parametrize(
    ("file", "name", "owner"),
    [
        ("json.py", "json", "Python"),
        ("time.py", "time", "Python"),  # built in: found before any file
        ("json/__init__.py", "json.mine", "Python"),
        ("anyio.py", "anyio", "the MCP SDK or something that it needs"),
    ],
)
def test_a_module_is_never_taken_for_another_one_that_is_loaded_by_that_name(
    file: str, name: str, owner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("def f() -> int: return 1\n")
    with pytest.raises(CannotLoadError) as caught:
        load(name)
    top = name.partition(".")[0]
    assert str(caught.value) == (
        f"{path} cannot be a server: {top} is the name of a module of {owner} as well; rename it"
    )


def child(*words: str, before: str = "", cwd: Path) -> tuple[int, str, str]:
    """The child until its stdin ends, which is at once. `before`: Python that runs first."""
    program = (
        f"import sys\n{before}\nfrom carpool.pymodule.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *words],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@behaviour("python:failures")
def test_without_the_sdk_the_child_says_how_to_get_it(tmp_path: Path) -> None:
    code, out, err = child("json", before="sys.modules['mcp'] = None", cwd=tmp_path)
    assert (code, out) == (1, "")
    assert err.startswith("a server made of a Python module needs the MCP SDK 2.3 or newer (")
    assert err.endswith(f"): {sys.executable} -m pip install 'mcp>=2.3,<3'\n")


@behaviour("python:stdout")
def test_nothing_but_answers_is_written_to_stdout(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\nprint('a')\nos.write(1, b'b\\n')\ndef f() -> int: return 1\n"
    )
    assert child("mine", cwd=tmp_path) == (0, "", "a\nb\n")


@behaviour("python:run", "python:failures")
def test_the_child_greets_with_the_modules_version_and_outlives_what_its_functions_do(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        '"""Notes of mine."""\n__version__ = "7.1"\n'
        "def f(text: str) -> str: return text + '\\udcff'\n"
        "def g() -> None: raise KeyboardInterrupt\n"
    )
    about = {"name": "test", "version": "1"}
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
    command = [sys.executable, "-P", "-m", "carpool.pymodule", "mine"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        late = threading.Timer(60, process.kill)
        late.start()

        def ask(method: str, params: object) -> Any:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())["result"]

        greeted = ask("initialize", greeting)
        assert (greeted["serverInfo"]["name"], greeted["serverInfo"]["version"]) == ("mine", "7.1")
        assert greeted["instructions"] == "Notes of mine."
        ended = ask("tools/call", {"name": "g", "arguments": {}})
        assert ended["content"][0]["text"] == "Error executing tool g: KeyboardInterrupt"
        answered = ask("tools/call", {"name": "f", "arguments": {"text": "cut \ud83d"}})
        assert answered["structuredContent"] == {"result": "cut ??"}
        late.cancel()
    assert process.returncode == 0


@pytest.mark.parametrize("words", [[], ["--strict"], ["--other", "m"], ["m", "n"]])
def test_the_child_that_is_called_wrongly_says_how(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == "usage: python -m carpool.pymodule [--strict] MODULE\n"


def test_a_tool_has_the_name_that_the_module_gives_it() -> None:
    assert tool_of("other", lambda n=1: n).name == "other"
