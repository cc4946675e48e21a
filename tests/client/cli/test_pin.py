"""How a change of a pinned server is shown, and that what is approved is what was shown."""

import json
import sys
from typing import Any

import click
import pytest

from carpool.cli.pin import _chosen, diffs
from tests.behaviours import behaviour
from tests.kit.hostile_catalogs import HOSTILE, HostileCatalog

HELD = [
    {
        "tool": "add",
        "why": "changed",
        "before": '{"name":"add"}',
        "now": '{"name":"add","x":1}',
        "digest": "a" * 64,
    },
    {"tool": "", "why": "new", "before": "", "now": '"# other\\nAlways push."', "digest": "b" * 64},
]
BOX = {"server": "box", "pin": "box:1", "held": HELD}


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, *, yes: bool) -> list[str]:
    """What is asked there."""
    asked: list[str] = []

    def confirm(text: str) -> bool:
        asked.append(text)
        return yes

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    return asked


def chosen(tools: tuple[str, ...] = (), digests: tuple[str, ...] = (), *, as_json: bool = False) -> list[Any]:
    every = _chosen([BOX], tools, digests, as_json=as_json)
    return [one["tool"] for _, held in every for one in held]


@behaviour("pins:seen")
def test_on_a_terminal_what_is_approved_is_shown_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = on_a_terminal(monkeypatch, yes=True)
    assert chosen() == ["add", ""]
    assert len(asked) == 1
    shown = capsys.readouterr().out
    assert "box: add has changed (digest aaaaaaaaaaaaaaaa)" in shown
    assert "box: the text of its instructions is new (digest bbbbbbbbbbbbbbbb)" in shown
    assert "+Always push." in shown


@behaviour("pins:seen")
def test_nothing_is_approved_that_nobody_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch, yes=False)
    with pytest.raises(click.exceptions.Exit) as refused:
        chosen()
    assert refused.value.exit_code == 1
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    for as_json in (True, False):
        with pytest.raises(click.exceptions.Exit) as refused:
            chosen(as_json=as_json)
        assert refused.value.exit_code == 2


@behaviour("pins:seen")
def test_a_program_says_the_digests_that_it_was_shown() -> None:
    assert chosen(digests=("a" * 16,)) == ["add"]
    assert chosen(digests=("a" * 64, "b" * 16), as_json=True) == ["add", ""]
    assert chosen(("add",), ("a" * 16,)) == ["add"]
    for tools, digest in (((), "c" * 64), (("add",), "b" * 64), (("gone",), "a" * 64)):
        with pytest.raises(click.exceptions.Exit) as refused:
            chosen(tools, (digest,))
        assert refused.value.exit_code == 1


@behaviour("catalogs:terminal")
@pytest.mark.parametrize("said", HOSTILE.values(), ids=list(HOSTILE))
def test_no_hostile_words_reach_a_terminal_in_a_diff(said: HostileCatalog) -> None:
    texts = [each.decode()[:5000] for each in said.tools[:3]] + [json.dumps(said.instructions[:5000])]
    held = [{"tool": text, "why": "new", "before": "", "now": text, "digest": "d" * 64} for text in texts]
    for page in diffs([{"server": "box", "held": held}]):
        assert all(line.isprintable() for line in page.split("\n")), page


def test_every_line_of_a_change_is_shown_whatever_it_begins_with() -> None:
    before = {"name": "add", "-- old": 1}
    now = {"name": "add", "++ new": "a\u200bb"}
    held = {
        "tool": "add",
        "why": "changed",
        "before": json.dumps(before),
        "now": json.dumps(now),
        "digest": "d" * 64,
    }
    (shown,) = diffs([{"server": "box", "held": [held]}])
    assert shown.splitlines()[2:] == [
        "   name:",
        "       add",
        "  --- old: 1",
        "  +++ new:",
        r"  +    a\u200bb",
    ]
