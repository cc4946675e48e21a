"""Which exception each fault becomes."""

import msgspec
import pytest

from carpool import BadCall, CarpoolError, Lost, Refused, TimedOut, Unavailable, UnknownName
from carpool.errors import of_error, of_kind, of_result
from carpool_protocol.faults.fault_answers import as_error, as_tool_result, fault
from carpool_protocol.faults.kinds import KINDS, FaultKind
from tests.behaviours import behaviour

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.slug)


@every_kind
@behaviour("client:errors")
def test_every_fault_of_the_table_becomes_an_exception_that_says_what_may_have_run(kind: FaultKind) -> None:
    made = fault(kind.slug, server="s", tool="t", call="c1", retry_after_s=2.0)
    code, message, data = as_error(made)
    shown = msgspec.json.decode(as_tool_result(made))
    found = [
        of_error({"code": code, "message": message, "data": msgspec.json.decode(data)}),
        of_result(shown),
    ]
    for error in found:
        assert isinstance(error, CarpoolError)
        assert (error.kind, str(error), error.delivered) == (kind.slug, made.text, kind.delivered)
        assert (error.server, error.tool, error.call, error.retry_after_s) == ("s", "t", "c1", 2.0)
        assert isinstance(error, Lost) == (kind.family == "lost")
        assert not isinstance(error, Refused) or kind.slug == "disabled" or kind.family == "refused"


@pytest.mark.parametrize(
    ("slug", "which", "also"),
    [
        ("not_permitted", Refused, PermissionError),
        ("untrusted", Refused, PermissionError),
        ("disabled", Refused, PermissionError),
        ("unknown_tool", UnknownName, LookupError),
        ("bad_params", BadCall, ValueError),
        ("timed_out", TimedOut, TimeoutError),
        ("ran_too_long", TimedOut, TimeoutError),
        ("waiting_line_full", Unavailable, RuntimeError),
        ("breaker_open", Unavailable, RuntimeError),
    ],
)
@behaviour("client:errors")
def test_what_python_has_an_exception_for_is_that_as_well(
    slug: str, which: type[CarpoolError], also: type[Exception]
) -> None:
    error = of_kind(slug, "Said.", delivered=KINDS[slug].delivered)
    assert type(error) is which
    assert isinstance(error, also)
    assert error.args == ("Said.",)


@behaviour("client:errors")
def test_a_call_that_gave_way_is_the_matter_of_the_agent_that_stayed_away() -> None:
    error = of_kind("agent_away", "Said.", delivered="maybe")
    assert (type(error), error.whose) == (Lost, "caller")


@pytest.mark.parametrize(
    "data", [None, "x", [], {}, {"code": 5, "delivered": "no"}, {"code": "x", "delivered": 1}]
)
@behaviour("client:errors")
def test_an_error_that_is_not_carpools_is_the_servers_own(data: object) -> None:
    error = of_error({"code": -32001, "message": "theirs", "data": data})
    assert (error.kind, error.delivered, error.whose, str(error)) == (
        "server_error",
        "yes",
        "server",
        "theirs",
    )
    assert of_error("nonsense").kind == "server_error"
    assert of_error({"message": ""}).kind == "server_error"
    assert of_result({"isError": True, "content": [], "_meta": {"carpool/error": data}}) is None
    assert of_result({"isError": True, "content": []}) is None
