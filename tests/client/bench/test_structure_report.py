"""What `bench.structure_report` counts."""

from bench.structure_report import Hop, per_call, read_facts, table

SOURCE = '''"""Module.

Two lines.
"""

import os  # counts


class BrokerCore:
    """Class."""

    field = 1
    """What it is."""

    # a comment
    def __init__(self) -> None:
        """Make it."""
        self.text = """a
value"""


async def long() -> None:
    x = [
        1,

    ]
'''


def test_blanks_comments_and_docstrings_are_no_code_and_texts_that_are_values_are() -> None:
    facts = read_facts(SOURCE)
    assert facts.code_lines == 1 + 1 + 1 + 1 + 2 + 4
    assert facts.statements == 7
    assert facts.roots == {"BrokerCore": 4}
    assert facts.long_functions == 0
    assert read_facts("def f():\n" + "    x = 1\n" * 39).long_functions == 0
    assert read_facts("def f():\n" + "    x = 1\n" * 40).long_functions == 1


def test_on_the_way_of_a_call_is_what_runs_once_more_per_additional_call() -> None:
    few = {"a.py:1 f": (110, 0.1), "b.py:1 start": (500, 0.5), "c.py:1 rare": (1, 0.0)}
    more = {
        "a.py:1 f": (510, 0.3),
        "b.py:1 start": (500, 0.5),
        "c.py:1 rare": (9, 0.0),
        "d.py:2 g": (200, 0.4),
    }
    assert [(hop.name, hop.calls, round(hop.own_us)) for hop in per_call(few, more, 200)] == [
        ("d.py:2 g", 1.0, 2000),
        ("a.py:1 f", 2.0, 1000),
    ]
    assert Hop("a.py:1 f", 1.0, 1.0).file == "a.py"


def test_the_table_is_markdown() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
