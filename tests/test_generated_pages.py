"""Pages that are made from code, and examples in pages, say what the code says."""

import re
from pathlib import Path

import click

from carpool.cli.main import VERBS, verbs
from carpool.doctor import problems_page
from carpool_protocol.faults.errors_page import page
from carpool_protocol.ids import ServerName
from carpool_protocol.wire.tool_name_resolver import ResolvedName, Resolver, qualify, qualify_all

DOCS = Path(__file__).parent.parent / "docs"


def test_the_page_of_errors_is_the_generated_one() -> None:
    assert (DOCS / "errors.md").read_text(encoding="utf-8") == page(), (
        "write it again: python -m carpool_protocol.faults.errors_page > docs/errors.md"
    )


def test_the_page_of_problems_is_the_generated_one() -> None:
    assert (DOCS / "problems.md").read_text(encoding="utf-8") == problems_page.page(), (
        "write it again: python -m carpool.doctor.problems_page > docs/problems.md"
    )


def test_the_page_of_errors_names_only_commands_that_exist() -> None:
    named = set(re.findall(r"`carpool ([a-z]+)", page()))
    assert "logs" in named
    assert named <= set(VERBS)


def test_every_verb_with_json_is_on_the_page_of_json() -> None:
    text = (DOCS / "json.md").read_text(encoding="utf-8")
    said = {verb for found in re.findall(r"`carpool ([a-z|]+)[^`]*`", text) for verb in found.split("|")}
    assert isinstance(verbs, click.Group)
    context = click.Context(verbs)
    commands = {verb: verbs.get_command(context, verb) for verb in VERBS}
    reading = {
        verb
        for verb, command in commands.items()
        if command is not None and any("--json" in each.opts for each in command.params)
    }
    assert len(reading) > 20
    assert not reading - said


def test_every_spelling_that_the_page_of_names_promises_resolves() -> None:
    names = Resolver(qualify_all([(ServerName("github"), "search")], {}))
    text = (DOCS / "names.md").read_text(encoding="utf-8")
    promised = re.findall(
        r"^\| `([^`]*)` \|", text.partition("## Spellings")[2].partition("\n## ")[0], re.MULTILINE
    )
    assert len(promised) == 8
    for spelling in promised:
        assert isinstance(names.resolve(spelling), ResolvedName), spelling
    assert names.aliases(ServerName("github"), "search") == [
        way for way in promised if way != "github__search"
    ]


def test_every_shortened_name_that_the_page_of_names_shows_is_the_real_one() -> None:
    text = (DOCS / "names.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \|$", text, re.MULTILINE)
    assert len(shown) >= 4
    for server, tool, name in shown:
        assert qualify(server, tool) == name
