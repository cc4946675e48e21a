"""Requests of operators over HTTP: `/operator/VERB` (docs/operating.md, "Over HTTP"; docs/decisions/0045).

Owns the table of verbs: for each the HTTP method, the right that it needs, the form of its request, and the
broker's control method that answers it. Verbs that change something are POST requests with a body of JSON: a
page in a browser cannot send one to another origin without being asked for permission first. Logs need the
full right, because servers may write to them what agents sent; the door reads them itself.

Knows nothing of: tokens (`access`), what a verb does (the broker's `admin`), files.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from carpool.http.core import own_requests
from carpool.http.core.body import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST, UNREADABLE
from carpool.http.core.effects import AskNodes, HttpRequest, LogsFound, ReadLog, Respond, refusal
from carpool.http.core.headers import is_json
from carpool.http.core.limits import MAX_PARAMETERS
from carpool.http.core.pages import AWAY
from carpool.http.core.routing import ExchangeTable
from carpool.http.core.shared_questions import MAX_QUESTIONS, SharedQuestion, SharedQuestions
from carpool.http.core.web_page import SAFE_HEADERS
from carpool.readings.call_steps import NodeStory, crossings, timeline
from carpool_protocol.config.schema.model import OperatorRight
from carpool_protocol.ids import call_named
from carpool_protocol.wire.json_scan import MAX_PARTS, has_too_many_parts

OPERATOR_PATH: Final = "/operator/"
READ_S: Final = 10.0
ACT_S: Final = 320.0
"""Longer than the broker waits for a server to stop or start (`admin.pool_commands`)."""
SUPERVISOR_S: Final = 5.0
MAX_NAMES: Final = 1000


MAX_LOG_LINES: Final = 500
MAX_LOG_CHARS: Final = 4000
"""A line of a log is cut at this length."""


class NoParams(Struct, forbid_unknown_fields=True):
    """The request names nothing."""


class CallsFilter(Struct, forbid_unknown_fields=True):
    """The query of `/operator/calls`. Empty: any."""

    server: str = ""
    session: str = ""
    state: Literal["", "waiting", "running", "asking"] = ""


class RecentAfter(Struct, forbid_unknown_fields=True):
    """The query of `/operator/recent_calls`: the `newest` of an earlier answer."""

    after: int = 0


class OneServer(Struct, forbid_unknown_fields=True):
    """The query of `/operator/why`."""

    server: str


class OneTool(Struct, forbid_unknown_fields=True):
    """The query of `/operator/tools`. Empty: all tools, without their definitions."""

    name: str = ""


class LogLines(Struct, forbid_unknown_fields=True):
    """The query of `/operator/logs`: the name of a log, as a list of them has it, and how many lines. Empty:
    only the list.
    """

    log: str = ""
    lines: int = 100


class OneCall(Struct, forbid_unknown_fields=True):
    """The body of `/operator/cancel`, and the query of `/operator/story`."""

    call: str


class OneSession(Struct, forbid_unknown_fields=True):
    """The body of `/operator/disconnect`."""

    session: str


class SomeServers(Struct, forbid_unknown_fields=True):
    """The body of `/operator/pause` and `/operator/resume`."""

    servers: list[str]


class SwitchedServer(Struct, forbid_unknown_fields=True):
    """The body of `/operator/enable` and `/operator/disable`. `session`: for this session alone; empty: for
    all agents, until carpool stops.
    """

    server: str
    session: str = ""


class SomeOrAllServers(Struct, forbid_unknown_fields=True):
    """The body of `/operator/stop`, `/operator/start` and `/operator/restart`: exactly one of the two."""

    servers: list[str] | None = None
    all: bool = False


class _Verb(NamedTuple):
    """One verb. `params` makes the params of the broker's control method from the decoded request."""

    changes: bool
    form: type[Struct]
    method: str
    """Empty: the door answers by itself."""
    params: Callable[[Any], dict[str, Any]]
    is_secret: bool = False
    """True: it needs the full right although it changes nothing."""
    shown: Callable[[Any, Any], Any] = lambda _form, result: result
    """Makes what is shown from the form and the broker's result."""


def _within(_: NoParams) -> dict[str, Any]:
    return {"within_s": SUPERVISOR_S}


def _operate(verb: str) -> _Verb:
    return _Verb(
        True, SomeOrAllServers, "carpool/operate", lambda form: {"verb": verb, "servers": form.servers}
    )


def _pause(*, paused: bool) -> _Verb:
    return _Verb(True, SomeServers, "carpool/pause", lambda form: {"servers": form.servers, "paused": paused})


def _switch(*, on: bool) -> _Verb:
    return _Verb(
        True,
        SwitchedServer,
        "carpool/switch",
        lambda form: {"server": form.server, "on": on} | ({"session": form.session} if form.session else {}),
    )


def _tools_shown(form: OneTool, result: Any) -> Any:
    """Return the tools. Only one that was named has its definition: together they may have megabytes."""
    if form.name or not isinstance(result, dict):
        return result
    return {"tools": [{**each, "definition": None} for each in result.get("tools", ())]}


VERBS: Final[dict[str, _Verb]] = {
    "status": _Verb(False, NoParams, "carpool/status", _within),
    "counters": _Verb(False, NoParams, "carpool/counters", _within),
    "calls": _Verb(False, CallsFilter, "carpool/calls", msgspec.structs.asdict),
    "recent_calls": _Verb(False, RecentAfter, "carpool/recent_calls", msgspec.structs.asdict),
    "story": _Verb(False, OneCall, "carpool/story", msgspec.structs.asdict),
    "why": _Verb(False, OneServer, "carpool/why", msgspec.structs.asdict),
    "profiles": _Verb(False, NoParams, "carpool/profiles", msgspec.structs.asdict),
    "tools": _Verb(
        False,
        OneTool,
        "carpool/tools",
        lambda form: {"name": form.name or None, "offline": True},
        shown=_tools_shown,
    ),
    "logs": _Verb(False, LogLines, "", msgspec.structs.asdict, is_secret=True),
    "cancel": _Verb(True, OneCall, "carpool/cancel", msgspec.structs.asdict),
    "disconnect": _Verb(True, OneSession, "carpool/disconnect", msgspec.structs.asdict),
    "pause": _pause(paused=True),
    "resume": _pause(paused=False),
    "enable": _switch(on=True),
    "disable": _switch(on=False),
    "start": _operate("start"),
    "stop": _operate("stop"),
    "restart": _operate("restart"),
}
"""Every verb by its name in the path."""

_HEADERS: Final = (*SAFE_HEADERS, ("Cache-Control", "no-store"))
_NEEDS_OPERATOR: Final = (
    "this needs an operator's token or the key of the web page: `carpool web` leads there, `carpool token "
    "add NAME --operator full` makes a token, and `carpool docs operating` says where it goes"
)
_NEEDS_FULL: Final = (
    "this may read, but change nothing and read no logs; the page that `carpool web` opens may, and so may a "
    "token that `carpool token add NAME --operator full` makes"
)
_NO_LOG: Final = (
    "there is no such log here: a server that has never been started has none, and a request without `log` "
    "answers with the names of those that are there"
)
_LOG_UNREAD: Final = "the log could not be read; `carpool logs --daemon` on that machine says why"
_UNKNOWN: Final = "there is no such verb; those are: " + ", ".join(sorted(VERBS))
_TOO_MANY: Final = f"{MAX_QUESTIONS} requests of this operator are open already; wait for one of them"
_UNKNOWN_OUTCOME: Final = (
    "carpool's broker died or did not answer in time; what was asked may have been done: look before you ask "
    "again"
)


MakeRespond = Callable[[int], Respond]
"""Makes the answer to an HTTP request of this number."""


class OperatorRequests:
    """Answers requests of operators. Those that read the same at once share one answer; acts share none, but
    no request reads what was asked before an act that is done.
    """

    def __init__(self, table: ExchangeTable, questions: SharedQuestions) -> None:
        self._table = table
        self._questions = questions
        self._looked_up: dict[int, SharedQuestion] = {}
        """The questions for logs and to other nodes, which the shell answers, by the request that began each.
        """
        self.cluster: Mapping[str, Any] | None = None
        """The section `cluster` of `carpool status --json`: the broker knows of no other nodes."""

    def answer(
        self,
        x: int,
        request: HttpRequest,
        principal: str,
        right: OperatorRight,
        now: float,
        *,
        linked: bool,
    ) -> Respond | None:
        """Answer with the result of the broker's control method as JSON. `right`: of this principal."""
        if not right:
            return refusal(x, 403, INVALID_REQUEST, _NEEDS_OPERATOR)
        verb = VERBS.get(request.path.removeprefix(OPERATOR_PATH))
        if verb is None:
            return refusal(x, 404, INVALID_REQUEST, _UNKNOWN)
        allowed = "POST" if verb.changes else "GET"
        if request.method != allowed:
            return refusal(x, 405, INVALID_REQUEST, f"{allowed} only", Allow=allowed)
        if (verb.changes or verb.is_secret) and right != "full":
            return refusal(x, 403, INVALID_REQUEST, _NEEDS_FULL)
        if verb.changes and not is_json(request.headers.get("content-type")):
            return refusal(x, 415, INVALID_REQUEST, "Unsupported Media Type: POST application/json")
        try:
            form = _read(request, verb)
        except ValueError as error:
            return refusal(x, 400, INVALID_PARAMS, str(error))
        if not linked and verb.method:
            return refusal(x, 503, INTERNAL_ERROR, AWAY, Retry_After="1")
        key = None if verb.changes else (principal, request.path, msgspec.json.encode(form))

        def answer(make: MakeRespond) -> Respond:
            return make(x)

        if key is not None and self._questions.join(x, key, answer):
            return None
        if not self._questions.has_room(principal):
            return refusal(x, 429, INTERNAL_ERROR, _TOO_MANY, Retry_After="1")
        question = self._questions.open(x, principal, key, answer)
        if isinstance(form, LogLines):
            self._looked_up[x] = question
            self._table.out.append(ReadLog(x, form.log, max(1, min(form.lines, MAX_LOG_LINES))))
        else:
            self._ask(question, principal, verb, form, now)
        return None

    def log_read(self, x: int, found: LogsFound) -> None:
        """Answer with the names of all logs, and the records of the one that was named."""
        make: MakeRespond
        if found.records is None:
            make = partial(refusal, status=404, code=INVALID_PARAMS, text=_NO_LOG)
        else:
            lines = [{**each, "message": str(each["message"])[:MAX_LOG_CHARS]} for each in found.records]
            make = _shown_as({"logs": found.names, "lines": lines})
        self._questions.answered(self._looked_up.pop(x), make)

    def log_read_failed(self, x: int) -> None:
        """Say that a log could not be read."""
        failed = partial(refusal, status=503, code=INTERNAL_ERROR, text=_LOG_UNREAD)
        self._questions.answered(self._looked_up.pop(x), failed)

    def _ask(self, question: SharedQuestion, principal: str, verb: _Verb, form: Any, now: float) -> None:
        def found(answer: Any, _now: float) -> None:
            if verb.changes:
                self._questions.forbid_joining()
            if answer is not None:
                self._answered(question, verb, form, answer)
            elif verb.changes:
                unknown = partial(refusal, status=504, code=INTERNAL_ERROR, text=_UNKNOWN_OUTCOME)
                self._questions.answered(question, unknown)
            else:
                away = partial(refusal, status=503, code=INTERNAL_ERROR, text=AWAY, Retry_After="1")
                self._questions.answered(question, away)

        stream = self._table.shared_stream("control", (principal, "", "", "", 0), now)
        dialogue = own_requests.ask_broker(verb.method, verb.params(form))
        limit_s = ACT_S if verb.changes else READ_S
        self._table.start_own_request(
            self._table.next_number(),
            stream,
            dialogue,
            found,
            now,
            is_repeatable=not verb.changes,
            limit_s=limit_s,
        )

    def _answered(self, question: SharedQuestion, verb: _Verb, form: Any, answer: dict[str, Any]) -> None:
        """The broker has answered. Nodes to which a call went are asked for their part of its story, for the
        first who still waits for it.
        """
        result = answer.get("result")
        call = call_named(form.call) if verb is VERBS["story"] else None
        if call is None or answer.get("error") is not None or not isinstance(result, dict):
            make = _page(answer, lambda result: self._shown(verb, form, result))
            self._questions.answered(question, make)
            return
        x = next(iter(question.waiting), 0)
        asked = AskNodes(x, call, result, crossings(result, call))
        if asked.crossings and x:
            self._looked_up[x] = question
            self._table.out.append(asked)
        else:
            self._questions.answered(question, _story_shown(asked, ()))

    def nodes_told(self, asked: AskNodes, stories: Sequence[NodeStory]) -> None:
        """Answer a request for the story of a call with its steps here and at other nodes."""
        self._questions.answered(self._looked_up.pop(asked.x), _story_shown(asked, stories))

    def _shown(self, verb: _Verb, form: Any, result: Any) -> Any:
        if verb is VERBS["status"] and isinstance(result, dict):
            return {**result, "cluster": self.cluster}
        return verb.shown(form, result)


def _read(request: HttpRequest, verb: _Verb) -> Struct:
    """Return the decoded query or body. Raises `ValueError`, whose text has no values of the request."""
    if verb.changes and has_too_many_parts(request.body):
        raise ValueError(f"it has more than {MAX_PARTS:,} parts")
    try:
        if verb.changes:
            form = msgspec.json.decode(request.body or b"{}", type=verb.form)
        else:
            query = dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=MAX_PARAMETERS))
            form = msgspec.convert(query, verb.form, strict=False)  # a query has texts only
    except (*UNREADABLE, ValueError) as error:
        raise ValueError(f"the request is not as this verb needs it: {_problem(error, verb.form)}") from None
    if isinstance(form, SomeOrAllServers) and form.all is (form.servers is not None):
        raise ValueError('name the servers, or say {"all": true}')
    names: list[str] | None = getattr(form, "servers", None)
    if names is not None and not names:
        raise ValueError("it names no server, so nothing was done")
    if names is not None and len(names) > MAX_NAMES:
        raise ValueError(f"it names more than {MAX_NAMES} servers")
    return form


_PLAIN_PROBLEM: Final = re.compile(
    r"(?:Object missing required field `\w+`|Expected `[\w |]+`, got `\w+`)(?: - at `\$[\w.\[\]]*`)?"
)
"""The texts of `msgspec` that name only fields and types of a form. Others repeat what was sent."""


def _problem(error: Exception, form: type[Struct]) -> str:
    """Return what is wrong with a request, without anything of it."""
    if not isinstance(error, msgspec.ValidationError):
        return "it cannot be read"
    if _PLAIN_PROBLEM.fullmatch(str(error)):
        return str(error)
    fields = ", ".join(map(_described, msgspec.structs.fields(form)))
    return f"it has a field or a value that is not known; it may have {fields or 'no field'}"


def _described(field: msgspec.structs.FieldInfo) -> str:
    """Return the name of a field, and the values that it may have if they are few."""
    values = ", ".join(filter(None, get_args(field.type))) if get_origin(field.type) is Literal else ""
    return f"`{field.name}` ({values})" if values else f"`{field.name}`"


def _page(answer: dict[str, Any], shown: Callable[[Any], Any]) -> MakeRespond:
    """Return what makes an answer of the broker's result as it is shown, or of its error as it is."""
    error = answer.get("error")
    if error is None:
        return _shown_as(shown(answer.get("result")))
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    return partial(Respond, status=_status_of(error), body=body, headers=_HEADERS)


def _story_shown(asked: AskNodes, stories: Sequence[NodeStory]) -> MakeRespond:
    """Return what makes an answer of a story: with its steps in words here and at other nodes, oldest
    first.
    """
    return _shown_as(
        {
            **asked.story,
            "nodes": [each.as_json() for each in stories],
            "steps": [step._asdict() for step in timeline(asked.story, asked.call, stories)],
        }
    )


def _shown_as(page: Any) -> MakeRespond:
    return partial(Respond, status=200, body=msgspec.json.encode(page), headers=_HEADERS)


def _status_of(error: Any) -> int:
    if not isinstance(error, dict) or error.get("code") != INVALID_PARAMS:
        return 503
    data = error.get("data")
    return 404 if isinstance(data, dict) and data.get("code") == "not_found" else 400
