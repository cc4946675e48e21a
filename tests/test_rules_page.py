"""docs/rules.md against all text that cites a rule: code, tests, documents and the list of promises.

Owns the form of a citation: `rule 4`, `rules 5 and 14`, `rules 3, 4, 10`, in any case and over the end of
a line. Numbers are given once and never again, so both directions are held: each citation has a heading,
and each heading is cited where it is kept.

Knows nothing of: what a rule says, or how it is kept.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "rules.md"
FOLDERS = ("broker", "supervisor", "protocol", "client", "bench", "tests", "docs")
SUFFIXES = frozenset({".py", ".md", ".toml"})

_CITATION = re.compile(
    r"\brules?\s+(\d+(?:(?:\s*,\s*and\s+|\s*,\s*|\s+and\s+|\s+or\s+)\d+)*)\b", re.IGNORECASE
)
_LINE_END = re.compile(r"\n[ \t]*(?:#+:?|//|>|\*)?[ \t]*")


def flat(text: str) -> str:
    """The text as one line, without the marks that begin a line of a comment or a quotation."""
    return _LINE_END.sub(" ", text)


def cited(text: str) -> list[int]:
    """The numbers of all rules that the text cites."""
    return [
        int(number) for found in _CITATION.finditer(flat(text)) for number in re.findall(r"\d+", found[1])
    ]


def sources() -> Iterator[Path]:
    """The README and all text of the folders, without this test: it has made-up citations."""
    yield ROOT / "README.md"
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path != Path(__file__) and path.is_file():
                yield path


@cache
def citations() -> dict[int, list[str]]:
    """By number of a rule: the files that cite it."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for path in sources():
        for number in cited(path.read_text(encoding="utf-8")):
            found[number].append(str(path.relative_to(ROOT)))
    return dict(found)


def headings(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"^## Rule (\d+): \S", text, re.MULTILINE)]


def test_rules_are_numbered_without_a_gap() -> None:
    found = headings(PAGE.read_text(encoding="utf-8"))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= 20


def test_every_rule_has_an_anchor_of_its_number() -> None:
    text = PAGE.read_text(encoding="utf-8")
    anchored = re.findall(r'^<a id="rule-(\d+)"></a>\n\n## Rule (\d+): ', text, re.MULTILINE)
    assert [int(number) for _, number in anchored] == headings(text)
    assert [anchor for anchor, number in anchored if anchor != number] == []


def test_every_citation_has_its_rule() -> None:
    known = headings(PAGE.read_text(encoding="utf-8"))
    assert {number: files for number, files in citations().items() if number not in known} == {}


def test_every_rule_is_cited_where_it_is_kept() -> None:
    kept = {
        number
        for number, files in citations().items()
        if any(name.endswith((".py", ".toml")) for name in files)
    }
    assert sorted(set(headings(PAGE.read_text(encoding="utf-8"))) - kept) == []


def test_every_link_to_a_rule_leads_there() -> None:
    known = {f"rule-{number}" for number in headings(PAGE.read_text(encoding="utf-8"))}
    linked = {
        (str(path.relative_to(ROOT)), anchor)
        for path in sources()
        for anchor in re.findall(r"rules\.md#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert sorted(each for each in linked if each[1] not in known) == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("(rule 4)", [4]),
        ("Rule 14's letter", [14]),
        ("rules 5 and 14", [5, 14]),
        ("rules 3, 4, 10; more", [3, 4, 10]),
        ("rules 1, 2, and 30", [1, 2, 30]),
        ("    # as rule\n    # 99 says", [99]),
        ("of the rule\n21", [21]),
        ("rule 2: 3 things", [2]),
        ("ruler 5, overrule 6, @rule(5), rule of 7, rule-8", []),
    ],
)
def test_a_citation_is_found_in_every_form(text: str, numbers: list[int]) -> None:
    assert cited(text) == numbers
