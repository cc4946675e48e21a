"""Arguments as they are typed: `--args JSON` and `KEY=VALUE`, merged byte for byte."""

import click
import msgspec
import pytest

from carpool.cli.arguments import read_arguments


@pytest.mark.parametrize(
    ("whole", "pairs", "read"),
    [
        ("", (), "{}"),
        ('{"a": 1.0,\n "b": 1e2}', (), '{"a":1.0,"b":1e2}'),
        ("", ("a=1",), '{"a":"1"}'),
        ("", ("a:=1",), '{"a":1}'),
        ("", ("a:=null", "b:=[1,\n2]"), '{"a":null,"b":[1,2]}'),
        ('{"a": 1, "b": 2}', ("b=x=y",), '{"a":1,"b":"x=y"}'),
    ],
)
def test_arguments_are_merged_and_keep_their_bytes(whole: str, pairs: tuple[str, ...], read: str) -> None:
    assert bytes(read_arguments(whole, pairs)).decode() == read
    assert isinstance(msgspec.json.decode(read_arguments(whole, pairs)), dict)


@pytest.mark.parametrize(
    ("whole", "pairs"),
    [
        ("[1]", ()),
        ("{", ()),
        ("\ud800", ()),
        ("", ("secret",)),
        ("", ("=secret",)),
        ("", (":=1",)),
        ("", ("a:=secret",)),
    ],
)
def test_what_cannot_be_read_ends_with_a_sentence_that_repeats_no_value(
    capsys: pytest.CaptureFixture[str], whole: str, pairs: tuple[str, ...]
) -> None:
    with pytest.raises(click.exceptions.Exit) as stopped:
        read_arguments(whole, pairs)
    assert stopped.value.exit_code == 2
    assert "secret" not in capsys.readouterr().err
