"""The configuration that a verb's environment names, beside the one that the running carpool has.

Owns the facts that a verb adds to the broker's (`config.here`, `config.elsewhere`) and the sentences about
them. The broker knows neither: they depend on the environment of whoever asks. Refuses to know how a file is
found (`paths`) and how another carpool is found (`other_carpools`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from carpool import launcher_lock
from carpool.launcher.other_carpools import OtherCarpool, other_carpool_text, other_carpools
from carpool.terminal import display
from carpool_protocol.bootstrap import paths

Facts = dict[str, Any]


def with_config_here(facts: Facts, environ: Mapping[str, str], directory: str) -> Facts:
    """Return the broker's facts with those of this environment. `directory`: the runtime directory."""
    config = facts.get("config") or {}
    running, expected = str(config.get("file") or ""), paths.expected_config_file(environ)
    is_other = bool(running and expected) and not paths.is_same_file(running, expected)
    elsewhere = other_carpools(environ, directory, running) if running else []
    more = {"here": expected if is_other else "", "elsewhere": [each._asdict() for each in elsewhere]}
    return {**facts, "config": {**config, **more}}


def way_to_take(environ: Mapping[str, str], directory: str) -> str:
    """Return the commands that make carpool run with the configuration of this environment."""
    if is_named(environ, directory):
        return "`carpool down` and then `carpool up` here"
    return "`carpool restart --all` here"


def is_named(environ: Mapping[str, str], directory: str) -> bool:
    """True if somebody has named a file, for the carpool that runs or here: then two files may be meant."""
    held = launcher_lock.holder(directory)
    return bool((held is not None and held.config) or environ.get(paths.CONFIG_VARIABLE))


def not_in_force(file: str, directory: str) -> str:
    """Return the warning that carpool runs with another configuration than `file`; empty: it does not."""
    held = launcher_lock.holder(directory)
    if held is None or not held.file or paths.is_same_file(held.file, file):
        return ""
    return (
        f"carpool runs with the configuration {held.file}, and not with {file}: `carpool status` says how it "
        "takes this one"
    )


def config_lines(facts: Mapping[str, Any], environ: Mapping[str, str], directory: str) -> Iterator[str]:
    """Yield what an operator should know of other configurations and other carpools."""
    config = facts.get("config") or {}
    running, here = display.printable(str(config.get("file") or "")), config.get("here")
    if here:
        yield (
            f"carpool runs with the configuration {running}, and not with {display.printable(here)}, which "
            f"is that of this terminal: its servers are not here. {way_to_take(environ, directory)} takes it"
        )
    yield from (f"{text}: its servers are not here" for text in agents_elsewhere(facts))
    for other in config.get("elsewhere") or ():
        yield display.printable(other_carpool_text(OtherCarpool(**other)))


def agents_elsewhere(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each file that agents here expect in place of the one in force."""
    by_file: dict[str, list[str]] = {}
    for session in facts.get("sessions") or ():
        if file := session.get("other_config"):
            by_file.setdefault(file, []).append(f"{session.get('agent') or 'an agent'} ({session['id']})")
    for file, agents in by_file.items():
        expects = "expects" if len(agents) == 1 else "expect"
        yield display.printable(f"{', '.join(agents)} {expects} the configuration {file}")
