"""The wheel holds all of carpool, and runs from an environment in which nothing else of it is.

`make dist` tries it with the packages of an index; here the packages of this environment serve.
"""

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.behaviours import behaviour

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = (
    "broker/carpool_broker", "supervisor/carpool_supervisor", "protocol/carpool_protocol", "client/carpool",
)  # fmt: skip


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command without the variables of this test run; it has to succeed. Returns its stdout."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PIP_CONFIG_FILE") if name in os.environ
    }
    kept |= {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
    done = subprocess.run(
        command, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout. The backend comes from the package index."""
    directory = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps",
        "--wheel-dir", directory, ROOT,
        cwd=directory,
    )  # fmt: skip
    return next(directory.glob("carpool-*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone. It sees the other packages of this one, but no `.pth` of it."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", wheel, cwd=directory)
    found = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory)
    (Path(found.strip()) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return directory


def carpool(environment: Path, *arguments: str, **variables: str) -> str:
    """Run the installed carpool in a home of its own. Returns its stdout."""
    home = environment / "home"
    home.mkdir(exist_ok=True)
    return run(environment / "bin" / "carpool", *arguments, cwd=home, HOME=str(home), **variables)


@behaviour("start:wheel")
def test_the_wheel_holds_every_module_and_data_file_of_the_four_packages(names: set[str]) -> None:
    files = {
        str(file.relative_to(ROOT / package.partition("/")[0]))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.name != "README.md"
    }
    held = {name for name in names if not re.match(r"carpool-[^/]*/|carpool/docs/", name)}
    scripts = {name for name in names if ".data/" in name}
    assert held - scripts == files
    assert [name.partition(".data/")[2] for name in scripts] == ["scripts/carpool"]


@behaviour("start:wheel")
def test_the_wheel_holds_the_pages_that_the_readme_lists_for_users(names: set[str]) -> None:
    readme = (ROOT / "README.md").read_text()
    listed = readme.partition("## Documentation")[2].partition("Work on carpool:")[0]
    pages = {f"carpool/docs/{name}" for name in re.findall(r"\(docs/([a-z-]+\.md)\)", listed)}
    assert {name for name in names if name.startswith("carpool/docs/")} == {
        *pages,
        "carpool/docs/carpool-alerts.yml",
        "carpool/docs/vocabulary.md",
    }


@behaviour("start:wheel")
def test_each_link_of_an_installed_page_leads_to_an_installed_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name.removeprefix("carpool/docs/"): name for name in archive.namelist() if "/docs/" in name}
        pages = {name: archive.read(path).decode() for name, path in held.items() if name.endswith(".md")}
    links = {
        (page, link)
        for page, text in pages.items()
        for link in re.findall(r"\]\(([^)#\s]+)", text)
        if not link.startswith("http")
    }
    assert len(links) > 50
    assert sorted(link for link in links if link[1] not in held) == []


@behaviour("start:wheel")
def test_the_wheel_names_the_parts_that_can_be_installed_with_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert metadata.get_all("Provides-Extra") == [
        "cluster",
        "demo",
        "http",
        "otel",
        "python",
        "remote",
        "top",
    ]
    assert metadata["Requires-Python"] == ">=3.11"


@behaviour("start:wheel")
def test_an_installed_carpool_runs_from_its_own_files(environment: Path) -> None:
    python = environment / "bin" / "python"
    where = run(
        python,
        "-c",
        "import carpool, carpool_broker as b; print(carpool.__file__, b.__file__)",
        cwd=ROOT.parent,
    )
    assert [each.startswith(str(environment)) for each in where.split()] == [True, True]
    assert carpool(environment, "--version").startswith("carpool, version ")
    assert carpool(environment, "docs", "settings") == (ROOT / "docs" / "settings.md").read_text()
    assert carpool(environment, "docs", "--path").strip().startswith(str(environment))


@behaviour("start:wheel")
def test_an_installed_carpool_calls_a_tool(environment: Path) -> None:
    """Launcher, broker, supervisor and the list of well-known servers are all there."""
    with tempfile.TemporaryDirectory() as short:
        config = Path(short, "carpool.json")
        server = {"command": str(environment / "bin" / "python"), "args": ["-m", "carpool.demo.echo_server"]}
        config.write_text(json.dumps({"mcpServers": {"echo": server}}))
        places = {"CARPOOL_RUNTIME_DIR": short, "CARPOOL_CONFIG": str(config)}
        try:
            said = carpool(environment, "call", "echo__echo", "--arg", "text=well", **places)
        finally:
            carpool(environment, "down", **places)
    assert said.strip() == "well"
