"""Measured prices are compared with a list function by function."""

from pathlib import Path
from typing import Final

import pytest

from tests.price.comparison import ADVICE, MOST_ABOVE, RECORD, ProcessComparison, compare, renewed, report
from tests.price.price_list import (
    FunctionPrice,
    PriceList,
    Way,
    function_name,
    list_path,
    read_list,
    total,
    versions,
    write_list,
)

NEW: Final = "carpool_broker/core/calls/new_thing.py NewThing.note"
HANDLE: Final = "carpool_broker/core/broker.py BrokerCore.handle"


def recorded() -> PriceList:
    """The list of the oldest version of Python that has one."""
    found = read_list(list_path(versions()[0]))
    assert found is not None
    return found


def broker_of(prices: PriceList) -> Way:
    return prices.prices["s100"]["broker"]


def allowed(prices: PriceList) -> float:
    return prices.allowed["s100"]["broker"]


def compared(measured: PriceList) -> ProcessComparison:
    """The comparison of the broker, beside which nothing may differ."""
    first, *others = sorted(compare(recorded(), measured), key=lambda each: not (each.dearer or each.cheaper))
    assert [each for each in others if each.dearer or each.cheaper or each.is_too_high] == []
    assert (first.kind, first.process) == ("s100", "broker")
    return first


def test_a_list_beside_itself_names_nothing() -> None:
    for each in compare(recorded(), recorded()):
        assert (each.dearer, each.cheaper, each.is_too_high) == ([], [], False)
        assert len(list(each.lines())) == 1


def test_a_function_that_is_new_on_the_way_is_named_though_the_price_is_not_too_high() -> None:
    measured = recorded()
    broker_of(measured)[NEW] = FunctionPrice(1, 3)
    found = compared(measured)
    assert not found.is_too_high
    assert found.dearer == [f"new on the way, entered 1 times, 3 bytecodes: {NEW}"]
    assert NEW in report(recorded(), measured)
    assert ADVICE not in report(recorded(), measured)


def test_a_function_that_is_new_is_named_though_another_one_has_gone() -> None:
    measured = recorded()
    gone = broker_of(measured).pop(HANDLE)
    broker_of(measured)[NEW] = gone
    found = compared(measured)
    assert found.measured == pytest.approx(total(broker_of(recorded())))
    assert [line.split(",")[0] for line in (*found.dearer, *found.cheaper)] == [
        "new on the way", "no longer on the way",
    ]  # fmt: skip


def test_a_function_that_is_entered_more_often_or_longer_is_named() -> None:
    way = broker_of(recorded())
    entries, bytecodes = way[HANDLE]
    for price, word in (
        (FunctionPrice(entries + 1, bytecodes + 10), "entered more often"),
        (FunctionPrice(entries + 1, bytecodes), "entered more often"),
        (FunctionPrice(entries, bytecodes + 10), "longer"),
    ):
        measured = recorded()
        broker_of(measured)[HANDLE] = price
        found = compared(measured)
        assert not found.is_too_high
        (line,) = (*found.dearer, *found.cheaper)
        assert line.startswith(word)
        assert line.endswith(HANDLE)


def test_three_percent_more_bytecodes_are_too_high_and_the_report_says_what_to_do() -> None:
    measured = recorded()
    broker_of(measured)[NEW] = FunctionPrice(1, 1.03 * allowed(measured) - total(broker_of(measured)))
    found = compared(measured)
    assert found.is_too_high
    text = report(recorded(), measured)
    assert NEW in text
    assert "+3.0%, TOO HIGH" in text
    assert ADVICE in text


@pytest.mark.parametrize("part", [MOST_ABOVE * 0.99, MOST_ABOVE * 1.01])
def test_the_bound_is_two_percent_of_each_process(part: float) -> None:
    for kind, processes in recorded().prices.items():
        for process in processes:
            measured = recorded()
            way = measured.prices[kind][process]
            most = (1 + part) * measured.allowed[kind][process]
            way[NEW] = FunctionPrice(1, most - total(way))
            too_high = [
                (each.kind, each.process) for each in compare(recorded(), measured) if each.is_too_high
            ]
            assert too_high == ([(kind, process)] if part > MOST_ABOVE else [])


def test_a_price_below_the_list_is_good_and_the_report_names_the_command_that_lowers_the_list() -> None:
    measured = recorded()
    del broker_of(measured)[HANDLE]
    found = compared(measured)
    assert not found.is_too_high
    assert RECORD in report(recorded(), measured)
    assert HANDLE not in broker_of(renewed(recorded(), measured))


def with_broker(part: float) -> PriceList:
    """A broker that runs so many times the bytecodes that the list allows, by a new function."""
    measured = recorded()
    way = broker_of(measured)
    way[NEW] = FunctionPrice(1, part * allowed(measured) - total(way))
    return measured


def test_what_a_list_allows_is_lowered_and_never_raised() -> None:
    cheaper = recorded()
    del broker_of(cheaper)[HANDLE]
    lower = renewed(recorded(), cheaper)
    assert broker_of(lower) == broker_of(cheaper)
    assert allowed(lower) == pytest.approx(total(broker_of(cheaper)))
    assert allowed(lower) < allowed(recorded())
    for part in (1.01, 1.03):
        assert allowed(renewed(recorded(), with_broker(part))) == pytest.approx(allowed(recorded()))


def test_a_function_that_was_recorded_is_not_named_again_though_the_list_allows_no_more_for_it() -> None:
    dearer = with_broker(1.01)
    after = renewed(recorded(), dearer)
    assert [each for each in compare(after, dearer) if each.dearer or each.cheaper] == []
    for part, is_too_high in ((1.019, False), (1.021, True)):
        found = next(iter(compare(after, with_broker(part))))
        assert found.is_too_high is is_too_high


def test_the_functions_of_a_price_that_is_too_high_are_not_recorded() -> None:
    assert broker_of(renewed(recorded(), with_broker(1.03))) == broker_of(recorded())


def test_a_kind_of_call_that_the_list_lacks_is_too_high_until_it_is_recorded() -> None:
    listed = recorded()
    del listed.prices["h100"], listed.allowed["h100"]
    text = report(listed, recorded())
    assert text.count("NOT IN THE LIST") == 3
    assert ADVICE not in text
    assert [each.kind for each in compare(listed, recorded()) if each.is_too_high] == 3 * ["h100"]
    after = renewed(listed, recorded())
    assert after.prices == recorded().prices
    assert after.allowed["h100"] == pytest.approx(
        {process: total(way) for process, way in recorded().prices["h100"].items()}
    )


def test_a_library_of_another_version_is_not_compared_and_is_taken_over_when_the_list_is_written() -> None:
    measured = recorded()
    measured.libraries["(trio)"] = "99"
    for processes in measured.prices.values():
        for way in processes.values():
            if "(trio)" in way:
                way["(trio)"] = FunctionPrice(1000, 100_000)
    assert not [each for each in compare(recorded(), measured) if each.dearer or each.is_too_high]
    assert "not compared, since the list is of other versions: (trio)" in report(recorded(), measured)
    broker_of(measured)[NEW] = FunctionPrice(1, 3)
    after = renewed(recorded(), measured)
    assert broker_of(after)["(trio)"] == FunctionPrice(1000, 100_000)
    more = 100_000 - broker_of(recorded())["(trio)"].bytecodes
    assert allowed(after) == pytest.approx(allowed(recorded()) + more)


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    assert read_list(path) is None
    write_list(path, recorded())
    assert read_list(path) == recorded()
    assert path.read_text() == list_path(versions()[0]).read_text()


def test_functions_of_carpool_have_names_of_their_own_and_those_of_a_library_share_one() -> None:
    from carpool_broker.core import broker

    assert function_name(broker.__file__, "BrokerCore.handle") == HANDLE
    assert function_name(pytest.__file__, "main") == "(pytest)"
    assert function_name("<attrs generated methods outcome._impl.Error>", "__init__") == "(outcome)"
    assert function_name("<frozen abc>", "ABCMeta.register") == "(standard library)"


def test_a_library_is_named_from_one_percent_of_the_price_on() -> None:
    way = broker_of(recorded())
    entries, bytecodes = way["(trio)"]
    for part, named in ((0.009, False), (0.011, True)):
        measured = recorded()
        broker_of(measured)["(trio)"] = FunctionPrice(entries + 1, bytecodes + part * total(way))
        found = [line for each in compare(recorded(), measured) for line in each.dearer]
        assert [line.split(",")[0] for line in found] == (["entered more often"] if named else [])
