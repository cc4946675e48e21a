"""Tables that fit the terminal: which parts give way, and that no text makes a line wider than it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carpool.terminal import display, screen, table
from carpool.terminal.table import Cell


def _table(
    heads: list[str], rows: list[list[str]], right: set[str], width: int | None, *, colours: bool = False
) -> list[str]:
    cells = [[Cell(text) for text in row] for row in rows]
    text = table.lay_out(heads, cells, [head in right for head in heads], width=width, colours=colours)
    return text.splitlines()


HEADS = ["NAME", "DESCRIPTION", "IN FLIGHT"]
ROWS = [["git__status", "Shows the state of the working tree and the index", "12"], ["time", "Tells it", "3"]]


def test_a_table_without_a_terminal_is_as_wide_as_its_content() -> None:
    lines = _table(HEADS, ROWS, {"IN FLIGHT"}, None)
    assert lines[1] == "git__status  Shows the state of the working tree and the index         12"


def test_the_longest_text_gives_way_first_and_ends_in_an_ellipsis() -> None:
    assert _table(HEADS, ROWS, {"IN FLIGHT"}, 60) == [
        "NAME         DESCRIPTION                           IN FLIGHT",
        "git__status  Shows the state of the working tree…         12",
        "time         Tells it                                      3",
    ]


def test_heads_of_numbers_give_way_before_text_becomes_unreadable() -> None:
    assert _table(HEADS, ROWS, {"IN FLIGHT"}, 35) == [
        "NAME         DESCRIPTION        IN…",
        "git__status  Shows the state…    12",
        "time         Tells it             3",
    ]


def test_a_number_is_never_shortened_without_a_mark() -> None:
    heads, rows = ["A", "B"], [["123456789", "987654321"]]
    assert _table(heads, rows, {"A", "B"}, 15)[1] == "123456789  987…"


def test_columns_are_left_out_before_heads_look_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = ["SERVER", *(f"{name} {at}" for name in ("WAITING", "TOTAL") for at in ("p50", "p99"))]
    row = ["git", "1 ms", "2 ms", "3 ms", "4 ms"]
    monkeypatch.setattr(screen, "width", lambda: 41)
    text = display.columns(heads, [row], right=set(heads[1:]), spare=["WAITING p99", "WAITING p50"])
    assert text.splitlines()[0].split("  ") == ["SERVER", "WAITING p50", "TOTAL p50", "TOTAL p99"]


def test_what_can_be_spared_is_left_out_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    heads, row = ["NAME", "ERA", "RSS", "CALLS"], ["git", "handshake", "31.5 MB", 12]

    def shown(width: int | None) -> list[str]:
        monkeypatch.setattr(screen, "width", lambda: width)
        text = display.columns(heads, [row], right={"RSS", "CALLS"}, spare=["ERA", "RSS"])
        return text.splitlines()[0].split()

    assert shown(None) == shown(31) == heads
    assert shown(24) == ["NAME", "RSS", "CALLS"]
    assert shown(12) == ["NAME", "CALLS"]


def test_wide_characters_count_twice_and_marks_not_at_all() -> None:
    assert table.text_width("日本") == 4
    assert table.text_width("e\u0301") == 1
    assert table.cut("日本語", 5) == "日本…"
    assert table.cut("日本語", 4) == "日…"
    lines = _table(["NAME", "N"], [["日本", "1"], ["abcd", "2"]], {"N"}, None)
    assert lines[1:] == ["日本  1", "abcd  2"]


def test_colours_do_not_move_columns() -> None:
    text = table.lay_out(
        ["STATE", "N"],
        [[Cell("serving", "green"), Cell("1")], [Cell("cold"), Cell("2")]],
        [False, True],
        width=None,
        colours=True,
    )
    assert text.splitlines()[1:] == ["\x1b[32mserving\x1b[0m  1", "cold     2"]


cells = st.text(st.characters(codec=None), max_size=40)


@given(st.lists(st.tuples(cells, cells, st.integers(0, 10**12)), min_size=1, max_size=5), st.integers(1, 120))
@settings(deadline=None)
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, str, int]], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen, "width", lambda: width)
        shown = display.columns(["SERVER", "TEXT", "CALLS"], rows, right={"CALLS"})
    assert len(shown.split("\n")) == len(rows) + 1
    assert all(table.text_width(line) <= width for line in shown.split("\n"))
    assert not any(char < " " or "\x7f" <= char <= "\x9f" for char in shown.replace("\n", ""))


def test_a_path_keeps_its_end_where_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "width", lambda: 30)
    rows = [["a.b", "/home/ann/.config/carpool/carpool.json:6"]]
    assert display.columns(["SETTING", "FROM"], rows, ends={"FROM"}).splitlines() == [
        "SETTING  FROM",
        "a.b      …rpool/carpool.json:6",
    ]
    assert table.cut_start("日本語", 5) == "…本語"


def test_each_sentence_begins_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "width", lambda: 12)
    assert display.wrapped_lines(["one two three", "four\n"]) == "one two\n  three\nfour\\n"


def test_what_must_be_whole_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "width", lambda: 20)
    row = ["git", "uvx mcp-server-git --repository /home/me/project"]
    assert row[1] in display.columns(["SERVER", "COMMAND"], [row], whole=True)
    assert row[1] not in display.columns(["SERVER", "COMMAND"], [row])


def test_a_state_has_its_colour_on_a_terminal_and_none_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "has_colours", lambda: True)
    assert "\x1b[31mgiven_up\x1b[0m" in display.columns(["STATE"], [[display.state("given_up")]])
    assert display.coloured("bad\x1b[2J", "red") == "\x1b[31mbad\\x1b[2J\x1b[0m"
    monkeypatch.setattr(screen, "has_colours", lambda: False)
    assert "\x1b" not in display.columns(["STATE"], [[display.state("given_up")]])
    assert display.coloured("bad", "red") == "bad"


@pytest.mark.parametrize(
    ("environ", "forced"),
    [
        ({}, None),
        ({"NO_COLOR": "1"}, False),
        ({"NO_COLOR": ""}, None),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm"}, None),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_the_environment_decides_on_colours_before_the_stream(
    environ: dict[str, str], forced: bool | None
) -> None:
    assert screen.colour_forced(environ) is forced


def test_text_is_wrapped_at_spaces_with_its_indents_and_no_word_is_broken() -> None:
    text = "run `carpool status` now\nand /a/very/long/path"
    assert table.wrapped(text, 14, "-> ", "   ").splitlines() == [
        "-> run",
        "   `carpool",
        "   status` now",
        "   and",
        "   /a/very/long/path",
    ]
    assert table.wrapped(text, None, "  ", "  ").splitlines() == [f"  {each}" for each in text.splitlines()]
    assert table.wrapped("\u65e5\u672c \u65e5", 6) == "\u65e5\u672c\n\u65e5", (
        "wide characters take two columns"
    )
