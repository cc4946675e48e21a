"""The verb `docs` prints the pages that are installed."""

from pathlib import Path

from click.testing import CliRunner

from carpool.cli.docs import docs
from tests.behaviours import behaviour

PAGES = Path(__file__).parents[3] / "docs"


def said(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(docs, arguments)
    return done.exit_code, done.output


@behaviour("start:messages")
def test_a_page_is_printed_as_it_is() -> None:
    page = (PAGES / "settings.md").read_text()
    assert said("settings") == (0, page)
    assert said("docs/settings.md") == (0, page)


def test_pages_are_listed_with_their_titles() -> None:
    code, text = said()
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (code, rows["settings"], rows["errors"]) == (0, "Settings", "Errors")


def test_the_place_of_pages_is_printed() -> None:
    assert said("--path") == (0, f"{PAGES}\n")
    assert said("names", "--path") == (0, f"{PAGES / 'names.md'}\n")


def test_a_page_that_is_not_there_is_said_with_one_that_is_meant() -> None:
    assert said("setings") == (
        2,
        "carpool: there is no page 'setings'; did you mean `carpool docs settings`?\n",
    )
    assert said("../README")[0] == 2
    assert said("zzzzzz") == (2, "carpool: there is no page 'zzzzzz'; `carpool docs` lists the pages\n")
