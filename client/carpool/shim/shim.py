"""The stdio shim: `carpool connect` and `carpool run`, one small process per agent.

Owns the way from an agent's pipes to the broker's socket: finds it (and starts
carpool when none runs), says who attaches, then pumps. Invariants:

- a line reaches the agent whole or not at all: what a dying broker left half is thrown away;
- when the broker dies the agent is attached to the next one and notices a pause (docs/decisions/0019): what
  that takes is imported only then;
- when the installed files have been replaced meanwhile, the process first becomes a shim of the version that
  is there now (docs/decisions/0041): nothing of ours is imported from the files of another version;
- an agent that closes its input gets the answers to all that it has sent; then the process ends;
- neither direction waits for the other, and none is polled while it cannot move;
- the agent's lines are never decoded, and of the broker's only the first is looked at;
- an agent that cannot be attached hears the reason as the answer to each of its requests (`refusal`,
  imported only then), and stderr has it too.

The standard library's smallest corner only, because there is one of these per
agent: `socket`, `signal`, `subprocess` and `json` would cost more than all the rest
(so their C halves are used, and `json` only to say why the broker refuses).
Refuses to know MCP.
"""

import os
import sys

from carpool import import_path
from carpool.shim.kept_lines import KeptLines
from carpool.shim.pump import AGENT_GONE, FINISHED, REFUSED, ShimPump, quote
from carpool_protocol.bootstrap import paths, peer_credentials, trusted_places
from carpool_protocol.bootstrap.carrier_contract import ATTACH_VERSION, NAMING_VERSION

try:
    from _socket import AF_UNIX, SOCK_STREAM, socket
except ImportError:
    from socket import AF_UNIX, SOCK_STREAM, socket  # type: ignore[assignment]  # the same class, by its long way

EXIT_FAILED, EXIT_USAGE, EXIT_NO_BROKER = 1, 2, 69
START_TRIES = 3
DEATHS = 5
"""The number of brokers in a row that may die without a word: our own lines may be the cause."""

LENGTH = "--tool-name-length"
HANDED_VARIABLE = "CARPOOL_SHIM_SESSION"
"""The number of the descriptor with the session of an earlier version's shim, which this process was."""

USAGE = {
    "connect": "usage: carpool connect [--workspace NAME|DIRECTORY] [--profile PROFILE]\n"
    "                       [--tool-name-length CHARACTERS]\n\n"
    "Attach an agent: speak MCP on stdin and stdout. Starts carpool when it does not run.\n"
    "The workspace is found from this directory, unless one is named. Names of tools are cut to\n"
    "CHARACTERS (32 to 64), for programs that put something before them.\n",
    "run": "usage: carpool run [--name NAME] [--profile PROFILE] [--tool-name-length CHARACTERS]\n"
    "                   [--] COMMAND [ARGUMENT...]\n\n"
    "Attach an agent to one server, COMMAND, with its tools' own names; the server is shared\n"
    "with everybody who runs the same command in the same directory and environment.\n",
}


class _EndedError(Exception):
    """SIGTERM or SIGINT."""


def main(verb: str, arguments: list[str]) -> int:
    """Be the shim. `verb` is `connect` or `run`. The exit code: 0, 2 usage or config, 69 no broker; 1: the
    agent has closed its input, and not all that it asked is answered.
    """
    kept, code = KeptLines(), 0
    try:
        _catch_signals()
        code, text = _main(verb, arguments, kept)
        if code:
            _leave(code, text, kept)
    except (_EndedError, KeyboardInterrupt):
        pass
    return code


def _main(verb: str, arguments: list[str], kept_lines: KeptLines) -> tuple[int, str]:
    """Attach the agent and pump. The exit code, and the reason where it is not 0."""
    options, command, problem = _parse(verb, arguments)
    if "help" in options:
        _print_help(verb)
        return 0, ""
    if problem:
        return EXIT_USAGE, f"{problem}\n{USAGE[verb].rstrip()}"
    directory, note = paths.find_runtime_dir(os.environ, os.getuid())
    if note:
        _say(note)
    if os.isatty(0):
        _say(
            f"programs start `carpool {verb}` and speak MCP with it; Ctrl-C ends it, `carpool help` says more"
        )
    try:
        _refuse_untrusted_places()
        paths.ensure_private(directory)
        session = _take_over(kept_lines)
        returns = session.mark != ""
        session.mark = session.mark or os.urandom(16).hex()
        session.hello = _attach_line(verb, options, command, session.mark)
    except (trusted_places.UntrustedPlaceError, paths.NotPrivateError, ValueError) as error:
        return EXIT_USAGE, str(error)
    return _serve(directory, session, _reconnect(directory, session) if returns else _reach(directory))


def _refuse_untrusted_places() -> None:
    """Raise `UntrustedPlaceError` if the environment names a place that is not followed."""
    try:
        trusted_places.refuse_untrusted(os.environ)
    except trusted_places.UntrustedPlaceError:
        from carpool import named_places  # late: few environments name a place in a project

        named_places.refuse_untrusted(os.environ)


class _Session:
    """The state of the session beside its lines. `mark`: empty before its first attach line."""

    def __init__(self, kept_lines: KeptLines) -> None:
        self.kept_lines = kept_lines
        self.mark = ""
        self.hello = b""
        """The attach line."""
        self.first = b""
        """The first bytes for the next broker; if empty, the attach line."""
        self.deaths = 0
        """Brokers in a row that died without a word."""
        self.untaken_bytes = 0
        """As the pump of the last broker counted them."""
        self.farewell = b""
        """The last broker's word that it ends."""
        self.agent_ended = False
        """The agent has closed its input."""


def _serve(directory: str, session: _Session, reached: "tuple[socket | None, int, str]") -> tuple[int, str]:
    """Serve until the agent or all brokers are gone. The exit code, and the reason where it is not 0."""
    code, text = _pump(directory, session, reached)
    if code == EXIT_NO_BROKER and session.agent_ended and session.kept_lines.attached:
        return EXIT_FAILED, f"{text}\nwhat has no answer yet is not answered any more"
    return code, text


def _pump(directory: str, session: _Session, reached: "tuple[socket | None, int, str]") -> tuple[int, str]:
    """Pump over one broker after the other. The exit code, and the reason where it is not 0."""
    kept_lines = session.kept_lines
    sock, code, text = reached
    while sock is not None:
        pump = ShimPump(sock, session.first or session.hello, kept_lines, mark=session.mark)
        outcome = pump.run()
        sock.close()
        session.agent_ended = pump.agent_ended
        if outcome in {AGENT_GONE, FINISHED}:
            return 0, ""
        if outcome == REFUSED:  # a broker is there: what it was told is wrong, or of another version
            return EXIT_USAGE, pump.refusal
        session.untaken_bytes, session.farewell = pump.untaken_bytes, pump.farewell
        session.deaths = 0 if kept_lines.has_told else session.deaths + 1
        if kept_lines.is_full or session.deaths > DEATHS:
            why = (
                "more was open than is kept for that"
                if kept_lines.is_full
                else "those before it died as well"
            )
            return EXIT_NO_BROKER, (
                f"the broker has gone away, and {why} (`carpool logs --daemon`)\n"
                "open calls may have been executed; connect the agent again, or start it again"
            )
        sock, code, text = _reconnect(directory, session)
    return code, text


def _reconnect(directory: str, session: _Session) -> "tuple[socket | None, int, str]":
    """A connection to the next broker; or the exit code and the reason."""
    if _own_file() != _STARTED_FROM:
        _hand_over(session)
    try:
        from carpool.shim import resume
    except ImportError:  # the files are just being replaced
        _hand_over(session)
        return None, EXIT_NO_BROKER, "carpool was updated; connect the agent again, or start it again"
    text, again = resume.read_farewell(session.farewell)
    if text and not again:
        return None, EXIT_NO_BROKER, text
    session.first = resume.resume(
        session.kept_lines, session.hello, again=again, untaken_bytes=session.untaken_bytes
    )
    waits = resume.awaits_answers(session.kept_lines)
    if session.agent_ended and not waits:
        return None, 0, ""
    return resume.connect_to_next_broker(directory, _start, again=again, waits=waits)


def _hand_over(session: _Session) -> None:
    """Run the version that is installed now in this process; it goes on with the session.

    Returns where that is not possible.
    """
    if not hasattr(os, "memfd_create"):  # not on Linux
        return
    facts = f"{session.mark} {session.deaths} {session.untaken_bytes} {len(session.farewell)}\n"
    left = memoryview(facts.encode() + session.farewell + session.kept_lines.pack())
    fd = os.memfd_create("carpool-shim", 0)  # without MFD_CLOEXEC: it is for what comes after `exec`
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    environ = {**os.environ, HANDED_VARIABLE: str(fd)}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environ)  # noqa: S606 - no shell
    except OSError:
        os.close(fd)


def _take_over(kept_lines: KeptLines) -> _Session:
    """The session that `_hand_over` has left to this process, or a new one.

    Raises `ValueError` where it is kept in the format of another version.
    """
    session = _Session(kept_lines)
    fd = os.environ.pop(HANDED_VARIABLE, "")
    if not fd:
        return session
    try:
        with open(int(fd), "rb") as file:
            session.mark, deaths, untaken, size = file.readline().decode().split()
            session.deaths, session.untaken_bytes = int(deaths), int(untaken)
            session.farewell = file.read(int(size))
            kept_lines.restore(file.read())
    except (OSError, EOFError, TypeError, ValueError) as error:
        kept_lines.attached = b"before"  # so the process ends: nobody can answer what the agent has open
        raise ValueError(f"the session of the version before cannot be read: {error}") from None
    return session


def _own_file() -> "tuple[int, int] | None":
    """Tells this file from one that has replaced it; None: there is none."""
    try:
        found = os.stat(__file__)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


_STARTED_FROM = _own_file()


def _leave(code: int, text: str, kept_lines: KeptLines) -> None:
    """Tell why this agent is not served: a person on stderr, and the agent as long as it asks.

    An agent that was attached before hears nothing more: what it had asked may have been executed.
    """
    _say(text)
    if kept_lines.attached:
        return
    from carpool.shim import refusal

    fault = refusal.ATTACH_REFUSED if code == EXIT_USAGE else refusal.NOT_RUNNING
    refusal.refuse(f"carpool: {text}", fault, bytes(kept_lines.fresh))


def _parse(verb: str, arguments: list[str]) -> tuple[dict[str, str], list[str], str]:
    """Options by name, the command of `run`, and what is wrong with them."""
    known = {"connect": ("--profile", "--workspace", LENGTH), "run": ("--profile", "--name", LENGTH)}[verb]
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).partition("=")
        if name == "--":
            break
        if name in {"-h", "--help"}:
            return {"help": ""}, [], ""
        if name not in known:
            return options, rest, f"{name} is not an option of `carpool {verb}`"
        if not equals:
            if not rest:
                return options, rest, f"{name} needs a value"
            value = rest.pop(0)
        if name == LENGTH and not (value.isascii() and value.isdigit() and len(value) < 4):
            return options, rest, f"{name} needs a number of characters, 32 to 64"
        options[name[2:]] = value
    if verb == "run" and not rest:
        return options, rest, "`carpool run` needs a command"
    if verb == "connect" and rest:
        return options, rest, "`carpool connect` takes options only, no arguments"
    return options, rest, ""


def _attach_line(verb: str, options: dict[str, str], command: list[str], mark: str) -> bytes:
    """Return the line that `carpool_protocol.carrier.attach_line` reads. Raises `ValueError` for
    what JSON cannot carry.
    """
    try:
        cwd = os.getcwd()
    except OSError:  # the directory is gone
        cwd = ""
    run = ""
    if verb == "run":
        # What is not valid UTF-8 cannot be said in JSON.
        env = ",".join(f"{quote(k)}:{quote(v)}" for k, v in os.environ.items() if _is_text(k) and _is_text(v))
        argv = ",".join(quote(_text(word, "the command")) for word in command)
        name = quote(_text(options.get("name", ""), "--name"))
        where = quote(_text(cwd, "the directory"))
        run = f',"run":{{"argv":[{argv}],"env":{{{env}}},"cwd":{where},"name":{name}}}'
    carrier = "run" if verb == "run" else "shim"
    cwd = cwd if _is_text(cwd) else ""
    profile = quote(_text(options.get("profile", ""), "--profile"))
    version, workspace = ATTACH_VERSION, ""
    if options.get("workspace"):
        version, workspace = NAMING_VERSION, f',"workspace":{quote(_workspace(options["workspace"]))}'
    config = "" if verb == "run" else paths.expected_config_file(os.environ)
    config = config and os.path.realpath(config)
    config = f',"config":{quote(config)}' if config and _is_text(config) else ""
    length = f',"tool_name_length":{int(options[LENGTH[2:]])}' if LENGTH[2:] in options else ""
    return (
        f'{{"jsonrpc":"2.0","method":"carpool/attach","params":{{"version":{version},'
        f'"carrier":"{carrier}","pid":{os.getpid()},"cwd":{quote(cwd)},"agent":"","profile":{profile},"control":false,"keeps":true,"tells":true,"mark":"{mark}"{workspace}{config}{length}{run}}}}}\n'
    ).encode()


def _workspace(value: str) -> str:
    """A name as it is, a directory absolute. Raises `ValueError`."""
    if "/" not in value and value not in {".", "..", "~"}:
        return _text(value, "--workspace")
    path = _text(os.path.realpath(os.path.expanduser(value)), "--workspace")
    if not os.path.isdir(path):
        raise ValueError("--workspace names no directory that is there")
    return path


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: str, what: str) -> str:
    if _is_text(value):
        return value
    raise ValueError(f"{what} is not valid UTF-8, which JSON needs")


def _reach(directory: str) -> "tuple[socket | None, int, str]":
    """A connection to the broker, started where there is none; or the exit code and the reason."""
    path = paths.agents_socket(directory)
    for _ in range(START_TRIES):
        sock = socket(AF_UNIX, SOCK_STREAM)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            code, text = _start()
            if code:
                return None, code, text
        except OSError as error:
            sock.close()
            return None, EXIT_NO_BROKER, f"cannot connect to {path}: {error.strerror}"
        else:
            if peer_credentials.is_ours(sock):
                return sock, 0, ""
            sock.close()
            return None, EXIT_NO_BROKER, f"nothing was said to {path}: {peer_credentials.NOT_OURS}"
    text = "carpool was started but does not stay up; see `carpool logs --daemon`"
    return None, EXIT_NO_BROKER, text


def _start() -> tuple[int, str]:
    """`carpool up --detach`, which waits until sessions are taken. The exit code, and what it said then."""
    # Not the agent's stdin and stdout: the starter must neither eat a line nor write one. `-P`: the directory
    # is the agent's, and may hold modules that some stranger gave the names of ours.
    hear, tell = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "carpool.launcher", "--detach", "--quiet", "--checked"],
            import_path.for_children(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, tell, 1),
                (os.POSIX_SPAWN_DUP2, tell, 2),
            ],
        )
    finally:
        os.close(tell)
    said = b""
    while data := os.read(hear, 65536):
        said += data
    os.close(hear)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = said.decode("utf-8", "replace").strip().removeprefix("carpool: ")
    if code == 0:
        if text:
            _say(text)
        return 0, ""
    text = text or f"carpool could not be started (exit code {code})"
    return EXIT_USAGE if code == EXIT_USAGE else EXIT_NO_BROKER, text


def _catch_signals() -> None:
    try:
        import _signal as signal  # type: ignore[import-not-found]  # `signal` itself builds enums
    except ImportError:
        import signal

    def end(_number: int, _frame: object) -> None:
        raise _EndedError

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)


def _print_help(verb: str) -> None:
    """Print the usage; end the process if stdout does not take it."""
    try:
        os.write(1, USAGE[verb].encode())
    except BrokenPipeError:
        pass  # a reader that has what it wants
    except OSError as error:
        _say(f"cannot write the output: {error.strerror}")
        sys.exit(EXIT_FAILED)


def _say(text: str) -> None:
    sys.stderr.write(f"carpool: {text}\n")
