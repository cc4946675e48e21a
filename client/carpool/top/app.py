"""The screen of `carpool top`: tables, keys and the line at the bottom.

Owns the layout, the keys, and the question before an act. It asks the broker in a thread, so a broker that is
slow leaves the keys alive. What servers and agents say is shown as text only, without markup and control
characters. Textual draws it (docs/decisions/0046).

Refuses to know: how rows are made (`live_view`), how the broker is asked (`feed`).
"""

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from carpool.readings.live_view import COLUMNS, STATE, Column, LiveView, Reading, TableName
from carpool.terminal import display
from carpool.top.feed import BrokerFeed, FeedError

_TABLE_KEYS: Final = "s servers  a agents  c calls  t tools  n nodes"
"""Above the other keys: 80 columns do not hold all in one line."""


class ConfirmScreen(ModalScreen[bool]):
    """Asks before an act."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]
    DEFAULT_CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen Static { width: auto; border: round; padding: 1 2; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(f"{self._text} (y, n)", markup=False)


class LogScreen(ModalScreen[None]):
    """The last lines of a server's log, read again every second."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,l", "dismiss(None)", "back")]

    def __init__(self, server: str, read: Callable[[str, int], list[str]]) -> None:
        super().__init__()
        self._server = server
        self._read = read
        self._log_lines = Static("", id="log", markup=False)

    def compose(self) -> ComposeResult:
        """Show an empty log."""
        yield Vertical(self._log_lines)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.set_interval(1.0, self._show)
        self._show()

    def _show(self) -> None:
        lines = self._read(self._server, max(1, self.size.height - 2))
        shown = "\n".join(map(display.printable, lines)) or "nothing is logged"
        self._log_lines.update(Text(shown, no_wrap=True, overflow="ellipsis"))


class TopApp(App[None]):
    """The live view of one carpool."""

    CSS = """
    #head, #totals, #bottom { height: 1; }
    #details { height: auto; max-height: 8; border-top: solid $primary; }
    DataTable { height: 1fr; }
    #filter { display: none; height: 3; }
    """
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "table('servers')", "servers", show=False),
        Binding("a", "table('agents')", "agents", show=False),
        Binding("c", "table('calls')", "calls", show=False),
        Binding("t", "table('tools')", "tools", show=False),
        Binding("n", "table('nodes')", "nodes", show=False),
        Binding("o", "sort", "order"),
        Binding("O", "reverse", "reverse", show=False),
        Binding("slash", "filter", "filter"),
        Binding("l", "log", "log"),
        Binding("r", "operate('restart')", "restart"),
        Binding("x", "operate('stop')", "stop"),
        Binding("p", "pause", "pause"),
        Binding("k", "end", "cancel"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(
        self, feed: BrokerFeed, sentence: Callable[[dict[str, Any]], str], interval_s: float = 1.0
    ) -> None:
        """`sentence`: says of a status whether all is well."""
        super().__init__()
        self._feed = feed
        self._sentence = sentence
        self._interval_s = interval_s
        self.view = LiveView()
        self.table: TableName = "servers"
        self.sorted_by = 0
        self.descending = False
        self._containing = ""
        self._is_reading = False
        # Kept, not looked up: an event may come while the screen is taken down.
        self._head = Static("asking the broker …", id="head", markup=False)
        self._totals = Static("", id="totals", markup=False)
        self._filter = Input(placeholder="only rows with this text", id="filter")
        self._rows: DataTable[Text] = DataTable(cursor_type="row", cell_padding=0, id="rows")
        self._details = Static("", id="details", markup=False)
        self._bottom = Static("", id="bottom", markup=False)
        self._cpu_s = time.process_time()
        self._looked_at = time.monotonic()

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield from (self._head, self._totals, self._filter, self._rows, self._details, self._bottom)
        yield Footer(compact=True)

    def on_ready(self) -> None:
        """Begin to ask the broker: the parts of the screen are there."""
        self._head_columns()
        self.set_interval(self._interval_s, self._begin_reading)
        self._begin_reading()

    # --- readings -------------------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        """Ask the broker, unless it has not answered yet."""
        if not self._is_reading:
            self._is_reading = True
            self._read()

    @work(thread=True, group="reading")
    def _read(self) -> None:
        found: Reading | FeedError
        try:
            found = self._feed.read()
        except FeedError as error:
            found = error
        if self.is_running:  # it may have been left meanwhile
            self.call_from_thread(self._reading_ended, found)

    def _reading_ended(self, found: Reading | FeedError) -> None:
        self._is_reading = False
        if not self._rows.is_attached:
            return  # the view is closing
        if isinstance(found, FeedError):
            self._tell_head(str(found))
        else:
            self.show_reading(found)

    def show_reading(self, reading: Reading) -> None:
        """Take a reading and draw it."""
        self.view.add(reading)
        self._tell_head(self._sentence({**reading.status, "cluster": reading.cluster}))
        self._totals.update(self.view.head())
        self.redraw()
        now, cpu_s = time.monotonic(), time.process_time()
        share = (cpu_s - self._cpu_s) / max(now - self._looked_at, 0.001)
        self._looked_at, self._cpu_s = now, cpu_s
        cost = f"view {share:.0%} CPU, broker {reading.took_s * 1000:.0f} ms"
        self._bottom.update(f"{_TABLE_KEYS}   {cost}")

    def redraw(self) -> None:
        """Draw the table and the details anew; the cursor stays on its row."""
        table = self._rows
        chosen, top = self.chosen_key(), table.scroll_y
        table.clear()
        rows = self.view.rows(
            self.table, sorted_by=self.sorted_by, descending=self.descending, containing=self._containing
        )
        for row in rows:
            cells = [_cell(text, column) for text, column in zip(row.cells, COLUMNS[self.table], strict=True)]
            table.add_row(*cells, key=row.key)
        keys = [row.key for row in rows]
        if chosen in keys:
            table.move_cursor(row=keys.index(chosen), scroll=False)
        table.scroll_to(y=top, animate=False)
        self._show_details()

    def _show_details(self) -> None:
        chosen = self.chosen_key()
        lines = self.view.details(self.table, chosen) if chosen else []
        self._details.update("\n".join(map(display.printable, lines)))

    def _tell_head(self, text: str) -> None:
        self._head.update(display.printable(text))

    def chosen_key(self) -> str:
        """Return the key of the row with the cursor; empty if there is none."""
        table = self._rows
        if not table.row_count:
            return ""
        return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)

    def on_data_table_row_highlighted(self) -> None:
        """The cursor has moved: show what it is on."""
        if self._rows.is_attached:
            self._show_details()

    # --- tables ---------------------------------------------------------------------------------------------

    def action_table(self, name: TableName) -> None:
        """Show another table."""
        self.table, self.sorted_by, self.descending = name, 0, False
        self._head_columns()
        self.redraw()

    def action_sort(self) -> None:
        """Sort by the next column; the greatest number is first."""
        columns = COLUMNS[self.table]
        self.sorted_by = (self.sorted_by + 1) % len(columns)
        self.descending = columns[self.sorted_by].is_number
        self._head_columns()
        self.redraw()

    def action_reverse(self) -> None:
        """Turn the order around."""
        self.descending = not self.descending
        self._head_columns()
        self.redraw()

    def _head_columns(self) -> None:
        table = self._rows
        table.clear(columns=True)
        for number, column in enumerate(COLUMNS[self.table]):
            mark = ("▼" if self.descending else "▲") if number == self.sorted_by else ""
            title = f"{column.title}{mark}"
            width = column.width
            table.add_column(Text(f"{title:>{width}}" if column.is_number else title), width=width + 1)

    def action_filter(self) -> None:
        """Ask for the text that rows must contain."""
        self._filter.display = True
        self._filter.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Take the text of the filter as it is typed."""
        self._containing = event.value
        self.redraw()

    def on_input_submitted(self) -> None:
        """Go back to the table. An empty filter is put away."""
        self._filter.display = bool(self._containing)
        self._rows.focus()

    # --- acts -----------------------------------------------------------------------------------------------

    def action_log(self) -> None:
        """Show the log of the server with the cursor."""
        if self.table == "servers" and (server := self.chosen_key()):
            self.push_screen(LogScreen(server, self._feed.last_lines))

    def action_operate(self, verb: str) -> None:
        """Ask, then restart or stop the server with the cursor."""
        if self.table == "servers" and (server := self.chosen_key()):
            params = {"verb": verb, "servers": [server]}
            self._ask(f"{verb} {server}?", "carpool/operate", params)

    def action_pause(self) -> None:
        """Ask, then pause the server with the cursor, or let its calls run again."""
        if self.table == "servers" and (server := self.chosen_key()) and self.view.now is not None:
            is_paused = bool(self.view.now.status["servers"].get(server, {}).get("paused"))
            params = {"servers": [server], "paused": not is_paused}
            self._ask(f"{'resume' if is_paused else 'pause'} {server}?", "carpool/pause", params)

    def action_end(self) -> None:
        """Ask, then cancel the call, or disconnect the session, with the cursor."""
        if key := self.chosen_key():
            if self.table == "calls":
                self._ask(f"cancel {key}?", "carpool/cancel", {"call": key})
            elif self.table == "agents":
                self._ask(f"disconnect {key}?", "carpool/disconnect", {"session": key})

    def _ask(self, question: str, method: str, params: dict[str, Any]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._act(method, params)

        self.push_screen(ConfirmScreen(display.printable(question)), answered)

    @work(thread=True, group="acts")
    def _act(self, method: str, params: dict[str, Any]) -> None:
        said = self._feed.act(method, params)
        if self.is_running:
            self.call_from_thread(self.notify, display.printable(said), markup=False)


def _cell(text: str, column: Column) -> Text:
    shown, width = display.one_line(text, column.width), column.width
    style = display.state(text).colour if column.title == STATE else ""
    return Text(f"{shown:>{width}} " if column.is_number else f"{shown:<{width}} ", style=style)
