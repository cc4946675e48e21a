"""A function of a module, called: where it runs, how it ends, what its result becomes."""

import base64
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from tests.behaviours import behaviour
from tests.client.pymodule.offered_modules import called, forget, offered, texts

__all__ = ["forget"]


def test_bytes_are_an_image_where_they_begin_like_one_and_a_blob_elsewhere() -> None:
    png = base64.b64decode("iVBORw0KGgo=")
    (image,) = called(f"def f() -> bytes: return {png!r}\n").content
    assert (image.type, getattr(image, "mime_type", "")) == ("image", "image/png")
    (blob,) = called("def f() -> bytes | None: return b'\\xff\\x00'\n").content
    assert blob.type == "resource"
    assert base64.b64decode(blob.resource.blob) == b"\xff\x00"  # type: ignore[union-attr]


def test_an_argument_by_position_is_given_by_name_as_all_are() -> None:
    source = "def f(a: int, /, b: int = 2, *, c: int = 3) -> list[int]: return [a, b, c]\n"
    assert called(source, a=1, c=5).structured_content == {"result": [1, 2, 5]}


@behaviour("python:failures")
@pytest.mark.parametrize("kind", ["", "async "])
def test_an_exception_is_the_tools_own_error_and_its_traceback_is_for_the_log(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolError, match="Error executing tool f: ValueError: not so"):
        called(f"{kind}def f() -> int:\n    raise ValueError('not so')\n")
    assert 'mine.py", line 2' in capsys.readouterr().err


@behaviour("python:failures")
@pytest.mark.parametrize("kind", ["", "async "])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise type('Own', (BaseException,), {})('gone')", "Own: gone"),
        ("raise asyncio.CancelledError", "CancelledError"),
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "Mute"),
    ],
)
def test_whatever_a_function_raises_ends_its_call_only(kind: str, body: str, told: str) -> None:
    with pytest.raises(ToolError) as caught:
        called(f"import asyncio\n{kind}def f() -> None:\n    {body}\n")
    assert str(caught.value) == f"Error executing tool f: {told}"


@behaviour("python:failures")
def test_a_function_that_waits_for_a_task_it_has_cancelled_ends_its_call_only() -> None:
    with pytest.raises(ToolError, match="CancelledError"):
        called(
            "import asyncio\nasync def f() -> None:\n"
            "    task = asyncio.ensure_future(asyncio.sleep(3600))\n    task.cancel()\n    await task\n"
        )


SECRET = "argsecret888"
PARAMETERS = """
from typing import Annotated, Literal, Union
from pydantic import BaseModel, BeforeValidator, Field

def _refuse(value):
    raise ValueError(f"not {value}")

class _Cat(BaseModel):
    kind: Literal["cat"]
class _Dog(BaseModel):
    kind: Literal["dog"]
_Pet = Annotated[Union[_Cat, _Dog], Field(discriminator="kind")]
"""


@behaviour("python:failures")
@pytest.mark.parametrize(
    ("annotation", "value", "told"),
    [
        ("int", SECRET, "a: Input should be a valid integer, unable to parse string as an integer"),
        ("list[int]", [1, SECRET], "a[1]: Input should be a valid integer, unable"),
        ("dict[str, int]", {SECRET: SECRET}, "a[…]: Input should be a valid integer, unable"),
        ("Literal['x', 'y']", SECRET, "a: Input should be 'x' or 'y'"),
        ("_Pet", {"kind": SECRET}, "a: fits none of the alternatives"),
        ("Annotated[str, BeforeValidator(_refuse)]", SECRET, "a: is refused by its validator"),
        ("Annotated[str, Field(max_length=3)]", SECRET, "a: String should have at most 3 characters"),
    ],
)
def test_a_wrong_argument_is_told_by_parameter_and_rule_and_never_by_value(
    annotation: str, value: object, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolError) as caught:
        called(f"{PARAMETERS}\ndef f(a: {annotation}) -> None: ...\n", a=value)
    assert str(caught.value).startswith(f"f: {told}")
    assert SECRET not in str(caught.value) + capsys.readouterr().err


@behaviour("python:failures")
@pytest.mark.parametrize("body", ["return 'argsecret888'", "return _Dog(kind=a)", "_Dog(kind=a)"])
def test_a_wrong_result_and_a_models_own_failure_repeat_no_value(
    body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolError, match="Input should be") as caught:
        called(f"{PARAMETERS}\ndef f(a: str) -> int:\n    {body}\n", a=SECRET)
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert SECRET not in str(caught.value)
    assert "input_value" not in err


def test_a_call_that_is_cancelled_ends_as_cancelled() -> None:
    tools, _ = offered("import anyio\nasync def f() -> None: await anyio.sleep(3600)\n")
    server: MCPServer[None] = MCPServer("x")

    async def run() -> bool:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await tools["f"].run({}, Context(mcp_server=server), convert_result=True)
        return scope.cancelled_caught

    assert anyio.run(run)


def test_a_coroutine_that_a_plain_function_returns_is_waited_for() -> None:
    source = (
        "import functools\n"
        "def _logged(function):\n    @functools.wraps(function)\n"
        "    def inner(*args, **more): return function(*args, **more)\n    return inner\n"
        "@_logged\nasync def f(n: int) -> int: return n + 1\n"
    )
    assert called(source, n=1).structured_content == {"result": 2}


@behaviour("python:failures")
def test_a_process_that_a_function_forks_ends_where_the_function_does(tmp_path: Path) -> None:
    ends = {"return 5": 0, "sys.exit(3)": 3, "sys.exit('why')": 1, "raise OSError": 1}
    functions = [
        f"{kind}def f{at}() -> int:\n    pid = os.fork()\n    if not pid:\n        {end}\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
        for kind in ("", "async ")
        for at, end in enumerate(ends)
    ]
    (tmp_path / "mine.py").write_text("import os, sys\n" + "".join(functions[:4]))
    (tmp_path / "mine_async.py").write_text("import os, sys\n" + "".join(functions[4:]))
    program = (
        "import anyio, sys\nsys.path.insert(0, '.')\nimport mine, mine_async\n"
        "from carpool.pymodule.call import call_wrapper\n"
        "for module in mine, mine_async:\n"
        "    for name in ('f0', 'f1', 'f2', 'f3'):\n"
        "        call = call_wrapper(getattr(module, name), is_async=module is mine_async)\n"
        "        print(anyio.run(call), flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert [int(line) for line in done.stdout.split()] == [*ends.values()] * 2, done.stderr


@behaviour("python:failures")
@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f() -> int: return 'none'\n", "ValidationError: result: Input should be a valid integer"),
        ("def f() -> dict[str, bytes]: return {'a': b'\\xff'}\n", "PydanticSerializationError: "),
        ("def f():\n    x = []\n    x.append(x)\n    return x\n", "RecursionError: "),
    ],
)
def test_a_result_that_cannot_be_told_says_why(
    source: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolError, match=f"Error executing tool f: {told}"):
        called(source)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source",
    [
        "from collections.abc import Iterator\ndef f() -> Iterator[int]:\n    yield 1\n    yield 2\n",
        "from typing import Generator\ndef f() -> Generator[int, None, None]:\n    yield 1\n    yield 2\n",
        "from collections.abc import AsyncIterator\n"
        "async def f() -> AsyncIterator[int]:\n    yield 1\n    yield 2\n",
        "async def f():\n    yield 1\n    yield 2\n",
        "def f(): return (each for each in (1, 2))\n",
    ],
    ids=["iterator", "generator", "async", "bare", "expression"],
)
def test_what_a_generator_yields_is_its_result(source: str) -> None:
    result = called(source)
    assert "".join(texts(result)).replace(",", "").split() in (["12"], ["[", "1", "2", "]"])
    assert result.structured_content is None
