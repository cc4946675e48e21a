"""`carpool check --probe`: do sessions that share one instance of a server see each other's state?

Owns which calls are made (never one of a tool that may change something, unless the user names it), what the
outcome is called, and that the running carpool hears of it. The experiment is `run`'s, the judgement
`judge`'s.
Exit codes: 0 the probe came to a conclusion, whichever; 1 it did not; 2 it could not begin.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import click
import msgspec

from carpool.control.control_client import AnsweredError, ControlClient, ControlClientError
from carpool.control.place import runtime_place
from carpool.launcher.runtime_place import RuntimePlace
from carpool.launcher.up import environment_in_force
from carpool.probe.config import probe_config
from carpool.probe.judge import ComparedAnswer, Outcome, Result, judge, result_of
from carpool.probe.run import ProbeCall, ProbedTool, ProbeError, ProbeRun
from carpool.terminal import display, end_signals
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import (
    ConfigFile,
    env_file_path,
    find_config_file,
    home_of,
    load_config,
)
from carpool_protocol.config.schema.model import Config
from carpool_protocol.config.text.jsonc import JsonValue
from carpool_protocol.config.text.problems import did_you_mean, no_such_server

MEANS: dict[Outcome, str] = {
    "agreed": "agreed: both sessions got what a private instance answers",
    "diverged": "diverged: a session saw the state of the other one",
    "not_deterministic": "not counted: private instances do not answer it alike either",
    "failed": "not counted: it was answered with errors only",
}
HOW = "name calls with `--call TOOL --args JSON` (each is made several times, so none that does harm)"


Entry = Mapping[str, JsonValue]
"""A server as it is written, in our keys."""


class CannotBeginError(Exception):
    """Raised if the probe may make no call; the text says why, and what to do."""


class Experiment(Protocol):
    """Interface of an open `ProbeRun`."""

    def run_private(self, tries: Sequence[ProbeCall], runs: int) -> list[list[ComparedAnswer]]: ...

    def run_shared(self, tries: Sequence[ProbeCall]) -> list[list[ComparedAnswer]]: ...


def probe(server: str, wished: Sequence[ProbeCall], file: str | None, *, as_json: bool) -> None:
    """The whole of it. Ends the verb."""
    place = runtime_place()
    where, config, entry = _configured(place, server, file)
    logins = paths.logins_dir(paths.state_dir(os.environ, place.directory))
    found = _run_experiment(server, wished, config, entry, logins, as_json=as_json)
    result: Result = found["result"]
    found["recorded"], found["note"] = record(place, where.path, server, found)
    if as_json:
        print_json(found)
    else:
        click.echo(conclusion(server, found))
    if result == "inconclusive":
        raise click.exceptions.Exit(EXIT_FAILED)


def choose(server: str, tools: Sequence[ProbedTool], wished: Sequence[ProbeCall]) -> list[ProbeCall]:
    """The calls to make: those that the user names, else what is safe by the server's own word. Raises
    `CannotBeginError`.
    """
    known = [tool.name for tool in tools]
    chosen = []
    for each in wished:
        name = each.tool if each.tool in known else each.tool.removeprefix(f"{server}__")
        if name not in known:
            meant = did_you_mean(name, known)
            hint = f"did you mean {meant!r}?" if meant else f"it has {', '.join(known)}"
            raise CannotBeginError(f"{server} has no tool {each.tool!r}; {hint}")
        chosen.append(ProbeCall(name, each.arguments))
    chosen = chosen or [ProbeCall(tool.name) for tool in tools if tool.reads and tool.bare]
    if not chosen:
        raise CannotBeginError(
            f"no tool of {server} says that it only reads (readOnlyHint) and needs no argument, so none is "
            f"tried unasked; {HOW}"
        )
    return chosen


def conclusion(server: str, found: dict[str, Any]) -> str:
    """The result and what it means, for people."""
    rows = [[each["tool"], MEANS[each["outcome"]]] for each in found["calls"]]
    parts = [display.columns(["CALL", "OUTCOME"], rows)]
    match found["result"]:
        case "diverged":
            parts.append(
                f"{server} keeps state that sessions of one instance share, so each agent should have an "
                "instance of its own."
            )
        case "agreed":
            parts.append(
                f"Nothing speaks against sharing {server}. That holds for what was tried: a tool that "
                f"changes something and was not tried may still keep state; {HOW}."
            )
        case _:
            parts.append(f"That shows nothing about {server}: no call could be compared; {HOW}.")
    parts.append(found["note"])
    return "\n\n".join(parts)


# --- before, and the experiment -------------------------------------------------------------------------


def _configured(place: RuntimePlace, server: str, file: str | None) -> tuple[ConfigFile, Config, Entry]:
    """The configuration (the named file, else the running carpool's, else the user's) and the server."""
    where = find_config_file(
        environment_in_force(place.directory), os.path.expanduser(file) if file else None
    )
    loaded = load_config(where)
    if loaded.config is None:
        fail("\n".join(problem.render() for problem in loaded.problems), EXIT_USAGE)
    servers = {str(name): each for name, each in loaded.config.servers.items()}
    if server not in servers:
        fail(f"{no_such_server(server, servers)} (in {where.path})", EXIT_USAGE)
    if servers[server].is_offline:
        fail(
            f"{server} is a list of tools (`tools_file`) with nothing to run: nothing can be tried",
            EXIT_USAGE,
        )
    return where, loaded.config, loaded.written[servers[server].name]


def _run_experiment(
    server: str, wished: Sequence[ProbeCall], config: Config, entry: Entry, logins: str, *, as_json: bool
) -> dict[str, Any]:
    """Run the experiment to its end, and end what it started, however it went."""
    end_signals.interrupt()
    bench = ProbeRun(logins, lambda text: _step(text, as_json))
    problem, code = "", EXIT_FAILED
    outcomes: list[Outcome] = []
    tries: list[ProbeCall] = []
    try:
        _step(f"starting a private carpool with {server} in it", as_json)
        tools = bench.open(probe_config(entry, env_file_path(config, home_of(os.environ))))
        tries = choose(server, tools, wished)
        _say_calls(tries, unasked=not wished, as_json=as_json)
        outcomes = experiment(bench, tries)
    except ProbeError as error:
        problem = f"the probe of {server} came to no end: {error}"
    except CannotBeginError as error:
        problem, code = str(error), EXIT_USAGE
    finally:
        end_signals.hold_off()
        left = bench.close()
    if problem or left:
        fail("\n".join([problem, *left] if problem else left), code)
    return {
        "server": server,
        "result": result_of(outcomes),
        "calls": [
            {"tool": each.tool, "outcome": outcome} for each, outcome in zip(tries, outcomes, strict=True)
        ],
    }


def experiment(bench: Experiment, tries: Sequence[ProbeCall]) -> list[Outcome]:
    """Private, shared; and private once more where sessions seem to differ, for it may be the time."""
    private = bench.run_private(tries, 2)
    shared = bench.run_shared(tries)
    outcomes = judge(len(tries), private, shared)
    if "diverged" in outcomes:
        outcomes = judge(len(tries), [*private, *bench.run_private(tries, 1)], shared)
    return outcomes


def _say_calls(tries: Sequence[ProbeCall], *, unasked: bool, as_json: bool) -> None:
    names = ", ".join(dict.fromkeys(each.tool for each in tries))
    why = "; by the server's own word they only read, and they need no argument" if unasked else ""
    _step(f"trying {names}{why}", as_json)


def _step(text: str, as_json: bool) -> None:
    if not as_json:
        click.echo(display.printable(f"{text} …"), err=True)


# --- afterwards -----------------------------------------------------------------------------------------


def record(place: RuntimePlace, file: str, server: str, found: dict[str, Any]) -> tuple[bool, str]:
    """Tell the running carpool, if its configuration is `file`, what was found. Whether that was done, and a
    sentence about it.
    """
    if found["result"] == "inconclusive":
        return False, "Nothing was recorded."
    try:
        with ControlClient(place.directory, control=True) as door:
            status = msgspec.json.decode(door.request("carpool/status", {}))
            running = (status.get("config") or {}).get("file") or ""
            if os.path.realpath(running) != os.path.realpath(file):
                return False, (
                    f"Nothing was recorded: the carpool that runs here has another configuration ({running})."
                )
            kind = f"probe_{found['result']}"
            door.request(
                "carpool/testify", {"server": server, "kind": kind, "detail": detail(found["calls"])}
            )
    except ControlClientError as error:
        if error.no_broker:
            return False, (
                "Nothing was recorded, because carpool does not run here: start it with `carpool up "
                "--detach` and probe again."
            )
        return False, f"It could not be recorded: {error}"
    except AnsweredError as error:
        return False, f"It could not be recorded: {error}"
    return True, f"It is recorded, and holds for new placements; `carpool why {server}` tells what it led to."


def detail(calls: Sequence[dict[str, str]]) -> str:
    """The evidence in a few words, kept with the verdict: which tools, and what they showed."""
    by_outcome: dict[str, list[str]] = {}
    for each in calls:
        named = by_outcome.setdefault(each["outcome"], [])
        if each["tool"] not in named:
            named.append(each["tool"])
    return "; ".join(
        f"{outcome.replace('_', ' ')}: {', '.join(tools)}"
        for outcome, tools in by_outcome.items()
        if outcome in ("diverged", "agreed")
    )
