"""The verb `docs`: the pages of the documentation that are installed with carpool.

Owns where the pages are: in the package that a wheel installs, or in `docs` of a checkout. Refuses to know
what a page says.
"""

from pathlib import Path
from typing import Final

import click

from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_USAGE, fail
from carpool_protocol.config.text.problems import did_you_mean

_PACKAGE: Final = Path(__file__).parents[1]


def pages() -> dict[str, Path]:
    """Return the file of each page by its name: `settings`."""
    installed, checkout = _PACKAGE / "docs", _PACKAGE.parents[1] / "docs"
    directory = installed if installed.is_dir() else checkout
    return {each.stem: each for each in sorted(directory.glob("*.md"))}


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as lines:
        return next((each.lstrip("# ").strip() for each in lines if each.startswith("# ")), "")


@click.command()
@click.argument("name", required=False, metavar="[PAGE]")
@click.option("--path", "shows_path", is_flag=True, help="Print where the page is, or all of them.")
def docs(name: str | None, *, shows_path: bool) -> None:
    """Print PAGE of the documentation, or list the pages."""
    found = pages()
    if not found:
        fail("no page of the documentation is part of this installation; install carpool again")
    if name is None and not shows_path:
        width = max(map(len, found)) + 2
        for each, page in found.items():
            click.echo(f"{each:{width}}{_title(page)}")
        return
    if name is None:
        click.echo(str(next(iter(found.values())).parent))
        return
    page_name = name.removeprefix("docs/").removesuffix(".md")
    if page_name not in found:
        meant = did_you_mean(page_name, found)
        hint = f"did you mean `carpool docs {meant}`?" if meant else "`carpool docs` lists the pages"
        fail(f"there is no page {display.printable(name)!r}; {hint}", EXIT_USAGE)
    page = found[page_name]
    click.echo(str(page) if shows_path else page.read_text(encoding="utf-8"), nl=shows_path)
