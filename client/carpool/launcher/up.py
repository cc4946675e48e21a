"""`carpool up`: its options, its environment, and how a detached one is started and waited for.

Owns what happens around a launcher's life, not the life itself (`launcher`).
Several starters may race: the launcher's lock decides, the losers wait for the socket.
Standard library only, so that the foreground launcher stays small.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from functools import partial

from carpool import import_path, launcher_lock, named_places
from carpool.launcher.child import messages_at_end
from carpool.launcher.cleanup import CLEAR_S
from carpool.launcher.http_address import split_address
from carpool.launcher.http_door import read_door_status
from carpool.launcher.http_handover import HandoverOffer, HttpHandover, take_offer
from carpool.launcher.http_refusal import refuse_handover
from carpool.launcher.launcher import DOOR_S, EXIT_FAILED, EXIT_OK, EXIT_USAGE, STOP_S, Launcher, accepts
from carpool.launcher.other_carpools import name_directory, other_carpool_text, other_carpools
from carpool.launcher.runtime_dir import RuntimeDirWatch
from carpool.launcher.runtime_place import RuntimePlace
from carpool.launcher.service_manager import RESTART_STATUS, ServiceManager, keep_variables
from carpool_protocol.bootstrap import paths, trusted_places
from carpool_protocol.bootstrap.paths import project_around
from carpool_protocol.files import private_files
from carpool_protocol.files.log_rotation import rotate
from carpool_protocol.runtime.node_join import NodeJoin, node_pid, read_join, write_join
from carpool_protocol.runtime.variables_pipe import pipe_with, read_pipe

START_S = 60.0
"""The longest wait for a start, by this process or another one."""
END_S = STOP_S + CLEAR_S + 5.0
"""The launcher's own time to end after a start that has failed, and a little more."""
_POLL_S = 0.05
_DESCRIPTORS = ("--ready-fd", "--variables-fd", "--restart-fd")
"""Options of carpool's own processes that name a descriptor they have inherited."""
_CHECKED = {"--stay", "--checked"}
"""Options of carpool's own processes that have checked the environment themselves (`trusted_places`)."""
_STARTED_BY_AGENT = (
    "carpool runs already; an agent has started it, so it ends when nobody has used it for `idle_exit_s`; "
    "`carpool down` first to keep it up"
)
_OUR_PACKAGES = ("carpool", "carpool_protocol", "carpool_broker", "carpool_supervisor")

USAGE = """usage: carpool up [--detach] [--config FILE] [--http HOST:PORT] [--cluster URL] [--node NAME]

Run carpool for this runtime directory until Ctrl-C or `carpool down`.
--detach  start it in the background and return when sessions are taken
--config  use this file instead of the user's carpool.json
--http    open the HTTP door there, above the configuration's `http`; also CARPOOL_HTTP
--cluster join the cluster at this URL, above the configuration's `cluster.url`, until `carpool down`;
          `new` starts a NATS server on this machine, whose URL `carpool cluster status` shows
--node    the name of this node there

Exit codes: 0; 1 it failed, or the HTTP door cannot open now (its port is taken); 2 usage or configuration,
also an address that is none (then nothing starts) and a public one with "tokens": false.
With --detach carpool runs without its door all the same, for agents on its socket: it opens the door as soon
as it can, and `carpool status` tells why it is not open. Without --detach and with --http it does not start.
"""


def up(arguments: list[str]) -> int:
    """Run the whole verb, with all its messages. Returns the exit code: 0, 1 failed, 2 usage, configuration,
    already up.
    """
    values, problem = _parse(arguments)
    if "--help" in values or problem:
        (sys.stderr if problem else sys.stdout).write(f"carpool: {problem}\n{USAGE}" if problem else USAGE)
        return EXIT_USAGE if problem else EXIT_OK
    try:
        if not values.keys() & _CHECKED:
            # A file that somebody has typed is his word; one that the environment names may be a project's.
            named = trusted_places.VARIABLES[1:] if "--config" in values else trusted_places.VARIABLES
            named_places.refuse_untrusted(os.environ, named)
        place = RuntimePlace()
    except (paths.NotPrivateError, trusted_places.UntrustedPlaceError) as error:
        _say(str(error))
        return EXIT_USAGE
    if place.note:
        _say(place.note)
    config = requested_config(values.get("--config", ""))
    http = values.get("--http", "")
    if "--quiet" in values:
        # An agent's program may have these from a project's file: one opens a door, the other writes files.
        for name in ("CARPOOL_HTTP", "CARPOOL_PROFILE"):
            os.environ.pop(name, None)
    if "--stay" in values:
        ready_fd, restart_fd = (int(values.get(name, "-1")) for name in ("--ready-fd", "--restart-fd"))
        variables, ends_idle = _handed_variables(values), "--ends-idle" in values
        return _stay(place, config, ready_fd, http, variables, restart_fd=restart_fd, ends_idle=ends_idle)
    http = http or os.environ.get("CARPOOL_HTTP", "")
    earlier = (read_join(place.directory), node_pid(place.directory))
    if why := _why_no_address(http) or _join_cluster(place.directory, values):
        _say(why)
        return EXIT_USAGE
    if "--detach" not in values:
        # A new program: in the daemon's environment, and without what finding that out took.
        command = [sys.executable, "-P", "-m", "carpool.launcher", "--stay"]
        command += ["--config", config] if config else []
        command += ["--http", http] if http else []
        command += _inherited(_pipe_with(_of_operator(config)))
        environ = daemon_environment(place.directory)
        keep_variables(os.environ, environ)
        os.execve(sys.executable, command, environ)  # noqa: S606 - no shell wanted
    # Shims and clients say `--quiet`: they bring carpool back, or up, for their agent and choose nothing.
    if "--quiet" in values:
        return _bring_up_quietly(place)
    return _detach(place, config, http, earlier if values.keys() & {"--cluster", "--node"} else None)


def _bring_up_quietly(place: RuntimePlace) -> int:
    """Bring carpool up for a carrier, and tell it of others that run with the same configuration. Returns the
    exit code.
    """
    code, text = bring_up(place)
    if text:
        _say(text)
    held = launcher_lock.holder(place.directory) if code == EXIT_OK else None
    if held is not None and held.file:
        for other in other_carpools(os.environ, place.directory, held.file):
            _say(other_carpool_text(other))
    return code


def _report_node(directory: str, earlier: NodeJoin, earlier_pid: int) -> int:
    """Say if the node has joined its cluster. Returns the exit code. `earlier`: what was asked for before."""
    from carpool.launcher.node_outcome import wait_for_node  # here: the launcher stays without it

    outcome = wait_for_node(directory, earlier_pid if read_join(directory) != earlier else 0)
    if not outcome.has_joined:
        _say(outcome.text)
        return EXIT_FAILED
    sys.stdout.write(f"{outcome.text}\n")
    return EXIT_OK


def _join_cluster(directory: str, values: dict[str, str]) -> str:
    """Note the cluster of the command line, if it names one. Returns why that cannot be; empty if it can."""
    url, node = values.get("--cluster", ""), values.get("--node", "")
    if not url and not node:
        return ""
    from carpool_protocol.config.schema.settings_cluster import check_cluster_url, check_node_name

    if url and (why := check_cluster_url(url)):
        return f"--cluster {why}"
    if node and (why := check_node_name(node)):
        return f"--node {why}"
    if not node_pid(directory):  # what a process that has ended says is no outcome of this one
        with contextlib.suppress(OSError):
            os.unlink(paths.node_file(directory))
    write_join(directory, NodeJoin(url, node))
    return ""


def _why_no_address(http: str) -> str:
    """Return why no door can be at `http`; empty if it is an address, or none is asked for."""
    try:
        if http:
            split_address(http)
    except ValueError as error:
        return str(error)
    return ""


def _detach(place: RuntimePlace, config: str, http: str, earlier: tuple[NodeJoin, int] | None) -> int:
    """Run `carpool up --detach`. Returns the exit code. `earlier`: the cluster and the node's process from
    before; None: no cluster is asked for.
    """
    code, text = bring_up(place, config, http=http, explicit=True)
    if code != EXIT_OK:
        _say(text)
        return code
    url, why, code = _door_outcome(place.directory, http)
    for said in filter(None, (text, "" if why in text else why)):
        _say(said)
    if not text and not why:
        sys.stdout.write(f"carpool is up in {place.directory}{f', MCP is spoken at {url}' if url else ''}\n")
    return code if code != EXIT_OK or earlier is None else _report_node(place.directory, *earlier)


def _door_outcome(directory: str, http: str) -> tuple[str, str, int]:
    """Return the URL of the requested door, or why it is not open, and the exit code. `http` is the
    requested address; empty: the configuration decides whether there is a door.
    """
    holder = launcher_lock.holder(directory)
    if http and holder is not None and holder.http != http:
        return "", "", EXIT_FAILED  # `_other_config` has the sentence
    deadline = time.monotonic() + DOOR_S
    while (door := read_door_status(directory)) is None and http and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if door is None:
        late = f"the HTTP door at {http} has not opened yet; see `carpool status`"
        return ("", late, EXIT_FAILED) if http else ("", "", EXIT_OK)
    if door.url:
        return door.url, "", EXIT_OK
    return "", door.problem, EXIT_FAILED if door.retried else EXIT_USAGE


def requested_config(option: str = "") -> str:
    """Return the file that `--config` or `$CARPOOL_CONFIG` names, absolute; empty for the user's own. The
    starter resolves it, because the daemon has no CARPOOL_CONFIG and another directory.
    """
    config = option or os.environ.get("CARPOOL_CONFIG", "")
    return os.path.abspath(os.path.expanduser(config)) if config else ""


def environment_in_force(directory: str) -> dict[str, str]:
    """Return the environment of a verb, with CARPOOL_CONFIG naming the file of the carpool in `directory`,
    so that every verb works on the file in force. A CARPOOL_CONFIG of the verb itself goes first.
    """
    held = None if os.environ.get("CARPOOL_CONFIG") else launcher_lock.holder(directory)
    return {**os.environ, **({"CARPOOL_CONFIG": held.config} if held is not None and held.config else {})}


def bring_up(
    place: RuntimePlace,
    config: str | None = None,
    wait_s: float = START_S,
    http: str | None = None,
    *,
    explicit: bool = False,
    ends_idle: bool | None = None,
    restart_fd: int = -1,
) -> tuple[int, str]:
    """Have carpool run in the background: (0, "") when sessions are taken, else a code and the reason.

    With code 0 a text is a warning. `config`, and `http`, where its HTTP door is to be; None: as the launcher
    had it that was killed here, so that sessions go on with the same servers and rights, else as
    CARPOOL_CONFIG and CARPOOL_HTTP say. `explicit`: a person or a service says so, and servers with
    `auto_connect` get their variables from this environment. `ends_idle`: it ends once nobody has used it for
    a while; None: as the killed launcher, else unless it is explicit. `restart_fd`: the lock of the restart
    that the caller does (`RestartLock.fd`), which the launcher holds as well until it runs.
    """
    deadline = time.monotonic() + wait_s
    while True:
        killed = launcher_lock.killed_holder(place.directory)
        before = (
            (killed.config, killed.http)
            if killed
            else (requested_config(), os.environ.get("CARPOOL_HTTP", ""))
        )
        wished = before[0] if config is None else config
        door = before[1] if http is None else http
        if accepts(place.directory):
            return EXIT_OK, _other_config(place, wished, door, explicit=explicit)
        if launcher_lock.holder(place.directory) is None:
            variables = _of_operator(wished) if explicit else b""
            if ends_idle is None:
                ends_idle = killed.ends_idle if killed and not explicit else not explicit
            code, text = _start(
                place, wished, door, deadline, variables, restart_fd=restart_fd, ends_idle=ends_idle
            )
            if code is not None:
                return code, text
        if time.monotonic() >= deadline:
            return EXIT_FAILED, (
                f"carpool took no session within {wait_s:.0f} s; see `carpool logs --daemon`"
            )
        time.sleep(_POLL_S)


def daemon_environment(directory: str) -> dict[str, str]:
    """Return the environment of the daemon's processes: without what belongs to the starter (docs/rules.md,
    rule 13), with the places.
    """
    from carpool_protocol.config.schema.environment import scrub  # here: the launcher stays without it

    environ = dict(scrub(os.environ))
    # Neither we nor servers are to find their files in a project that has set the variable.
    for name in [
        each for each in environ if each.startswith("XDG_") and each.endswith(("_HOME", "_RUNTIME_DIR"))
    ]:
        if not os.path.isabs(environ[name]) or project_around(environ[name], paths.home_dir(environ)):
            del environ[name]
    # For whoever looks into carpool itself: invariants checked after every event, profiles at the end.
    for_us = ("CARPOOL_CHECK", "CARPOOL_JOURNAL", "CARPOOL_PROFILE")
    environ |= {name: os.environ[name] for name in for_us if name in os.environ}
    environ[paths.RUNTIME_VARIABLE] = directory
    environ[paths.STATE_VARIABLE] = paths.state_dir(os.environ, directory)
    # A source tree on PYTHONPATH is how carpool itself is found when it is not installed.
    ours = [
        entry for entry in import_path.trusted_entries(os.environ.get("PYTHONPATH", "")) if _holds_us(entry)
    ]
    if ours:
        environ["PYTHONPATH"] = os.pathsep.join(ours)
    return environ


def _handed_variables(values: dict[str, str]) -> bytes:
    """Return the operator's variables from the starter of this launcher; empty if there are none."""
    return read_pipe(int(values["--variables-fd"])) if "--variables-fd" in values else b""


def _of_operator(config: str) -> bytes:
    from carpool.launcher.operator_variables import (
        variables_of_operator,
    )  # here: the launcher stays without it

    return variables_of_operator(os.environ, config)


def _inherited(fd: int) -> list[str]:
    if fd < 0:
        return []
    os.set_inheritable(fd, True)
    return ["--variables-fd", str(fd)]


def _pipe_with(variables: bytes) -> int:
    """Return a pipe from which the launcher reads them; -1 if there are none, or if they are too large."""
    if not variables:
        return -1
    try:
        return pipe_with(variables)
    except OSError:
        _say("the variables of servers with auto_connect are too large together: none of them is passed on")
        return -1


def _stay(
    place: RuntimePlace,
    config: str,
    ready_fd: int,
    http: str,
    variables: bytes,
    *,
    restart_fd: int,
    ends_idle: bool,
) -> int:
    """Become the launcher, in the environment that `daemon_environment` made."""
    service_manager = ServiceManager(os.environ)
    try:
        paths.ensure_private(place.logs, paths.STATE_VARIABLE)
    except paths.NotPrivateError as error:
        _say(str(error))
        return EXIT_USAGE
    take = partial(
        launcher_lock.take_lock,
        place.directory,
        config,
        http,
        ends_idle=ends_idle,
        is_service=service_manager.is_there,
    )
    try:
        held = take()
    except OSError as error:
        text = f"cannot write {paths.lock_file(place.directory)}: {error.strerror}"
        _say(text)
        if ready_fd >= 0:  # the log, where that went, may be on the same full disk
            os.write(ready_fd, f"failed {EXIT_FAILED}\n{text}".encode())
        return EXIT_FAILED
    if held is None:
        holder = launcher_lock.holder(place.directory)
        who = f"pid {holder.pid}" if holder and holder.pid else "another process"
        _say(f"carpool already runs in {place.directory} ({who}); `carpool down` ends it")
        return EXIT_USAGE
    name_directory(place)
    if restart_fd >= 0:
        os.close(restart_fd)  # `carpool down` finds this launcher by its own lock now
    watch = RuntimeDirWatch(place.directory, place.logs, take, held)
    offer, code = None, EXIT_FAILED
    try:
        mark = {paths.DAEMON_MARK: paths.runtime_id(place.directory)}
        environ = mark | dict(os.environ) | mark  # first, where each search finds it
        launcher = Launcher(
            place.directory,
            config,
            environ,
            ready_fd=ready_fd,
            http=http,
            place=watch,
            variables=variables,
            ends_idle=ends_idle,
            service_manager=service_manager,
            needs_door=bool(http) and ready_fd < 0,  # on somebody's terminal, or under a service manager
            handover=HttpHandover([*take_offer(place.directory), *service_manager.take_given()]),
        )
        code = launcher.run()
        if launcher.handover.descriptors and watch.is_ours():
            offer = _offer(place.directory, launcher.handover)
    finally:
        watch.release(is_awaited=code == RESTART_STATUS)
    if offer is not None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, signal.SIG_DFL)
        offer.serve()
    refuse_handover(launcher.handover, environ)  # what nobody has taken
    return code


def _offer(directory: str, handover: HttpHandover) -> HandoverOffer | None:
    """Offer the HTTP door's handover to the next launcher. None: that cannot be, and nothing listens."""
    try:
        return HandoverOffer(directory, handover)
    except OSError as error:
        _say(f"the HTTP door's socket cannot be handed over: {error.strerror}")
        return None


def _start(
    place: RuntimePlace,
    config: str,
    http: str,
    deadline: float,
    variables: bytes,
    *,
    restart_fd: int,
    ends_idle: bool,
) -> tuple[int | None, str]:
    """Start a launcher and return its outcome. Code `None`: another one was faster."""
    try:
        paths.ensure_private(place.logs, paths.STATE_VARIABLE)
    except paths.NotPrivateError as error:
        return EXIT_USAGE, str(error)
    log_path = paths.daemon_log(place.logs, "launcher")
    rotate(log_path)
    try:
        log_fd = private_files.open_to_append(log_path)
    except OSError as error:
        return EXIT_FAILED, f"cannot write the log {log_path}: {error.strerror}"
    hear, tell = os.pipe()
    handed = _pipe_with(variables)
    try:
        with open(log_fd, "ab") as log:
            command = [
                sys.executable,
                "-P",
                "-m",
                "carpool.launcher",
                "--stay",
                "--ready-fd",
                str(tell),
            ]
            command += ["--variables-fd", str(handed)] if handed >= 0 else []
            command += ["--restart-fd", str(restart_fd)] if restart_fd >= 0 else []
            command += ["--ends-idle"] if ends_idle else []
            process = subprocess.Popen(
                [*command, *(["--config", config] if config else []), *(["--http", http] if http else [])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=daemon_environment(place.directory),
                pass_fds=[fd for fd in (tell, handed, restart_fd) if fd >= 0],
                start_new_session=True,  # it outlives the process group of the agent that needed it
            )
        os.close(tell)
        tell = -1
        said = _read_outcome(hear, deadline)
    finally:
        for fd in (hear, tell, handed):
            if fd >= 0:
                os.close(fd)
    first, _, text = said.partition("\n")
    if first == "ready":
        process.returncode = 0  # it lives on; nobody waits for it here
        return EXIT_OK, text
    if first.startswith("failed "):
        _exit_code(process)
        return int(first[7:]), text
    if time.monotonic() >= deadline:
        process.returncode = 0
        return None, ""
    # Nothing said and gone: it lost the race for the lock, or could not even begin.
    if _exit_code(process) == EXIT_USAGE and launcher_lock.holder(place.directory) is not None:
        return None, ""
    return (
        EXIT_FAILED,
        f"the launcher did not start; its log {log_path} ends:\n{messages_at_end(log_path, 0, 2000)}",
    )


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a launcher that ends; None: it still ends after `END_S`."""
    try:
        return process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # nobody waits for it here
        return None


def _read_outcome(fd: int, deadline: float) -> str:
    """Return everything that is written to `fd` until its end or the deadline."""
    said = b""
    while select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = os.read(fd, 65536)
        if not data:
            break
        said += data
    return said.decode("utf-8", "replace")


def _other_config(place: RuntimePlace, config: str, http: str, *, explicit: bool) -> str:
    """Return what differs between the carpool that runs and the one that is asked for; empty if nothing."""
    holder = launcher_lock.holder(place.directory)
    if holder is not None and http and holder.http != http:
        return "carpool already runs without that HTTP door; `carpool down` first to open it"
    if not config or holder is None or holder.config == config:
        return _STARTED_BY_AGENT if explicit and holder is not None and holder.ends_idle else ""
    return (
        f"carpool already runs with {holder.config or 'the default configuration'}, and keeps it; "
        f"`carpool down` first to use {config}"
    )


def _holds_us(entry: str) -> bool:
    return any(os.path.isdir(os.path.join(entry, name)) for name in _OUR_PACKAGES)


def _parse(arguments: list[str]) -> tuple[dict[str, str], str]:
    values: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in {"-h", "--help"}:
            return {"--help": ""}, ""
        if name in {"--detach", "--quiet", "--stay", "--checked", "--ends-idle"} and not equals:
            values[name] = ""
        elif name in {"--config", *_DESCRIPTORS, "--http", "--cluster", "--node"}:
            if not equals and not rest:
                return values, f"{name} needs a value"
            values[name] = value if equals else rest.pop(0)
        else:
            return values, f"`carpool up` does not know {name!r}"
    for name in _DESCRIPTORS:
        if not values.get(name, "0").isdecimal():
            return values, f"{name} needs a number"
    return values, ""


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a log on a full disk
        sys.stderr.write(f"carpool: {text}\n")
