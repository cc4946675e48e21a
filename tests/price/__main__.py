"""`python -m tests.price`: the price of calls beside the list of this version of Python.

    python -m tests.price                    measure, and print the report; ends with 1 if a price is too high
    python -m tests.price --runs 5           measure five times, and print how far the runs are apart
    python -m tests.price --record           write what is measured; what the list allows goes down only
    python -m tests.price --record --raise   write the list as it is measured, also where that is more

Knows nothing of: how prices are measured and compared.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.price.comparison import compare, renewed, report
from tests.price.measurement import measure
from tests.price.price_list import PriceList, list_path, python_version, read_list, total, write_list
from tests.price.priced_calls import PRICED_CALLS


def print_spread(runs: Sequence[PriceList]) -> None:
    """Print the least and the most bytecodes per call among these runs."""
    for kind in PRICED_CALLS:
        print(f"{kind.name}: {kind.what}")
        for process in kind.processes:
            sums = sorted(total(run.prices[kind.name][process]) for run in runs)
            apart = sums[-1] / sums[0] - 1
            print(f"    {process}: {sums[0]:,.1f} to {sums[-1]:,.1f} bytecodes a call ({apart:.2%} apart)")


def record(listed: PriceList | None, measured: PriceList, *, may_rise: bool) -> int:
    """Write the list. Returns the exit code: 1 if prices that are too high were left as they are."""
    path = list_path(python_version())
    write_list(path, measured if listed is None or may_rise else renewed(listed, measured))
    print(f"written: {path.name}")
    if listed is None or may_rise:
        return 0
    risen = [each for each in compare(listed, measured) if each.is_listed and each.is_too_high]
    for each in risen:
        print(f"not written, since it has risen: {next(each.lines())}")
    return 1 if risen else 0


def main() -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.price", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1, help="measure so often, and print the spread")
    parser.add_argument("--record", action="store_true", help="write what is measured into the list")
    parser.add_argument("--raise", action="store_true", dest="may_rise", help="with --record: allow it, too")
    asked = parser.parse_args()
    runs = [measure() for _ in range(asked.runs)]
    print_spread(runs)
    listed = read_list(list_path(python_version()))
    if listed is not None:
        print(report(listed, runs[-1]))
    if asked.record:
        return record(listed, runs[-1], may_rise=asked.may_rise)
    if listed is None:
        print(f"there is no list for Python {python_version()}")
        return 1
    return 1 if any(each.is_too_high for each in compare(listed, runs[-1])) else 0


if __name__ == "__main__":
    sys.exit(main())
