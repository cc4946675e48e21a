"""The configuration that an HTTP door serves: its settings, and the tokens that it admits.

Owns the refusal to serve (`UnservableError`), and the rule about tokens: a good reading of the file decides
alone; a broken one admits nobody new. There the tokens of the last good reading count, without those that the
door had dropped before and those that the file does not have any more, if its `http.tokens` can be read.
The tokens in force are kept in the runtime directory, so that a door which starts while the file is broken
admits nobody whom the door before had shut out.

Knows nothing of: sockets, requests, when the file is read.
"""

import contextlib
from typing import NamedTuple

import msgspec
from msgspec import Struct

from carpool.http.core.access import why_without_tokens
from carpool.http.log import warn
from carpool.launcher.http_address import split_address
from carpool.launcher.http_door import EXIT_CONFIG
from carpool_protocol.bootstrap import paths
from carpool_protocol.config.reading.door_tokens import AdmittedTokens, admitted_by, read_admitted_tokens
from carpool_protocol.config.reading.last_good import LastGoodReadings
from carpool_protocol.config.reading.load import ConfigFile, load_config, load_layer
from carpool_protocol.config.schema.model import Config, HttpConfig
from carpool_protocol.files import private_files, state_file

_MAX_SAVED_BYTES = 2 * 1024 * 1024


class UnservableError(Exception):
    """The door cannot be opened like this. The text says what to do."""

    def __init__(self, text: str, code: int = EXIT_CONFIG) -> None:
        super().__init__(text)
        self.code = code


class DoorReading(NamedTuple):
    """One reading of the configuration."""

    admitted: AdmittedTokens | None
    """The tokens in it; None: they cannot be read."""
    settings: HttpConfig | None = None
    """None: no door is wanted, or `problem` says why there is none."""
    problem: UnservableError | None = None
    is_broken: bool = False
    """The file as a whole cannot be used, so what was in force before stays so."""


class _SavedTokens(Struct, frozen=True):
    file: str
    """The configuration file in which they were."""
    admitted: AdmittedTokens


def read_door(file: ConfigFile, listen: str) -> DoorReading:
    """Read the configuration of a door that serves already. `listen`: the address of the command line,
    above the file's.
    """
    loaded = load_config(file)
    if loaded.config is None:
        problem = UnservableError(f"the configuration is broken: {loaded.problems[0].render()}")
        return DoorReading(read_admitted_tokens(file), None, problem, is_broken=True)
    admitted = admitted_by(loaded.config.http)
    try:
        return DoorReading(admitted, _settings(loaded.config, listen))
    except UnservableError as error:
        return DoorReading(admitted, None, error)


def read_first(file: ConfigFile, listen: str, directory: str) -> tuple[HttpConfig, AdmittedTokens] | None:
    """Read what a door that starts serves and admits; None if no door is wanted. `directory`: the runtime
    directory. Raises `UnservableError`.
    """
    reading = read_door(file, listen)
    if reading.is_broken:
        settings = _last_good_settings(file, listen, directory)
        if settings is None:
            return None
        admitted = admitted_by(settings)
        for later in (_saved_tokens(file, directory), reading.admitted):
            admitted = admitted if later is None else admitted.narrowed_by(later)
        return settings, admitted
    if reading.problem is not None:
        raise reading.problem
    if reading.settings is None or reading.admitted is None:
        return None
    return reading.settings, reading.admitted


def _last_good_settings(file: ConfigFile, listen: str, directory: str) -> HttpConfig | None:
    """Return the settings of the last good reading of a broken file; None if there was no door."""
    loaded = load_config(file)
    kept = LastGoodReadings(paths.last_good_file(directory)).find(file.path)
    if loaded.config is None and kept is not None:
        warn(f"the configuration is broken, the last good one stays in force: {loaded.problems[0].render()}")
        loaded = load_layer(file, "", earlier=kept).loaded
    if loaded.config is None:
        raise UnservableError(
            f"the configuration is broken, no door is opened: {loaded.problems[0].render()}"
        )
    return _settings(loaded.config, listen)


def _settings(config: Config, listen: str) -> HttpConfig | None:
    if not listen and not config.http_wanted:
        return None
    settings = config.http
    if listen:
        try:
            host, port = split_address(listen)
        except ValueError as error:
            raise UnservableError(str(error)) from None
        settings = msgspec.structs.replace(settings, host=host, port=port)
    if why := why_without_tokens(settings.host, needs_token=settings.needs_token):
        raise UnservableError(why)
    return settings


def save_tokens(file: ConfigFile, directory: str, admitted: AdmittedTokens) -> None:
    """Keep the tokens in force for a later door that finds the file broken."""
    saved = msgspec.json.encode(_SavedTokens(file.path, admitted))
    with contextlib.suppress(OSError, UnicodeEncodeError):  # then the last good reading counts as it is
        private_files.replace(paths.door_tokens_file(directory), saved)


def _saved_tokens(file: ConfigFile, directory: str) -> AdmittedTokens | None:
    try:
        data = state_file.read_state_file(paths.door_tokens_file(directory), _MAX_SAVED_BYTES)
        saved = msgspec.json.decode(data, type=_SavedTokens) if isinstance(data, bytes) else None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return saved.admitted if saved is not None and saved.file == file.path else None
