"""The typed arguments of a tool or a prompt: `--args JSON`, and `KEY=VALUE` with `--arg` or without.

Owns how they are read and merged. A value is never repeated in an error: it may be a secret. Refuses to
know what a tool or a prompt accepts.
"""

import sys
from typing import Final, TypeVar

import click
import msgspec

from carpool.terminal.verb_output import EXIT_USAGE, fail

T = TypeVar("T")

words_argument: Final = click.argument("words", nargs=-1, metavar="[KEY=TEXT|KEY:=JSON]...")
arg_option: Final = click.option(
    "--arg",
    "pairs",
    multiple=True,
    metavar="KEY=TEXT|KEY:=JSON",
    help="One argument, as without --arg; for a KEY that begins with `-`.",
)


def read_arguments(whole: str, pairs: tuple[str, ...] = ()) -> msgspec.Raw:
    """Return the arguments as one line of JSON: the object `whole` (`-`: stdin, empty: none), with `pairs`
    over it.

    `a=1` is the text "1", `a:=1` the number 1. Values keep their bytes. Ends the verb with exit code 2 if
    one cannot be read.
    """
    if whole == "-":
        whole = sys.stdin.read()
    found = _read(whole or "{}", dict[str, msgspec.Raw])
    if found is None:
        fail('--args must be a JSON object, like \'{"path": "/tmp"}\'', EXIT_USAGE)
    for pair in pairs:
        key, mark, text = pair.partition("=")
        if not mark or not key.removesuffix(":"):
            fail("an argument is KEY=TEXT or KEY:=JSON, like path=/tmp or count:=3", EXIT_USAGE)
        if not key.endswith(":"):
            found[key] = msgspec.Raw(msgspec.json.encode(text))
        elif _read(text, object) is None and text.strip() != "null":
            fail(f"{key}= must be followed by JSON, like 1, true or [1, 2]", EXIT_USAGE)
        else:
            found[key[:-1]] = msgspec.Raw(text.encode())
    # White space between values may hold line ends, and one line is one message.
    return msgspec.Raw(msgspec.json.format(msgspec.json.encode(found), indent=-1))


def _read(text: str, kind: type[T]) -> T | None:
    """Decode a text as `kind`; None if it cannot be read as one."""
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return None
