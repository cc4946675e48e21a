"""The alert rules of docs/carpool-alerts.yml: they use what carpool exports, and fire when they should.

`promtool` of Prometheus evaluates the rules on made-up series, where it is installed.

Knows nothing of: how the metrics are made (`test_metrics_page`).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pytest

from carpool.http.core import metrics_page as page
from carpool_protocol.link.messages import PoolState
from tests.behaviours import behaviour

RULES: Final = Path(__file__).parents[4] / "docs" / "carpool-alerts.yml"


def expressions() -> dict[str, str]:
    """The expression of each alert by its name, in one line."""
    found = re.findall(
        r"- alert: (\w+)\n\s+expr: (?:>-\n)?(.*?)\n\s+(?:for|labels):",
        RULES.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    return {name: " ".join(text.split()) for name, text in found}


def exported() -> dict[str, tuple[str, ...]]:
    """The labels of each exported series by its full name."""
    return {
        **{f"{each.name}_total": each.labels for each in page.COUNTERS},
        **{each.name: each.labels for each in page.GAUGES},
        **{f"{each.name}_bucket": (*each.labels, "le") for each in page.HISTOGRAMS},
    }


@behaviour("metrics:alerts")
def test_each_alert_has_an_expression_and_a_summary() -> None:
    rules = RULES.read_text(encoding="utf-8")
    assert rules.count("- alert:") == rules.count("summary:") == len(expressions()) > 5


@behaviour("metrics:alerts")
@pytest.mark.parametrize("alert", expressions())
def test_an_alert_uses_only_series_and_labels_that_carpool_exports(alert: str) -> None:
    text, known = expressions()[alert], exported()
    named = re.findall(r"\b(carpool_\w+)\s*(?:\{([^}]*)\})?", text)
    assert named
    assert {name for name, _ in named} <= known.keys()
    for name, matchers in named:
        assert {*re.findall(r"(\w+)\s*[=!]", matchers)} <= {*known[name]}
    grouped = {each for names in re.findall(r"\bby \(([^)]*)\)", text) for each in re.findall(r"\w+", names)}
    assert grouped <= set.intersection(*(set(known[name]) for name, _ in named))


def test_the_states_in_the_rules_exist() -> None:
    (states,) = re.findall(r'state=~"([^"]*)"', expressions()["CarpoolServerDown"])
    assert {*states.split("|")} <= {*get_args(PoolState), "misconfigured"}


class AlertCase(NamedTuple):
    """Series of one sample a minute, and the alerts that fire at minute 30."""

    series: Mapping[str, str]
    fires: tuple[tuple[str, str], ...]
    """Each with its server; empty for an alert without one."""


WELL: Final = {"carpool_healthy": "1x40"}
CALLS: Final = {'carpool_calls_total{server="git",tool="log"}': "0+60x40"}
ERRORS: Final = 'carpool_errors_total{server="git",tool="log",code="timed_out"}'
REFUSALS: Final = 'carpool_refusals_total{server="git",tool="log",code="timed_out"}'
FAIL: Final = (("CarpoolCallsFail", "git"),)
CASES: Final = {
    "all is well": AlertCase({**WELL, **CALLS}, ()),
    "nothing is scraped": AlertCase({}, (("CarpoolAbsent", ""),)),
    "not well": AlertCase({"carpool_healthy": "0x40"}, (("CarpoolNotWell", ""),)),
    "only errors": AlertCase({**WELL, **CALLS, ERRORS: "0+30x40"}, FAIL),
    "only refusals": AlertCase({**WELL, **CALLS, REFUSALS: "0+30x40"}, FAIL),
    "both make a tenth together": AlertCase({**WELL, **CALLS, ERRORS: "0+4x40", REFUSALS: "0+4x40"}, FAIL),
    "few errors": AlertCase({**WELL, **CALLS, ERRORS: "0+4x40"}, ()),
    "errors of another server": AlertCase(
        {**WELL, **CALLS, 'carpool_calls_total{server="b",tool="x"}': "0+60x40",
         'carpool_errors_total{server="b",tool="x",code="-32000"}': "0+60x40"},
        (("CarpoolCallsFail", "b"),),
    ),
    "restarts": AlertCase(
        {**WELL, 'carpool_server_restarts_total{server="git"}': "0+1x40"}, (("CarpoolServerRestarts", "git"),)
    ),
    "given up": AlertCase(
        {**WELL, 'carpool_server_state{server="git",state="given_up"}': "1x40"},
        (("CarpoolServerDown", "git"),),
    ),
    "an open breaker that lets calls probe": AlertCase(
        {**WELL,
         'carpool_server_state{server="git",state="breaker_open"}': "1 stale 1 stale" + " 1 stale" * 19,
         'carpool_server_state{server="git",state="half_open"}': "stale 1 stale 1" + " stale 1" * 19},
        (("CarpoolServerDown", "git"),),
    ),
    "calls wait": AlertCase(
        {**WELL, 'carpool_calls_waiting{server="git"}': "21x40"}, (("CarpoolCallsWait", "git"),)
    ),
    "slow calls": AlertCase(
        {**WELL,
         'carpool_call_duration_seconds_bucket{server="git",part="total",le="30.0"}': "0+50x40",
         'carpool_call_duration_seconds_bucket{server="git",part="total",le="60.0"}': "0+60x40",
         'carpool_call_duration_seconds_bucket{server="git",part="total",le="+Inf"}': "0+60x40"},
        (("CarpoolCallsSlow", "git"),),
    ),
}  # fmt: skip


def unit_test(case: AlertCase) -> dict[str, Any]:
    """One case in the form of `promtool test rules`."""
    rules = [
        {"eval_time": "30m", "alertname": name, "exp_alerts": [
            {"exp_labels": {**LABELS[name], **({"server": server} if server else {})},
             "exp_annotations": {"summary": summary(name, server)}}
            for fired, server in case.fires if fired == name
        ]}
        for name in expressions()
    ]  # fmt: skip
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": rules}


LABELS: Final = {
    name: {"severity": severity}
    for name, severity in re.findall(
        r"- alert: (\w+)\n.*?severity: (\w+)", RULES.read_text(encoding="utf-8"), re.DOTALL
    )
}


def summary(alert: str, server: str) -> str:
    """The summary of an alert for a server."""
    (text,) = re.findall(
        rf'- alert: {alert}\n.*?summary: "([^"]*)"', RULES.read_text(encoding="utf-8"), re.DOTALL
    )
    return str(text).replace("{{ $labels.server }}", server)


@behaviour("metrics:alerts")
@pytest.mark.parametrize("case", CASES)
def test_prometheus_fires_the_alerts_of_a_case_and_no_others(case: str, tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool is installed here (Debian: apt install prometheus)")
    file = tmp_path / "case.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [unit_test(CASES[case])]}))
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
