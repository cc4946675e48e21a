"""Sentences about names that a configuration does not know."""

import pytest

from carpool_protocol.config.text.problems import no_such_server


@pytest.mark.parametrize(
    ("name", "known", "sentence"),
    [
        ("gti", ["time", "git"], "there is no server 'gti' in the configuration; did you mean 'git'?"),
        ("nope", ["time", "git"], "there is no server 'nope' in the configuration; there are: git, time"),
        ("nope", [], "there is no server 'nope' in the configuration; there are: none"),
    ],
)
def test_a_name_of_no_server_is_answered_with_the_names_that_exist(
    name: str, known: list[str], sentence: str
) -> None:
    assert no_such_server(name, known) == sentence


def test_a_name_of_any_length_is_cut() -> None:
    assert len(no_such_server("x" * 100_000, ["git"])) < 300


def test_of_many_known_names_only_some_are_listed() -> None:
    said = no_such_server("nope", [f"server-{number:03}" for number in range(200)])
    assert said.endswith("server-018, server-019 and 180 more")
