"""The command that adds packages fits the way in which carpool was installed."""

import shlex
import sys
from pathlib import Path

import pytest

from carpool_protocol.bootstrap import install_method
from carpool_protocol.bootstrap.extras import REQUIREMENTS, install_command
from carpool_protocol.bootstrap.install_method import add_packages_command
from tests.behaviours import behaviour

MCP = ["mcp>=2.3,<3"]


def receipt(prefix: Path, requirements: str, more: str = "") -> None:
    """Write the receipt that uv keeps in the environment of a tool."""
    (prefix / "uv-receipt.toml").write_text(f"[tool]\nrequirements = [{requirements}]\n{more}\n")


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    environment = tmp_path / "carpool"
    environment.mkdir()
    monkeypatch.setattr(sys, "prefix", str(environment))
    return environment


@behaviour("start:add-packages")
def test_pip_of_the_environment_is_named_where_there_is_one(prefix: Path) -> None:
    assert prefix.exists()
    assert shlex.split(install_command("python")) == [sys.executable, "-m", "pip", "install", *MCP]


@behaviour("start:add-packages")
def test_uv_is_named_in_an_environment_without_pip(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefix.exists()
    monkeypatch.setattr(install_method, "find_spec", lambda _: None)
    assert shlex.split(add_packages_command(MCP)) == [
        "uv",
        "pip",
        "install",
        "--python",
        sys.executable,
        *MCP,
    ]


@behaviour("start:add-packages")
def test_pipx_injects_into_its_environment(prefix: Path) -> None:
    (prefix / "pipx_metadata.json").write_text("{}")
    assert add_packages_command(MCP) == "pipx inject carpool 'mcp>=2.3,<3'"


@behaviour("start:add-packages")
def test_a_tool_of_uv_is_installed_again_from_the_same_file_with_all_it_has(prefix: Path) -> None:
    wheel = prefix.parent / "carpool-1-py3-none-any.whl"
    wheel.touch()
    carpool = f'{{ name = "carpool", extras = ["http", "demo"], path = "{wheel}" }}'
    receipt(prefix, carpool + ', { name = "ruff", specifier = ">1" }', 'python = "3.12"')
    words = [
        "uv",
        "tool",
        "install",
        "--python",
        "3.12",
        f"{wheel}[http,demo]",
        "--with",
        "ruff>1",
        "--with",
        *MCP,
    ]
    assert shlex.split(add_packages_command(MCP)) == words


@behaviour("start:add-packages")
def test_an_editable_tool_of_uv_stays_editable(prefix: Path) -> None:
    receipt(prefix, f'{{ name = "carpool", editable = "{prefix}" }}')
    assert shlex.split(add_packages_command(MCP)) == [
        "uv", "tool", "install", "--editable", str(prefix), "--with", *MCP,
    ]  # fmt: skip


@behaviour("start:add-packages")
@pytest.mark.parametrize(
    "requirements",
    [
        '{ name = "carpool", path = "/no/such/carpool.whl" }',  # a name alone would be looked up on an index
        '{ name = "carpool" }',
        '{ name = "carpool", editable = "/" }, { name = "other", directory = "/" }',
        "",
        "1",
        "[",
    ],
)
def test_a_receipt_that_cannot_be_repeated_leads_to_the_environment(
    prefix: Path, requirements: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_method, "find_spec", lambda _: None)
    receipt(prefix, requirements)
    assert add_packages_command(MCP).startswith("uv pip install --python ")


def test_each_part_has_the_packages_that_pyproject_gives_it() -> None:
    import tomllib

    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    written = tomllib.loads(text)["project"]["optional-dependencies"]
    assert {name: [each.partition(";")[0] for each in packages] for name, packages in written.items()} == {
        name: list(packages) for name, packages in REQUIREMENTS.items()
    }
