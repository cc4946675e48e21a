"""The verbs that change what runs: `down`, `start`, `stop`, `restart`, `reload`.

Owns the ending of a daemon from outside: only a launcher that really holds the lock is signalled, and the
verb returns when nothing is left and no other verb is about to start it again. `up` has its own file.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

from carpool import launcher_lock
from carpool.check.server_path import comparisons
from carpool.cli.late_starts import late_starts_told
from carpool.cli.main import (
    RETURN_S,
    broker_request,
    broker_request_or_fail,
    json_option,
    open_session,
    refused,
    with_server_name,
)
from carpool.control.control_client import AnsweredError, ControlClient
from carpool.control.place import runtime_place
from carpool.launcher import processes
from carpool.launcher.cleanup import CLEAR_S
from carpool.launcher.http_handover import HttpHandover, take_offer
from carpool.launcher.http_refusal import refuse_handover
from carpool.launcher.launcher import DRAINED_S, HOLD_S, RESTART, STOP_S, accepts
from carpool.launcher.restart_lock import RestartLock, write_down_file
from carpool.launcher.runtime_place import RuntimePlace
from carpool.launcher.up import START_S, bring_up, daemon_environment, requested_config
from carpool.terminal import display
from carpool.terminal.verb_output import EXIT_FAILED, EXIT_USAGE, fail, print_json
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.load import find_config_file, home_of, load_layer
from carpool_protocol.runtime.search_path import missing_program

DOWN_S = STOP_S + CLEAR_S + 5
"""The launcher's own time to stop, and a little more."""
OTHER_RESTART_S = HOLD_S + DRAINED_S + DOWN_S + START_S
"""The longest wait for a restart by another verb."""
SERVICE_GAP_S = 5.0
"""A service manager starts carpool again within this time (`RestartSec` of the unit is half a second)."""
OPERATE_S = 400.0
"""A first start may install packages for minutes (rule 2)."""
_POLL_S = 0.02


@click.command()
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), default=DOWN_S, show_default=True, help="Seconds."
)
@json_option
def down(timeout_s: float, as_json: bool) -> None:
    """End carpool and every server it runs. Returns when nothing is left."""
    place = runtime_place()
    was_running = bring_down(place, timeout_s)
    if as_json:
        print_json({"was_running": was_running, "directory": str(place.directory)})
    else:
        click.echo(f"carpool {'is down' if was_running else 'was not running'} in {place.directory}")


@click.command()
@click.argument("servers", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every configured server.")
@json_option
def start(servers: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Start SERVERS now instead of on first use, also those that were stopped or have given up."""
    _operate("start", _chosen_servers(servers, everything), as_json)


@click.command()
@click.argument("servers", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every configured server; carpool itself stays.")
@json_option
def stop(servers: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Stop SERVERS: their tools leave every list until they are started again."""
    _operate("stop", _chosen_servers(servers, everything), as_json)


@click.command()
@click.argument("servers", nargs=-1, required=True)
@json_option
def pause(servers: tuple[str, ...], as_json: bool) -> None:
    """Pause SERVERS: new calls wait until `carpool resume`, at most for `wait_s`; open calls go on."""
    _set_paused(servers, paused=True, as_json=as_json)


@click.command()
@click.argument("servers", nargs=-1, required=True)
@json_option
def resume(servers: tuple[str, ...], as_json: bool) -> None:
    """Resume SERVERS that `carpool pause` has paused: waiting calls run."""
    _set_paused(servers, paused=False, as_json=as_json)


def _set_paused(servers: tuple[str, ...], *, paused: bool, as_json: bool) -> None:
    with open_session(control=True) as client:
        answer = broker_request_or_fail(client, "carpool/pause", {"servers": list(servers), "paused": paused})
    _print_results(answer.get("results") or [], as_json)


@click.command()
@click.argument("servers", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Carpool itself, with everything it runs.")
@json_option
def restart(servers: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Restart SERVERS. With --all also carpool itself: after an update, agents go on with the new one.

    With --all carpool waits up to half a minute for calls that are at their servers, and ends those that
    still run then.
    """
    chosen = _chosen_servers(servers, everything)
    if chosen is not None:
        _operate("restart", chosen, as_json)
        return
    restart_daemon()
    if as_json:
        print_json([{"server": "carpool", "ok": True, "text": "restarted"}])
    else:
        click.echo("carpool: restarted")


def restart_daemon() -> None:
    """End carpool, and start it with the configuration and the address that it had; fail the verb if not.

    It waits for another verb that restarts carpool. A carpool that was started meanwhile is new enough.
    """
    place = runtime_place()
    before = launcher_lock.holder(place.directory) or launcher_lock.killed_holder(place.directory)
    config = before.config if before else requested_config()
    _refuse_broken(config)
    try:
        lock = RestartLock(place.directory)
    except OSError as error:
        fail(f"cannot write {paths.restart_file(place.directory)}: {error.strerror}")
    with lock:
        if not lock.take(OTHER_RESTART_S):
            fail(f"another `carpool restart --all` still runs after {OTHER_RESTART_S:g} s")
        now = launcher_lock.holder(place.directory)
        is_new = now is not None and now.pid != (before.pid if before else 0)
        if not (is_new and accepts(place.directory)):
            _replace_daemon(place, before, config, lock)


def _replace_daemon(
    place: RuntimePlace, before: launcher_lock.LockHolder | None, config: str, lock: RestartLock
) -> None:
    if not lock.is_down_wanted():
        _end_for_restart(place)
    if before is not None and before.is_service and _is_back(place, lock):
        return
    if lock.is_down_wanted():
        fail("`carpool down` was said while carpool was restarted: it stays down")
    code, text = bring_up(
        place,
        config,
        http=before.http if before else None,
        explicit=True,
        ends_idle=before is not None and before.ends_idle,
        restart_fd=lock.fd,
    )
    if code:
        fail(text, code if code == EXIT_USAGE else EXIT_FAILED)
    if text:
        click.echo(f"carpool: {display.printable(text)}", err=True)


def _is_back(place: RuntimePlace, lock: RestartLock) -> bool:
    """Wait for the service manager to start carpool again. False if it does not.

    After `carpool down` the lock stays taken a little longer: that verb ends what is started by then.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if accepts(place.directory):
            return True
        if lock.is_down_wanted():
            deadline = min(deadline, time.monotonic() + SERVICE_GAP_S)
        time.sleep(_POLL_S)
    return False


@click.command()
@json_option
def reload(as_json: bool) -> None:
    """Read the configuration again, now. A broken one is refused, and the last good one stays in force."""
    with open_session(control=True) as door:
        answer = broker_request_or_fail(door, "carpool/reload", {})
    problems = [str(problem) for problem in answer.get("problems") or []]
    warnings = [str(warning) for warning in answer.get("warnings") or []]
    if as_json:
        print_json({"ok": bool(answer.get("ok")), "problems": problems, "warnings": warnings})
    else:
        for problem in problems:
            click.echo(display.printable(problem), err=True)
        for warning in warnings:
            click.echo(display.wrapped_lines([f"warning: {warning}"]), err=True)
        click.echo("reloaded" if answer.get("ok") else "refused; the last good configuration stays in force")
    if not answer.get("ok"):
        raise click.exceptions.Exit(EXIT_USAGE)


def _refuse_broken(config: str) -> None:
    """End the verb if the configuration is broken.

    A running carpool would keep its last good configuration, and so would the next one. The user learns of
    the fault before agents have to wait for a restart.
    """
    loaded = load_layer(find_config_file(os.environ, config or None), home_of(os.environ)).loaded
    if loaded.config is None:
        said = "\n".join(each.render() for each in loaded.problems)
        fail(f"nothing is restarted while the configuration is broken:\n{said}", EXIT_USAGE)


def bring_down(place: RuntimePlace, timeout_s: float = DOWN_S) -> bool:
    """End the daemon of this place with all that is held for it until then. Returns as `end_daemon`."""
    was_running = end_daemon(place, timeout_s)
    launcher_lock.forget_killed_holder(place.directory)
    for path in paths.held_until_down(place.directory):
        with contextlib.suppress(OSError):
            os.unlink(path)  # of a launcher that was killed
    return was_running


def end_daemon(place: RuntimePlace, timeout_s: float) -> bool:
    """End the daemon of this place, and every running restart of it. Returns True if there was a daemon or
    a restart; the verb fails if they do not end.
    """
    write_down_file(place.directory)
    deadline = time.monotonic() + timeout_s
    told: set[int] = set()
    is_restarted = False
    with _restart_lock(place) as restart:
        while True:
            held = launcher_lock.holder(place.directory)
            if held is not None and held.pid not in {0, *told}:
                told.add(held.pid)
                _signal(held.pid, signal.SIGTERM)
            if held is None:
                has_lock = restart is None or restart.take()
                awaits = launcher_lock.is_awaited(place.directory, SERVICE_GAP_S)
                # That verb ends, or starts a launcher, which is ended then. So does a service manager.
                is_restarted |= not has_lock or awaits
                if has_lock and not awaits and _is_kept_down(place):
                    break
                if restart is not None:
                    restart.give_back()
            if time.monotonic() >= deadline:
                fail(_still_there(place, held, timeout_s))
            time.sleep(_POLL_S)
    _fail_with_leftovers(place)
    return bool(told) or is_restarted


@contextlib.contextmanager
def _restart_lock(place: RuntimePlace) -> Iterator[RestartLock | None]:
    """Yield the lock of restarts; None if it cannot be had: then no restart has it either."""
    try:
        lock = RestartLock(place.directory)
    except OSError:
        yield None
        return
    with lock:
        yield lock


def _is_kept_down(place: RuntimePlace) -> bool:
    """Drop the sockets offered to a next launcher, and keep the down file. False if a launcher runs."""
    with launcher_lock.kept_free(place.directory) as free:
        if free:
            offered = HttpHandover(take_offer(place.directory))  # of a launcher that waits for the next one
            refuse_handover(offered, daemon_environment(place.directory))
            if not os.path.lexists(paths.down_file(place.directory)):  # a launcher removed it as it started
                write_down_file(place.directory)
    return free


def _still_there(place: RuntimePlace, held: launcher_lock.LockHolder | None, timeout_s: float) -> str:
    """Return a sentence that names the process which has not ended in time."""
    if held is None:
        return (
            f"a `carpool restart --all` still runs after {timeout_s:g} s; end it, or say `carpool down` again"
        )
    if not held.pid:
        lock = paths.lock_file(place.directory)
        return (
            f"a process holds {lock} and has not written its pid there; `fuser {lock}` names it: end it first"
        )
    return f"carpool (pid {held.pid}) still stops after {timeout_s:g} s; see `carpool logs --daemon`"


def _end_for_restart(place: RuntimePlace) -> None:
    """End the daemon of this place, if there is one, once its open calls are answered."""
    held = launcher_lock.holder(place.directory)
    if held is None:
        _fail_with_leftovers(place)
        return
    timeout_s = HOLD_S + DRAINED_S + DOWN_S
    deadline = time.monotonic() + timeout_s
    if held.pid:
        _signal(held.pid, RESTART)
    while (now := launcher_lock.holder(place.directory)) is not None and now.pid in {0, held.pid}:
        if time.monotonic() >= deadline or not held.pid:
            fail(_still_there(place, held, timeout_s))
        time.sleep(_POLL_S)
    _fail_with_leftovers(place)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may just be ending
        os.kill(pid, number)


def _fail_with_leftovers(place: RuntimePlace) -> None:
    """Wait for the processes that outlived the launcher, and end the verb as failed if some are left."""
    left = processes.marked(paths.runtime_id(place.directory))
    # A launcher that was killed takes its processes with it, but not in the same moment.
    deadline = time.monotonic() + CLEAR_S
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = processes.marked(paths.runtime_id(place.directory))
    if left and launcher_lock.holder(place.directory) is None:
        listed = "\n".join(f"  {pid}  {display.one_line(command)}" for pid, command in left)
        fail(f"these processes are left; `carpool up` ends them when it starts:\n{listed}")
    if not left and launcher_lock.holder(place.directory) is None:
        for path in (
            paths.agents_socket(place.directory),
            paths.link_socket(place.directory),
            paths.door_file(place.directory),
        ):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # of a launcher that was killed


def _chosen_servers(servers: tuple[str, ...], everything: bool) -> list[str] | None:
    if everything and servers:
        raise click.UsageError("name servers or say --all, not both")
    if not everything and not servers:
        raise click.UsageError("name at least one server, or say --all")
    return None if everything else list(servers)


def _operate(verb: str, servers: list[str] | None, as_json: bool) -> None:
    starts = verb in {"start", "restart"}
    waiting = late_starts_told(runtime_place().directory, servers) if starts else contextlib.nullcontext()
    with open_session(control=True) as door:
        with waiting:
            answer = request_operation(door, {"verb": verb, "servers": servers})
        results: list[dict[str, Any]] = answer.get("results") or []
        more = missing_here(door, results)
    more += _faults_of_files(results) if verb == "start" else []
    _print_results(results, as_json, more)


def _faults_of_files(results: list[dict[str, Any]]) -> list[str]:
    """Return lines about files whose servers were not started: none was, or one was not found."""
    if results and all(each["ok"] for each in results):
        return []
    from carpool.check.file_faults import file_faults_here  # late: servers that start need no file

    return file_faults_here().splitlines()


def request_operation(client: ControlClient, params: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to `carpool/operate`.

    Carpool takes sessions before its supervisor is up, so this waits for the supervisor.
    """
    deadline = time.monotonic() + RETURN_S
    while True:
        try:
            return broker_request(client, "carpool/operate", params, OPERATE_S)
        except AnsweredError as error:
            if error.slug() != "supervisor_away" or time.monotonic() >= deadline:
                refused(error)
        time.sleep(_POLL_S)


def _print_results(results: list[dict[str, Any]], as_json: bool, more: Sequence[str] = ()) -> None:
    """Print one line for each server; the verb fails if one failed. `more`: lines for people."""
    if as_json:
        print_json(results)
    else:
        for each in results:
            said = with_server_name(each["server"], each["text"])
            shown = display.wrapped_lines([said if each["ok"] else f"carpool: {said}"])
            click.echo(shown, err=not each["ok"])
        for line in more:
            click.echo(display.wrapped_lines([line]), err=True)
    if not all(each["ok"] for each in results):
        raise click.exceptions.Exit(EXIT_FAILED)


def missing_here(client: ControlClient, results: list[dict[str, Any]]) -> list[str]:
    """Return lines about programs that servers do not find.

    They compare the PATH of servers with that of this terminal.
    """
    texts = [each["text"] for each in results if not each["ok"] and missing_program(each["text"])]
    path = broker_request_or_fail(client, "carpool/status", {}).get("path") if texts else None
    if path is None:
        return []
    said = os.pathsep.join(path["directories"])
    return [f"PATH of servers: {said}", *comparisons(texts, path["directories"], os.environ)]
