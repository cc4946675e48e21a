"""One door's process: its settings, its socket, its lifeline, its end and what it leaves to the next door.

Owns which configuration it serves (the file's `http`, an address of the command line above it), what of it
can change while it serves (tokens, hosts, origins, bounds), and the refusal to listen openly without tokens.

Knows nothing of: requests, the broker.
"""

import argparse
import asyncio
import contextlib
import gc
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Sequence, Set
from typing import NamedTuple

from carpool.bridge_mark import OwnBridges
from carpool.cluster.node_facts import cluster_section, read_facts
from carpool.http import left_connections
from carpool.http.core.access import AccessRules, host_name_of, is_loopback, why_without_tokens
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.core.page_codes import PageCodes
from carpool.http.core.pending import PATIENCE_S, RETURN_S
from carpool.http.left_connections import LeftConnection, end_connections, end_unserved, pack, unpack
from carpool.http.log import log_line, warn
from carpool.http.peer_owner import can_tell_owners
from carpool.http.server import BACKLOG, HttpDoorServer, write_url
from carpool.http.web_files import read_web_files
from carpool.launcher.http_address import bind, cannot_listen, has_address, split_address
from carpool.launcher.http_door import EXIT_CONFIG, EXIT_TAKEN, EXIT_UNWANTED
from carpool.launcher.http_handover import HELD, HOLD, LEFT, LISTENS, LISTENS_NOT
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, find_config_file, load_config, load_layer
from carpool_protocol.config.schema.model import Config, HttpConfig, HttpToken
from carpool_protocol.config.text.file_stamps import Stamp, stamp
from carpool_protocol.files.log_rotation import rotate_in_use
from carpool_protocol.machine.stop_commands import DRAIN_S, STOP_FOR_RESTART
from carpool_protocol.runtime import core_dumps
from carpool_protocol.runtime.asyncio_process import run_lifeline, run_on_the_fastest_loop
from carpool_protocol.runtime.descriptor_limit import raise_descriptor_limit
from carpool_protocol.runtime.wallclock import unix_s

_LOOK_EVERY_S = 2.0
_SPARE_DESCRIPTORS = 64
_CLOSE_LOOKS, _CLOSE_LOOK_S = 20, 0.05
_HEIR_S = 30.0
"""The broker keeps sessions of a door that died for this long."""


class UnservableError(Exception):
    """The door cannot be opened like this. The text says what to do."""

    def __init__(self, text: str, code: int = EXIT_CONFIG) -> None:
        super().__init__(text)
        self.code = code


def run(arguments: list[str]) -> int:
    """Serve until told to stop. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="carpool.http", description="carpool's HTTP door")
    parser.add_argument("--runtime-dir", required=True)
    parser.add_argument("--config", default=None)
    parser.add_argument("--listen", default="", help="HOST:PORT, above the configuration's")
    parser.add_argument("--lifeline", type=int, default=-1)
    parser.add_argument("--listener", type=int, default=-1, help="the socket of an earlier door")
    parser.add_argument("--other-listener", type=int, default=-1, help="one that may be it as well")
    parser.add_argument("--connections", type=int, default=-1, help="what an earlier door has left")
    told = parser.parse_args(arguments)
    core_dumps.turn_off()
    launcher = LauncherLine(told.lifeline)
    file = find_config_file(os.environ, told.config)
    seen = stamp(file.path)
    try:
        last_good = LastGoodReadings(paths.last_good_file(told.runtime_dir))
        settings = _settings_or_end(file, told.listen, last_good, told.connections)
        if settings is None:
            return EXIT_UNWANTED
        listeners = [fd for fd in (told.listener, told.other_listener) if fd >= 0]
        begin = listen(settings, launcher, listeners, told.connections)
    except UnservableError as error:
        log_line(str(error), "error")
        return error.code
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    door = _HttpDoor(told.runtime_dir, DoorConfig(file, told.listen, settings, seen), launcher, begin)
    return run_on_the_fastest_loop(door.serve(told.lifeline), "door")


def _settings_or_end(
    file: ConfigFile, listen: str, last_good: LastGoodReadings, connections: int
) -> HttpConfig | None:
    """Return what `settings_of` does. Where there is no door, end what an earlier one has left."""
    try:
        settings = settings_of(file, listen, last_good)
    except UnservableError:
        end_unserved(connections)
        raise
    if settings is None:
        end_unserved(connections)
    return settings


def settings_of(
    file: ConfigFile, listen: str, last_good: LastGoodReadings | None = None
) -> HttpConfig | None:
    """Return the door's settings; None if the configuration has no door. `last_good` counts where the file
    is broken. Raises `UnservableError`.
    """
    loaded = load_config(file)
    if loaded.config is None and last_good is not None and (kept := last_good.find(file.path)) is not None:
        warn(f"the configuration is broken, the last good one stays in force: {loaded.problems[0].render()}")
        loaded = load_layer(file, "", earlier=kept).loaded
    if loaded.config is None:
        raise UnservableError(
            f"the configuration is broken, no door is opened: {loaded.problems[0].render()}"
        )
    config: Config = loaded.config
    if not listen and not config.http_wanted:
        return None
    settings = config.http
    if listen:
        try:
            host, port = split_address(listen)
        except ValueError as error:
            raise UnservableError(str(error)) from None
        fields = {name: getattr(settings, name) for name in settings.__struct_fields__}
        settings = HttpConfig(**{**fields, "host": host, "port": port})
    if why := why_without_tokens(settings.host, has_tokens=bool(settings.tokens)):
        raise UnservableError(why)
    return settings


def listen_on(settings: HttpConfig) -> socket.socket:
    """Return the listening socket. Raises `UnservableError`, most often because the port is taken."""
    try:
        return bind(settings.host, settings.port, BACKLOG)
    except (OSError, UnicodeError) as error:
        code = EXIT_TAKEN if isinstance(error, OSError) else EXIT_CONFIG
        raise UnservableError(cannot_listen(settings.host, settings.port, error), code) from None


class EarlierDoor(NamedTuple):
    """The sockets that a door begins with."""

    listener: socket.socket
    goes_on: bool
    """The listening socket is that of the door before."""
    connections: list[LeftConnection]
    """The connections that one has left."""


def listen(
    settings: HttpConfig, launcher: "LauncherLine", listeners: Sequence[int], connections: int
) -> EarlierDoor:
    """Listen at the address of these settings, with the descriptors of an earlier door if one of its
    `listeners` has that address; the others are closed. `connections`: -1 stands for none. Raises
    `UnservableError`.
    """
    # Before the connections come: descriptors past the limit are closed on their way (unix(7)).
    raise_descriptor_limit(max(settings.max_connections, left_connections.MOST) + _SPARE_DESCRIPTORS)
    earlier = unpack(socket.socket(fileno=connections)) if connections >= 0 else []
    found = [socket.socket(fileno=fd) for fd in listeners]
    chosen = next((each for each in found if has_address(each, settings.host, settings.port)), None)
    for each in found:
        if each is not chosen:
            each.close()
    if chosen is not None:
        chosen.setblocking(False)
        if len(found) > 1:  # the launcher is not to keep the others, where nobody would answer
            launcher.send(LISTENS, chosen.fileno())
        return EarlierDoor(chosen, goes_on=True, connections=earlier)
    if found:
        launcher.send(LISTENS_NOT)
    end_connections(earlier)
    sock = listen_beside(settings) if found else listen_on(settings)
    launcher.send(LISTENS, sock.fileno())
    return EarlierDoor(sock, goes_on=False, connections=[])


def listen_beside(settings: HttpConfig) -> socket.socket:
    """Return the listening socket, while the launcher may not have closed the one before yet: its port can be
    in the way, if only the host is another one. Raises `UnservableError`.
    """
    for _ in range(_CLOSE_LOOKS):
        try:
            return listen_on(settings)
        except UnservableError as error:
            if error.code != EXIT_TAKEN:
                raise
        time.sleep(_CLOSE_LOOK_S)
    return listen_on(settings)


class LauncherLine:
    """The door's own lines on the lifeline, which carry descriptors. `fd`: the lifeline; -1: none."""

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=os.dup(fd)) if fd >= 0 else None

    def send(self, line: str, *fds: int) -> None:
        """Send one line with its descriptors. Where the launcher is gone, this door ends anyway."""
        if self._sock is not None:
            with contextlib.suppress(OSError):
                socket.send_fds(self._sock, [f"{line}\n".encode()], fds)

    def close(self) -> None:
        """Close it: nothing more is said."""
        if self._sock is not None:
            self._sock.close()


class DoorConfig(NamedTuple):
    """The configuration that a door serves."""

    file: ConfigFile
    listen: str
    """The address of the command line; empty: that of the file."""
    settings: HttpConfig
    seen: Stamp
    """The stamp of the file before it was read: a later change has another one."""


class _HttpDoor:
    """The process once it listens."""

    def __init__(
        self, directory: str, config: DoorConfig, launcher: LauncherLine, begin: EarlierDoor
    ) -> None:
        self._directory = directory
        self._file, self._listen, settings, self._seen = config
        self._settings = settings
        self._launcher = launcher
        self._begin = begin
        self._log = paths.daemon_log(paths.log_dir(os.environ, directory), "http")
        self._exit = 0
        self._url = ""
        """The URL at which it listens; empty before."""
        self._admitted: Set[str] = frozenset()
        """The names of the tokens that may come in."""
        self._key = secrets.token_urlsafe(32)
        """The key of the web page. Each door has another one."""
        self._knows_owners = can_tell_owners()
        # Numbers of a door before this one are in event ids that its clients still have.
        self._own_bridges = OwnBridges(paths.state_dir(os.environ, directory))
        self._core = HttpCore(
            _rules(settings),
            self._gate(settings),
            int(unix_s() * 1e6),
            _HEIR_S,
            # A broker that starts with this door takes as long as one after a death.
            patience_s=RETURN_S if begin.goes_on else PATIENCE_S,
            web_files=read_web_files(),
            cpu_s=time.thread_time,
            page_codes=PageCodes(self._key, lambda: secrets.token_urlsafe(32)),
        )
        logs = paths.log_dir(os.environ, directory)
        self._server = HttpDoorServer(
            directory,
            self._core,
            _limits(settings),
            _most_connections(settings),
            logs=logs,
            on_held=lambda: launcher.send(HELD),
        )

    async def serve(self, lifeline: int) -> int:
        watching = asyncio.create_task(self._watch_config())
        living = (
            asyncio.create_task(
                run_lifeline(
                    lifeline,
                    self._server.stop,
                    self._server.linked.wait(),
                    {HOLD: self._server.hold, STOP_FOR_RESTART: self._hand_over},
                )
            )
            if lifeline >= 0
            else None
        )
        try:
            left = await self._server.run(self._begin.listener, self._listening, self._begin.connections)
            if left:
                self._leave(left)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(paths.door_file(self._directory))
            self._launcher.close()
            for task in (watching, living):
                if task is not None:
                    task.cancel()
        return self._exit

    def _hand_over(self, settle_s: float = 0.0, *, sessions_end: bool = True) -> None:
        """End for the next door, unless the configuration wants none here any more."""
        try:
            fresh = settings_of(self._file, self._listen)
        except UnservableError:
            fresh = self._settings  # the last good ones stay in force
        if fresh is not None and has_address(self._begin.listener, fresh.host, fresh.port):
            self._server.hand_over(settle_s, sessions_end=sessions_end)
        else:
            self._server.stop()

    def _leave(self, left: list[LeftConnection]) -> None:
        """Leave the connections to the next door, through the launcher."""
        try:
            with pack(left) as sock:
                self._launcher.send(LEFT, sock.fileno())
        except OSError as error:
            warn(f"{len(left)} connections end: they cannot be left to the next door ({error.strerror})")

    def _listening(self) -> None:
        port = self._begin.listener.getsockname()[1]
        host = self._settings.host
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}{self._settings.path}"
        write_url(self._directory, self._url, self._key)
        log_line(f"MCP is spoken at {self._url}")

    def _restore_url_file(self) -> None:
        """Write the URL file again if a cleaner of temporary files has removed it."""
        if self._url and not os.path.lexists(paths.door_file(self._directory)):
            with contextlib.suppress(OSError):  # its directory is not there yet
                write_url(self._directory, self._url, self._key)

    async def _watch_config(self) -> None:
        """Watch the configuration, and what the node's process says of the cluster. Tokens, hosts, origins
        and bounds change at once; for another address or form of answers the launcher starts another door.
        The file is read in a thread: a disk that does not answer holds up no request.
        """
        while True:
            self._core.set_cluster(cluster_section(read_facts(self._directory)))
            await asyncio.sleep(_LOOK_EVERY_S)
            self._restore_url_file()
            rotate_in_use(self._log)
            found = await asyncio.to_thread(stamp, self._file.path)
            if found == self._seen:
                self._end_expired_tokens()
                continue
            self._seen = found
            try:
                fresh = await asyncio.to_thread(settings_of, self._file, self._listen)
            except UnservableError as error:
                warn(f"{error}; the door goes on as it is")
                continue
            if fresh is None or _fixed(fresh) != _fixed(self._settings):
                log_line("the door's settings have changed; it starts again")
                self._exit = EXIT_UNWANTED
                self._hand_over(DRAIN_S, sessions_end=False)
                return
            self._settings = fresh
            self._server.set_rules(_rules(fresh), _limits(fresh), _most_connections(fresh))
            self._server.set_gate(self._gate(fresh))

    def _end_expired_tokens(self) -> None:
        """Shut out tokens that have expired since the last look."""
        if self._admitted != _valid_tokens(self._settings, unix_s()).keys():
            self._server.set_gate(self._gate(self._settings))

    def _gate(self, settings: HttpConfig) -> AccessRules:
        tokens = _valid_tokens(settings, unix_s())
        self._admitted = tokens.keys()
        hosts = (
            settings.hosts if is_loopback(host_name_of(settings.host)) else (*settings.hosts, settings.host)
        )
        return AccessRules(
            hosts,
            settings.origins,
            {name: token.hash for name, token in tokens.items()},
            {name: token.profile for name, token in tokens.items() if token.profile},
            operators={name: token.operator for name, token in tokens.items() if token.operator},
            needs_token=bool(settings.tokens),
            own_bridges=self._own_bridges,
            page_key=hashlib.sha256(self._key.encode()).digest(),
            knows_owners=self._knows_owners,
        )


def _rules(settings: HttpConfig) -> HttpRules:
    return HttpRules(
        path=settings.path,
        stateless=settings.stateless,
        json_response=settings.json_response,
        max_sessions=settings.max_sessions,
        max_open=settings.max_open,
        session_idle_s=settings.session_idle_s,
    )


def _limits(settings: HttpConfig) -> HttpLimits:
    return HttpLimits(body_bytes=settings.max_body_bytes)


def _most_connections(settings: HttpConfig) -> int:
    """Return how many connections there may be, if the system lets this process open so many."""
    descriptors = raise_descriptor_limit(settings.max_connections + _SPARE_DESCRIPTORS)
    return max(1, min(settings.max_connections, descriptors - _SPARE_DESCRIPTORS))


def _valid_tokens(settings: HttpConfig, now: float) -> dict[str, HttpToken]:
    """Return the tokens that have not expired."""
    return {name: token for name, token in settings.tokens.items() if not token.is_expired(now)}


def _fixed(settings: HttpConfig) -> tuple[object, ...]:
    """Return the settings that cannot change while it serves."""
    bounds = {"max_body_bytes", "max_connections", "max_open", "max_sessions", "session_idle_s"}
    free = {"tokens", "hosts", "origins", *bounds}
    return tuple(getattr(settings, name) for name in settings.__struct_fields__ if name not in free)
