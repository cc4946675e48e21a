"""docs/json.md: each verb with `--json` prints what its example on the page has."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from carpool.cli.main import VERBS as ALL_VERBS
from carpool.cli.main import verbs
from tests.behaviours import behaviour
from tests.kit import json_examples
from tests.kit.json_examples import ELSEWHERE, VERBS, examples, keys, outputs
from tests.kit.live import Daemon

PAGE = Path(__file__).parents[2] / "docs" / "json.md"
OPEN = frozenset({'call git__echo --args {"text":"hi"} --json', "read docs://own --json"})
"""Results of servers, whose keys are theirs."""


@pytest.fixture
def one() -> Iterator[Daemon]:
    made = json_examples.daemon()
    try:
        made.up()
        yield made
    finally:
        made.close()


def verbs_with_json() -> set[str]:
    """The verbs that have `--json`, or a subcommand of which has."""
    found = set()
    for name in ALL_VERBS:
        command = verbs.get_command(click.Context(verbs), name)
        assert command is not None
        commands = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
        if any("--json" in each.opts for it in commands for each in it.params):
            found.add(name)
    return found


def test_each_verb_with_json_has_an_example_or_a_reason() -> None:
    shown = {verb.words.split(" ")[0] for verb in VERBS}
    assert shown | ELSEWHERE.keys() == verbs_with_json()
    assert not shown & ELSEWHERE.keys()
    assert list(examples(PAGE.read_text(encoding="utf-8"))) == [verb.words for verb in VERBS]
    assert all(f"- `{verb}`: " in PAGE.read_text(encoding="utf-8") for verb in ELSEWHERE)


@behaviour("cli:output")
def test_each_verb_prints_the_keys_of_its_example(one: Daemon) -> None:
    shown = examples(PAGE.read_text(encoding="utf-8"))
    differing = [
        (verb.words, keys(output), keys(shown[verb.words]))
        for verb, output in outputs(one)
        if keys(output) != keys(shown[verb.words]) and verb.words not in OPEN
    ]
    assert differing == []


def test_the_page_names_the_verbs_that_print_a_bare_list() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`([a-z -]+)`", page.partition("stay bare lists:")[2].partition(". ")[0])
    bare = {words: any(f"{words} ".startswith(f"{name} ") for name in named) for words in examples(page)}
    assert {words: isinstance(output, list) for words, output in examples(page).items()} == bare


def test_keys_are_compared_at_any_depth() -> None:
    assert keys({"a": [{"b": 1}, {"c": [{"d": ""}]}]}) == {"a": [{"b": None, "c": [{"d": None}]}]}
    assert keys({"servers": {"git": {"x": 1}, "web": {"y": 2}}}) == {"servers": [{"x": None, "y": None}]}
    assert keys([]) == []
    assert keys({"a": 1}) != keys({"a": 1, "b": 1})


def test_the_page_has_nothing_of_the_machine_that_made_it() -> None:
    assert re.search(r"/tmp/|cpl-|/root/|/work/|site-packages", PAGE.read_text(encoding="utf-8")) is None
