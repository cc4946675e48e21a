"""READMEs of folders: each source root and each island of the client has one, and what it names exists.

Knows nothing of: the README of the repository, the pages in docs/ (`test_references`).
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = [
    *("broker", "supervisor", "protocol", "client", "bench", "tests"),
    *(
        f"client/carpool/{name}"
        for name in ("adapters", "bench", "bridge", "demo", "http", "pymodule", "setup")
    ),
]
MOST_LINES = 25
_NAMED = re.compile(r"`([\w./-]+(?:\.py|/))`|\]\(([^)#:]+)\)")


def missing(folder: Path, text: str) -> list[str]:
    """Files and folders that a README names and that are neither below its folder nor beside it."""
    named = [code or link for code, link in _NAMED.findall(text)]
    return [each for each in named if not (folder / each).exists() and not (folder.parent / each).exists()]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_readme_says_where_to_start_what_must_not_be_known_and_names_files_that_exist(name: str) -> None:
    text = (ROOT / name / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert len(text.splitlines()) <= MOST_LINES
    assert "Start with" in text
    assert "must not know" in text
    assert _NAMED.search(text)
    assert missing(ROOT / name, text) == []


def test_a_file_that_is_not_there_is_found() -> None:
    made_up = "core/" + "no_such.py"
    text = f"`core/core.py`, `{made_up}`, [x](../../none.md)"
    assert missing(ROOT / "client/carpool/http", text) == [made_up, "../../none.md"]
