"""The price of a call in bytecodes, measured on a real carpool, is not above the list."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool_broker.core import broker
from tests.kit.leaks import no_leaks
from tests.kit.source_graft import SourceGraft
from tests.price.comparison import RECORD, compare, has_news, report
from tests.price.measurement import measure
from tests.price.price_list import list_path, python_version, read_list, versions
from tests.price.priced_calls import PRICED_CALLS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes run in lock step by means of /proc"
)
ONE_FUNCTION_MORE = """

def _more(handle):
    def noted(core, *words):
        return handle(core, *words)
    return noted


BrokerCore.handle = _more(BrokerCore.handle)
"""


def test_a_call_costs_no_more_bytecodes_than_the_list_says(
    record_property: Callable[[str, object], None],
) -> None:
    listed = read_list(list_path(python_version()))
    if listed is None:
        pytest.skip(f"there are prices for Python {', '.join(versions())}; `{RECORD}` adds those of this one")
    with no_leaks():
        measured = measure()
    text = report(listed, measured)
    if any(each.is_too_high for each in compare(listed, measured)):
        pytest.fail(text, pytrace=False)
    if has_news(listed, measured):
        record_property("report", text)


def test_a_function_that_is_added_to_the_way_of_a_call_is_named() -> None:
    listed = read_list(list_path(python_version()))
    if listed is None:
        pytest.skip(f"there is no list for Python {python_version()}")
    text = Path(broker.__file__).read_text() + ONE_FUNCTION_MORE
    measured = measure(PRICED_CALLS[:1], SourceGraft(broker.__file__, text))
    [broker_price] = [each for each in compare(listed, measured) if each.process == "broker"]
    named = [line for line in broker_price.dearer if "_more.<locals>.noted" in line]
    assert [line.split(",")[0] for line in named] == ["new on the way"]
    assert named[0] in report(listed, measured)
