"""References from text to text: pages, decisions, links, modules. (Citations of rules: `test_rules_page`.)

Owns the forms of a reference and both directions: each reference leads to something that exists, and each
page and each decision is referred to from somewhere else.

Knows nothing of: what the pages say.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CODE = ("broker", "supervisor", "protocol", "client")
FOLDERS = (*CODE, "bench", "tests", "docs")
SUFFIXES = frozenset({".py", ".md", ".toml"})
EARLIER = ("docs/renames.md", "CHANGELOG.md")
"""Pages that speak of the repository as it was: modules that they name need not exist."""

_PAGE = re.compile(r"\bdocs/(?!decisions)[\w./-]+\.(?:md|json|svg)\b")
_LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)(?:#([\w-]+))?\)")
_LINE_END = re.compile(r"\n[ \t]*(?:#+:?|//|>|\*)?[ \t]*")
_OUTSIDE = re.compile(
    r"\b(?:(?:design|style|spec digest|digest)(?:\.md)?,? (?:section )?\d|issue \d+\b|structure\.md)",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\bcarpool(?:_broker|_supervisor|_protocol)?(?:\.[A-Za-z_]\w*)+")
_CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z0-9]*)+)(?:\.\w+)?`")
_FILE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)(?:::(\w+))?`")


@cache
def texts() -> dict[str, str]:
    """All text of the repository by path, without this test: its examples are made up."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    paths += [*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"]
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path.is_file()
        and (path.suffix in SUFFIXES or path.name == "Makefile")
        and path != Path(__file__)
        and "node_modules" not in path.parts
    }


def flat(text: str) -> str:
    """Join the lines of a text, without the marks that begin a line of a comment or a quotation."""
    return _LINE_END.sub(" ", text)


def decisions(text: str) -> list[str]:
    """The numbers of all decisions that a text cites: `decision 0008`, `docs/decisions/0019, 0030`."""
    cited = re.findall(r"\bdecisions?[ /](0\d{3}(?:(?:,| and|, and) 0\d{3})*)", flat(text))
    return [number for each in cited for number in re.findall(r"\d{4}", each)]


def anchors(text: str) -> set[str]:
    """The anchors of a page: of its headings, and those written out."""
    written = set(re.findall(r'<a id="([\w-]+)">', text))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return written | {
        re.sub(r"[^\w\- ]", "", each.replace("`", "")).strip().lower().replace(" ", "-") for each in headings
    }


def found(path: str, text: str, wrong: Callable[[str, str], Iterator[str]]) -> list[str]:
    return [f"{path}: {each}" for each in wrong(path, text)]


def everywhere(wrong: Callable[[str, str], Iterator[str]]) -> list[str]:
    return [each for path, text in texts().items() for each in found(path, text, wrong)]


def missing_pages(_path: str, text: str) -> Iterator[str]:
    yield from (page for page in _PAGE.findall(text) if not (ROOT / page).is_file())


def missing_decisions(_path: str, text: str) -> Iterator[str]:
    yield from (number for number in decisions(text) if not [*DOCS.glob(f"decisions/{number}-*.md")])


def broken_links(path: str, text: str) -> Iterator[str]:
    if path.endswith(".md"):
        for target, anchor in _LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            page = (ROOT / path).parent / target if target else ROOT / path
            if not page.exists():
                yield target
            elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text(encoding="utf-8")):
                yield f"{target}#{anchor}"


def outside_pages(_path: str, text: str) -> Iterator[str]:
    yield from _OUTSIDE.findall(flat(text))


@cache
def modules() -> frozenset[str]:
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    dotted = {".".join(path.relative_to(ROOT).with_suffix("").parts[1:]) for path in paths}
    return frozenset({name.removesuffix(".__init__") for name in dotted})


def is_known(dotted: str) -> bool:
    """Whether a dotted name begins with a module that exists, and goes on with a name that is in its text."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in modules():
            rest = parts[length:]
            return not rest or rest[0] in _names(name)
    return False


@cache
def _names(module: str) -> frozenset[str]:
    for folder in CODE:
        path = ROOT / folder / Path(*module.split("."))
        for each in (path.with_suffix(".py"), path / "__init__.py"):
            if each.is_file():
                children = {child.stem for child in path.iterdir()} if path.is_dir() else set()
                return frozenset({*re.findall(r"\w+", each.read_text(encoding="utf-8")), *children})
    return frozenset()


def missing_modules(path: str, text: str) -> Iterator[str]:
    """Dotted names in documents, docstrings and comments, where a type checker does not look."""
    if path.startswith((*EARLIER, "tests/")):
        return
    yield from (name for name in _DOTTED.findall(text) if not is_known(name) and name not in NO_MODULES)


def missing_files(path: str, text: str) -> Iterator[str]:
    """Files in backticks: `core/calls/placement.py`, from any folder above them on."""
    if path.startswith(EARLIER):
        return
    for name, test in _FILE.findall(text):
        at = [each for each in python_files() if f"/{each}".endswith(f"/{name}")]
        if not at and name not in NO_FILES:
            yield name
        elif test and not any(re.search(rf"\b{test}\b", texts()[each]) for each in at if each in texts()):
            yield f"{name}::{test}"


def missing_classes(path: str, text: str) -> Iterator[str]:
    """Names of classes in backticks on pages: `InstanceExited`, `SetPools.complete`."""
    if path.startswith("docs/") and not path.startswith(EARLIER):
        yield from (name for name in _CLASS.findall(text) if name not in _words())


@cache
def _words() -> frozenset[str]:
    return frozenset(
        word
        for path, text in texts().items()
        if path.endswith(".py")
        for word in re.findall(r"\b[A-Z]\w+", text)
    )


@cache
def python_files() -> tuple[str, ...]:
    return tuple(each for each in [*texts(), str(Path(__file__).relative_to(ROOT))] if each.endswith(".py"))


NO_MODULES = frozenset({
    "carpool.json", "carpool.schema.json", "carpool.check.order",
    "carpool.broker", "carpool.supervisor", "carpool.pump",
    "carpool.call", "carpool.tools", "carpool.alpha", "carpool.beta",
    *(f"carpool.{each}" for each in ("agent", "door", "instance", "outcome", "profile", "server", "token")),
})  # fmt: skip
"""Names that look like modules: files of users, loggers, subjects of NATS, methods in examples of the client,
attributes of spans.
"""

NO_FILES: frozenset[str] = frozenset()
"""Files of users in examples."""


@pytest.mark.parametrize(
    "wrong",
    [
        missing_pages,
        missing_decisions,
        broken_links,
        outside_pages,
        missing_modules,
        missing_files,
        missing_classes,
    ],
    ids=lambda each: each.__name__,
)
def test_every_reference_resolves(wrong: Callable[[str, str], Iterator[str]]) -> None:
    assert everywhere(wrong) == []


def test_every_page_is_referred_to_from_another() -> None:
    cited: defaultdict[str, set[str]] = defaultdict(set)
    for path, text in texts().items():
        for page in _PAGE.findall(text):
            cited[page].add(path)
        for target, _ in _LINK.findall(text):
            if target and (resolved := ((ROOT / path).parent / target).resolve()).is_relative_to(ROOT):
                cited[str(resolved.relative_to(ROOT))].add(path)
    pages = [str(path.relative_to(ROOT)) for path in sorted(DOCS.glob("*")) if path.is_file()]
    assert [page for page in pages if not cited[page] - {page}] == []


def test_the_readme_lists_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = {target for target, _ in _LINK.findall(readme[readme.index("## Documentation") :])}
    pages = {f"docs/{path.name}" for path in DOCS.glob("*.md")}
    assert pages - listed == set()


def test_every_decision_is_cited_where_it_is_kept() -> None:
    code = (*CODE, "bench", "docs/architecture.md")
    cited = {number for path, text in texts().items() if path.startswith(code) for number in decisions(text)}
    pages = [path.name[:4] for path in sorted(DOCS.glob("decisions/[0-9]*.md"))]
    assert [number for number in pages if number not in cited] == []
    assert len(pages) > 30


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (missing_pages, "as docs/nowhere.md says"),
        (missing_decisions, "(docs/decisions/0999)"),
        (missing_decisions, "decision 0001 and 0998"),
        (broken_links, "[here](nowhere.md)"),
        (broken_links, "[here](#nowhere)"),
        (outside_pages, "see design section 4"),
        (outside_pages, "as issue 7\n    # asks"),
        (missing_modules, "`carpool_broker.core.nowhere`"),
        (missing_modules, "`carpool_broker.core.broker.NoClassHere`"),
        (missing_classes, "by `NoClassHere.field`"),
        (missing_files, "in `core/calls/nowhere.py`"),
        (missing_files, "in `tests/test_references.py::test_nothing`"),
    ],
)
def test_a_reference_that_leads_nowhere_is_found(
    wrong: Callable[[str, str], Iterator[str]], text: str
) -> None:
    assert [*wrong("docs/page.md", text)]


def test_a_reference_that_resolves_is_not_reported() -> None:
    text = (
        "docs/rules.md, docs/decisions/0001, [here](rules.md#rule-1), `carpool_broker.core.broker.BrokerCore`"
    )
    checks = (missing_pages, missing_decisions, broken_links, outside_pages, missing_modules, missing_files)
    assert [each for wrong in checks for each in wrong("docs/page.md", text)] == []
