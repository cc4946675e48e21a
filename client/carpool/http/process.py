"""One door's process: its settings, its socket, its lifeline, its end and what it leaves to the next door.

Owns what of the configuration can change while it serves (tokens, hosts, origins, bounds), and the order:
the tokens of a reading hold before anything else of it, so nobody who is shut out comes in while a door
closes, drains, or goes on with a broken file.

Knows nothing of: requests, the broker, how the configuration is read (`door_config`).
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
from carpool.http.core.access import (
    GENERATED_PRINCIPAL,
    AccessRules,
    hash_of,
    host_name_of,
    is_loopback,
)
from carpool.http.core.core import HttpCore
from carpool.http.core.effects import HttpRules
from carpool.http.core.limits import HttpLimits
from carpool.http.core.page_codes import PageCodes
from carpool.http.core.pending import PATIENCE_S, RETURN_S
from carpool.http.door_config import (
    DoorReading,
    UnservableError,
    read_door,
    read_first,
    save_tokens,
)
from carpool.http.generated_token import keep_generated_token
from carpool.http.left_connections import LeftConnection, end_connections, end_unserved, pack, unpack
from carpool.http.log import log_line, warn
from carpool.http.peer_owner import PeerOwners
from carpool.http.server import BACKLOG, DoorFile, HttpDoorServer, write_url
from carpool.http.web_files import read_web_files
from carpool.launcher.http_address import bind, cannot_listen, has_address
from carpool.launcher.http_door import EXIT_CONFIG, EXIT_TAKEN, EXIT_UNWANTED
from carpool.launcher.http_handover import HELD, HOLD, LEFT, LISTENS, LISTENS_NOT
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.streams import MESSAGE_CAP_BYTES
from carpool_protocol.config.reading.door_tokens import AdmittedTokens
from carpool_protocol.config.reading.load import ConfigFile, find_config_file
from carpool_protocol.config.schema.model import HttpConfig, HttpToken
from carpool_protocol.config.text.file_stamps import Stamp, stamp
from carpool_protocol.files.log_rotation import rotate_in_use
from carpool_protocol.machine.stop_commands import DRAIN_S, STOP_FOR_RESTART
from carpool_protocol.runtime import core_dumps
from carpool_protocol.runtime.asyncio_process import run_lifeline, run_on_the_fastest_loop
from carpool_protocol.runtime.descriptor_limit import raise_descriptor_limit
from carpool_protocol.runtime.pace import until_due
from carpool_protocol.runtime.wallclock import unix_s

_LOOK_EVERY_S = 2.0
_LOOK_UNUSED_S = 12.0
"""While no client is connected. The first one is served after a look."""
_SPARE_DESCRIPTORS = 64
_CLOSE_LOOKS, _CLOSE_LOOK_S = 20, 0.05
_HEIR_S = 30.0
"""The broker keeps sessions of a door that died for this long."""


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
        found = _first_or_end(file, told.listen, told.runtime_dir, told.connections)
        if found is None:
            return EXIT_UNWANTED
        settings, admitted = found
        listeners = [fd for fd in (told.listener, told.other_listener) if fd >= 0]
        begin = listen(settings, launcher, listeners, told.connections)
    except UnservableError as error:
        log_line(str(error), "error")
        return error.code
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    door = _HttpDoor(
        told.runtime_dir, DoorConfig(file, told.listen, settings, seen, admitted), launcher, begin
    )
    return run_on_the_fastest_loop(door.serve(told.lifeline), "door")


def _first_or_end(
    file: ConfigFile, listen: str, directory: str, connections: int
) -> tuple[HttpConfig, AdmittedTokens] | None:
    """Return what `read_first` does. Where there is no door, end what an earlier one has left."""
    try:
        found = read_first(file, listen, directory)
    except UnservableError:
        end_unserved(connections)
        raise
    if found is None:
        end_unserved(connections)
    return found


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
    admitted: AdmittedTokens


class _HttpDoor:
    """The process once it listens."""

    def __init__(
        self, directory: str, config: DoorConfig, launcher: LauncherLine, begin: EarlierDoor
    ) -> None:
        self._directory = directory
        self._file, self._listen, settings, self._seen, self._admitted = config
        self._settings = settings
        self._token_file = paths.generated_token_file(paths.state_dir(os.environ, directory))
        self._token_trouble = ""
        """The last warning about the file of the generated token."""
        self._generated = self._keep_generated_token()
        self._launcher = launcher
        self._begin = begin
        self._log = paths.daemon_log(paths.log_dir(os.environ, directory), "http")
        self._exit = 0
        self._url = ""
        """The URL at which it listens; empty before."""
        self._valid: Set[str] = frozenset()
        """The names of the admitted tokens that have not expired."""
        self._is_leaving = False
        """The door ends: nothing but tokens changes any more."""
        self._key = secrets.token_urlsafe(32)
        """The key of the web page. Each door has another one."""
        owners = PeerOwners()
        self._knows_owners = owners.open()
        # Numbers of a door before this one are in event ids that its clients still have.
        self._own_bridges = OwnBridges(paths.state_dir(os.environ, directory))
        self._core = HttpCore(
            _rules(settings),
            self._gate(),
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
            owners=owners,
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
        reading = read_door(self._file, self._listen)
        fresh = reading.settings if reading.problem is None else self._settings  # the last good ones
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
        self._tell_admitted()
        log_line(f"MCP is spoken at {self._url}")

    def _restore_url_file(self) -> None:
        """Write the URL file again if a cleaner of temporary files has removed it."""
        if self._url and not os.path.lexists(paths.door_file(self._directory)):
            with contextlib.suppress(OSError):  # its directory is not there yet
                self._write_url()

    def _write_url(self) -> None:
        told = DoorFile(self._url, os.getpid(), self._key, self._token_hashes(), self._generated_place())
        write_url(self._directory, told)

    def _token_hashes(self) -> dict[str, str]:
        """Return the hashes of the tokens in force by name; that of the generated one has no name."""
        generated = {"": hash_of(self._generated)} if self._generated else {}
        return {**{name: token.hash for name, token in self._admitted.named.items()}, **generated}

    def _generated_place(self) -> str:
        return self._token_file if self._admitted.has_generated else ""

    def _tell_admitted(self) -> None:
        """Write down which tokens are in force: for verbs that wait for it, and for the next door."""
        save_tokens(self._file, self._directory, self._admitted)
        if self._url:
            with contextlib.suppress(OSError):  # a full disk: then a verb that waits for it says so
                self._write_url()

    async def _watch_config(self) -> None:
        """Watch the configuration, and what the node's process says of the cluster. Tokens, hosts, origins
        and bounds change at once; for another address or form of answers the launcher starts another door.
        The file is read in a thread: a disk that does not answer holds up no request.
        """
        self._server.looks_first = True
        while True:
            self._server.configuration_read()
            self._core.set_cluster(cluster_section(read_facts(self._directory)))
            period_s = _LOOK_EVERY_S if self._server.is_used else _LOOK_UNUSED_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.first_connected.wait(), until_due(period_s))
            self._server.first_connected.clear()
            self._restore_url_file()
            rotate_in_use(self._log)
            await self._look_at_config()

    async def _look_at_config(self) -> None:
        found = await asyncio.to_thread(stamp, self._file.path)
        if found == self._seen:
            self._renew_tokens()
            return
        self._seen = found
        reading = await asyncio.to_thread(read_door, self._file, self._listen)
        self._set_tokens(reading)
        if self._is_leaving:
            return
        if reading.is_broken:
            warn(f"{reading.problem}; the door goes on as it is, and admits nobody new")
        elif reading.problem is not None:
            log_line(f"{reading.problem}", "error")
            self._exit, self._is_leaving = EXIT_CONFIG, True
            self._server.stop()
        elif reading.settings is None or _fixed(reading.settings) != _fixed(self._settings):
            log_line("the door's settings have changed; it starts again")
            self._exit, self._is_leaving = EXIT_UNWANTED, True
            self._hand_over(DRAIN_S, sessions_end=False)
        else:
            self._settings = reading.settings
            self._server.set_rules(
                _rules(self._settings), _limits(self._settings), _most_connections(self._settings)
            )
            self._server.set_gate(self._gate())

    def _set_tokens(self, reading: DoorReading) -> None:
        """Set the tokens of a reading, before anything else of it. One that this door does not go on with
        admits nobody new here.
        """
        fresh = reading.admitted
        if fresh is None:
            return
        if not (reading.settings or reading.problem) and self._admitted.is_open:
            return  # no door is wanted: its open calls end with it, and nobody was shut out
        is_served = reading.settings is not None and _fixed(reading.settings) == _fixed(self._settings)
        before = self._admitted
        is_good = not reading.is_broken
        self._admitted = fresh if is_served else before.narrowed_by(fresh, with_its_rights=is_good)
        if self._admitted != before:
            self._generated = self._keep_generated_token()
            self._server.set_gate(self._gate())
            self._tell_admitted()

    def _renew_tokens(self) -> None:
        """Shut out tokens that have expired since the last look, and a generated one that was replaced."""
        generated = self._keep_generated_token()
        if generated != self._generated or self._valid != self._valid_tokens().keys():
            self._generated = generated
            self._server.set_gate(self._gate())
            self._tell_admitted()

    def _keep_generated_token(self) -> str:
        """Return the generated token, which is made if there is none; empty if none is admitted."""
        if not self._admitted.has_generated:
            return ""
        try:
            return keep_generated_token(self._token_file)
        except OSError as error:
            said = f"nobody comes in: the token cannot be kept in {self._token_file} ({error.strerror})"
            if said != self._token_trouble:
                self._token_trouble = said
                warn(said)
            return ""

    def _valid_tokens(self) -> dict[str, HttpToken]:
        """Return the admitted tokens that have not expired."""
        now = unix_s()
        return {name: token for name, token in self._admitted.named.items() if not token.is_expired(now)}

    def _gate(self) -> AccessRules:
        settings, tokens = self._settings, self._valid_tokens()
        self._valid = tokens.keys()
        hashes = {name: token.hash for name, token in tokens.items()}
        if self._generated:
            hashes[GENERATED_PRINCIPAL] = hash_of(self._generated)
        hosts = (
            settings.hosts if is_loopback(host_name_of(settings.host)) else (*settings.hosts, settings.host)
        )
        return AccessRules(
            hosts,
            settings.origins,
            hashes,
            {name: token.profile for name, token in tokens.items() if token.profile},
            workspaces={name: token.workspaces for name, token in tokens.items() if token.workspaces},
            operators={name: token.operator for name, token in tokens.items() if token.operator},
            needs_token=not self._admitted.is_open,
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
    return HttpLimits(body_bytes=min(settings.max_body_bytes, MESSAGE_CAP_BYTES))


def _most_connections(settings: HttpConfig) -> int:
    """Return how many connections there may be, if the system lets this process open so many."""
    descriptors = raise_descriptor_limit(settings.max_connections + _SPARE_DESCRIPTORS)
    return max(1, min(settings.max_connections, descriptors - _SPARE_DESCRIPTORS))


def _fixed(settings: HttpConfig) -> tuple[object, ...]:
    """Return the settings that cannot change while it serves."""
    bounds = {"max_body_bytes", "max_connections", "max_open", "max_sessions", "session_idle_s"}
    free = {"given_tokens", "hosts", "origins", *bounds}
    return tuple(getattr(settings, name) for name in settings.__struct_fields__ if name not in free)
