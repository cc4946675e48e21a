"""The list reader of both eras: one open list request at a time, until all lists are read.

Owns the id of that request and the consequences of its answer, of an unreadable answer, and of none. A
server that does not declare tools is asked for them all the same, and is fit in any case; one that declares
other capabilities and refuses is not asked again. A server that declares tools is not fit without them.
Another list that is not answered in time keeps what was known, the next one is read, and all lists are read
again later (`list_throttle`). `list_pages` decides on lists and pages. The era's greeting
(`InitializeGreeting`, `DiscoverGreeting`) writes the requests and reports the catalog.

Knows nothing of: greetings, calls.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from carpool_protocol.ids import ABSENT, EMPTY_OBJECT, InstanceId, PoolKey, RawJson
from carpool_protocol.link.messages import Catalog, Feature
from carpool_protocol.wire.capabilities import OFFERS_NOTHING
from carpool_protocol.wire.jsonrpc import ErrorAnswer, ResultAnswer, quote
from carpool_protocol.wire.list_repair import Family
from carpool_supervisor.core.model.events import (
    CatalogRead,
    GreetingFailed,
    InstanceGreeted,
    ListAnswerLost,
    ListsChanged,
    ServerLineRejected,
)
from carpool_supervisor.era.adapter import Decoded
from carpool_supervisor.era.greeting import read_error
from carpool_supervisor.era.list_hints import CacheHint
from carpool_supervisor.era.list_pages import FAMILIES, METHODS, ListPages, PageRequest
from carpool_supervisor.era.self_description import SelfDescription

METHOD_NOT_FOUND: Final = -32601
REMEMBERED_REQUESTS: Final = 16
"""Abandoned requests whose late answers are still recognized."""
NO_OPEN_REQUEST: Final = (ABSENT, "")
UNDECLARED_TOOLS: Final = "tools/list, which it has not declared"
MAX_BEGUN: Final = 36
"""Lists that are read at once because the server announced changes, including the first four. Later changes
wait for `relist_line`.
"""

Ask = Callable[[str, str, RawJson], RawJson]
"""Write a request (a word for its id, method, params or `ABSENT`) and return its id."""


class ListReader:
    """The lists of one server, as far as they are read."""

    def __init__(
        self, instance: InstanceId, decoded: Decoded, ask: Ask, catalog: Callable[[], Catalog]
    ) -> None:
        """`catalog`: makes the catalog to report each time all lists are read."""
        self._instance = instance
        self._decoded = decoded
        self._ask_server = ask
        self._catalog = catalog
        self._is_guess = False
        """The server has not declared tools, and is asked for them all the same."""
        self._declares_nothing = False
        self.open_request: tuple[RawJson, str] = NO_OPEN_REQUEST
        """The id and the method of the open list request."""
        self._given_up: deque[RawJson] = deque(maxlen=REMEMBERED_REQUESTS)
        self._is_lost = False
        """The answer to a request of this round was unreadable, or did not come."""
        self._loss = ""
        """The sentence on a request of this round whose answer did not come."""
        self._lost_times = 0
        """Rounds in a row with an unreadable or a missing answer."""
        self._reading = ListPages()
        self.fit = False
        """True once a catalog was reported."""
        self._begun = 0
        """Lists begun since the server was calm."""
        self._postponed = False
        """A change is left for the next `relist_line`."""
        self._said = SelfDescription("", EMPTY_OBJECT, EMPTY_OBJECT)
        self._over = ""
        """The sentence on what of the description is over a limit."""

    def begin(self, description: SelfDescription, features: Iterable[Feature]) -> None:
        """Read all lists of the server that has just greeted."""
        self._said, self._over = description.bounded()
        if self._over:
            self._decoded.events.append(ServerLineRejected(self._instance, self._over))
        announced = list(features)
        self._is_guess = "tools" not in announced
        self._declares_nothing = not announced
        self._reading.announce(announced, with_tools=self._is_guess)
        self._request_next(self._reading.next_list())

    def lists_changed(self, families: Iterable[Family]) -> None:
        """The server says that these lists have changed. If it does so all the time they are not read at
        once, and what is being read is not begun anew.
        """
        if self._begun < MAX_BEGUN:
            self._ask(self._reading.lists_changed(families))
        elif not self._postponed:
            self._postponed = True
            if self.fit:
                self._decoded.events.append(ListsChanged(self._instance))

    def relist_line(self, *, is_calm: bool = False) -> bytes:
        """The line that begins to read all lists again; empty while they are being read. `is_calm`: so many
        changes as at first are followed at once again. Else those wait that come during this reading.
        """
        if is_calm:
            self._begun = 0
        self._postponed, was_put_off = False, self._postponed
        if self.open_request[0] or self.is_busy:
            if was_put_off:
                self._reading.lists_changed(FAMILIES)  # once the open request is answered
            return b""
        before, self._decoded.lines = self._decoded.lines, []
        self._ask(self._reading.lists_changed(FAMILIES))
        written, self._decoded.lines = b"".join(self._decoded.lines), before
        return written

    @property
    def hint(self) -> CacheHint:
        """The freshness of all lists together, as the server says."""
        return self._reading.hint

    def request_answered(self, answer_id: RawJson, message: ResultAnswer | ErrorAnswer) -> bool:
        """Handle an answer whose id is no number. Returns True if it answers a list request."""
        if not self._is_out(answer_id):
            return answer_id in self._given_up
        self.open_request = NO_OPEN_REQUEST
        family = self._reading.family
        if isinstance(message, ErrorAnswer):
            error = read_error(message.error)
            wrong = f"refused {family}/list: {error.message[:200]} ({error.code})"
            page = self._reading.list_refused()
            if error.code == METHOD_NOT_FOUND and family == "templates":
                wrong = ""  # usual for servers with resources and no templates
            if self._is_guess and family == "tools":
                wrong = self._tools_missed()
        else:
            self._was_read(family, self._reading.page_received(message.result))
            return True
        self._was_read(family, (page, wrong))
        return True

    @property
    def is_busy(self) -> bool:
        """True while a long answer is only partly read; `read_on` reads its next slice. No request is open
        meanwhile.
        """
        return self._reading.is_busy

    def read_on(self) -> None:
        """Read the next slice of that answer."""
        self._was_read(self._reading.family, self._reading.read_on())

    def _was_read(self, family: Family | None, taken: tuple[PageRequest | None, str] | None) -> None:
        """Continue after an answer. None: it is only partly read."""
        if taken is None:
            return
        page, wrong = taken
        if wrong:
            self._decoded.events.append(ServerLineRejected(self._instance, wrong))
            was_read = family in self._reading.left_out  # only some entries of it are left out
            if family == "tools" and not self.fit and not was_read and not self._is_guess:
                self._decoded.events.append(GreetingFailed(self._instance, wrong))
                return
        self._request_next(page)

    def answer_unreadable(self, answer_id: RawJson, text: str) -> bool:
        """Handle an unreadable line with this id. Returns True if it answers a list request."""
        if not self._is_out(answer_id):
            return answer_id in self._given_up
        wrong = f"answered {self.open_request[1]} with an invalid message: {text}"
        self.open_request = NO_OPEN_REQUEST
        self._decoded.events.append(ServerLineRejected(self._instance, wrong))
        if self._reading.family == "tools" and not self.fit and not self._is_guess:
            self._decoded.events.append(GreetingFailed(self._instance, wrong))
        else:
            self._is_lost = True
            self._request_next(self._reading.list_refused())
        return True

    def list_timed_out(self, after_s: float) -> None:
        """The open request got no answer in this time: its list keeps what was known, and the next one is
        read. A server that has greeted and does not answer `tools/list` is asked for no other list.
        """
        request, method = self.open_request
        if not request:
            return
        self.open_request = NO_OPEN_REQUEST
        self._given_up.append(request)
        self._is_lost = True
        self._loss = self._loss or f"did not answer {method} within {after_s:g} s"
        if self._is_guess and self._reading.family == "tools":
            self._loss = self._tools_missed()
            self._is_lost = self._declares_nothing
        elif self._reading.family == "tools":
            self._reading.abandon()
            self._decoded.events.append(self._list_lost())
            return
        page = self._reading.list_refused()
        if page is not None and not self.fit:  # it serves meanwhile
            self._report_catalog()
        self._request_next(page)

    def _tools_missed(self) -> str:
        """The server has listed no tools, which it has not declared. Returns what is wrong with that."""
        if self._declares_nothing:
            return OFFERS_NOTHING
        self._reading.withdraw_tools()
        return ""

    def _is_out(self, answer_id: RawJson) -> bool:
        return bool(self.open_request[0]) and answer_id == self.open_request[0]

    def _list_lost(self) -> ListAnswerLost:
        self._is_lost = False
        self._lost_times += 1
        text, self._loss = self._loss, ""
        return ListAnswerLost(self._instance, self._lost_times, text)

    def close(self) -> None:
        """Drop the reference to the functions that write requests. See `EraAdapter.close`."""
        del self._ask_server, self._catalog
        self._reading.abandon()

    def _request_next(self, page: PageRequest | None) -> None:
        if page is not None:
            self._ask(page)
            return
        self._report_catalog()
        if self._is_lost:
            self._decoded.events.append(self._list_lost())
        else:
            self._lost_times = 0
        late = self._reading.changed_meanwhile()
        if late:
            self.lists_changed(late)

    def _report_catalog(self) -> None:
        catalog = self._catalog()
        if self.fit:
            self._decoded.events.append(CatalogRead(self._instance, catalog))
            return
        self.fit = True
        self._decoded.events.append(InstanceGreeted(self._instance, catalog))
        if self._postponed:
            self._decoded.events.append(ListsChanged(self._instance))

    def _ask(self, page: PageRequest | None) -> None:
        """Write the request for this page."""
        if page is not None:
            self._begun += page.cursor is None
            params = ABSENT if page.cursor is None else RawJson(b'{"cursor":%b}' % quote(page.cursor))
            method = METHODS[page.family]
            if (
                self._is_guess and page.family == "tools"
            ):  # the start limit does not cover it (`list_throttle`)
                method = UNDECLARED_TOOLS
            self.open_request = (self._ask_server(page.family, METHODS[page.family], params), method)

    def catalog(self, key: PoolKey, *, version: str, features: list[Feature]) -> Catalog:
        """The catalog: all lists and the server's description of itself, within the limits."""
        tools = self._reading.named_offers("tools")
        if self._is_guess and tools:
            features = ["tools", *features]
        return Catalog(
            key=key,
            tools=tools,
            instructions=self._said.instructions,
            server_info=self._said.server_info,
            capabilities=self._said.capabilities,
            protocol_version=version,
            prompts=self._reading.named_offers("prompts"),
            resources=self._reading.uri_offers("resources"),
            templates=self._reading.uri_offers("templates"),
            features=features,
            left_out="; ".join(filter(None, (self._over, *self._reading.left_out.values()))),
        )
