"""`carpool prompts`, `read` and `prompt`, with a broker that the test plays."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from carpool.cli import resources_prompts
from tests.behaviours import behaviour

CUT = b'"cut \\ud83d"'


class CutAnswers:
    """A session that gives one answer to everything."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def initialize(self) -> None:
        """Nothing."""

    def request(self, *_: object) -> msgspec.Raw:
        """The answer."""
        return msgspec.Raw(self._answer)


@behaviour("client:half-pairs")
@pytest.mark.parametrize(
    ("verb", "words", "answer"),
    [
        (resources_prompts.prompts, [], b'{"prompts":[{"name":"p","description":%b}]}' % CUT),
        (resources_prompts.read, ["a://b"], b'{"contents":[{"uri":"a://b","text":%b}]}' % CUT),
        (
            resources_prompts.prompt,
            ["p"],
            b'{"messages":[{"role":"user","content":{"type":"text","text":%b}}]}' % CUT,
        ),
    ],
)
def test_a_text_that_was_cut_within_an_emoji_is_shown_with_a_replacement_character(
    verb: click.Command, words: list[str], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Callable[..., Any] = lambda **_: nullcontext(CutAnswers(answer))  # noqa: E731
    monkeypatch.setattr(resources_prompts, "open_session", opened)
    done = CliRunner().invoke(verb, words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "cut \ufffd" in done.stdout
