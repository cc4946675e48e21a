"""How a change of a pinned tool is shown."""

import json

from carpool.cli_pin import diffs


def test_every_line_of_a_change_is_shown_whatever_it_begins_with() -> None:
    before = {"name": "add", "-- old": 1}
    now = {"name": "add", "++ new": "a\u200bb"}
    held = {"tool": "add", "why": "changed", "before": json.dumps(before), "now": json.dumps(now)}
    (shown,) = diffs([{"server": "box", "held": [held]}])
    assert shown.splitlines()[2:] == [
        "   name:",
        "       add",
        "  --- old: 1",
        "  +++ new:",
        r"  +    a\u200bb",
    ]
