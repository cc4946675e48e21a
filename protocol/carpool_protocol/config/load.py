"""Where the configuration file is, and its bytes.

Owns all file access of configuration. Raises nothing: a file that cannot be read is a problem like any
other. Reads regular files only that not everybody may write (they say what is run), and never waits for one
(a FIFO in its place is refused).

Knows nothing of: what the text means, when to read again.
"""

import os
import stat
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from carpool_protocol.config.environment import read_env_file
from carpool_protocol.config.model import Config
from carpool_protocol.config.problems import ConfigProblem
from carpool_protocol.config.shape import Loaded, empty_config, read_config

CONFIG_VARIABLE: Final = "CARPOOL_CONFIG"
MAX_FILE_BYTES: Final = 1024 * 1024


class ConfigFile(Struct, frozen=True):
    """Which file is the configuration."""

    path: str
    """Absolute."""
    asked_for: bool
    """Somebody named it: then it must exist."""


def find_config_file(environ: Mapping[str, str], option: str | None = None) -> ConfigFile:
    """`option` (`--config`), else `$CARPOOL_CONFIG`, else `carpool.json` in the XDG config directory."""
    named = option or environ.get(CONFIG_VARIABLE)
    if named:
        return ConfigFile(os.path.abspath(_at_home(named, home_of(environ))), asked_for=True)
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: relative ones are to be ignored
        base = os.path.join(home_of(environ), ".config")
    return ConfigFile(os.path.join(base, "carpool", "carpool.json"), asked_for=False)


def load_config(file: ConfigFile) -> Loaded:
    """Read it. A file nobody named may be missing: then there are no servers."""
    text = _read(file.path)
    if isinstance(text, str):
        return read_config(text, file.path)
    if text is None and not file.asked_for:
        return Loaded(empty_config(file.path), [])
    return Loaded(None, [text or ConfigProblem(file.path, 1, "", "there is no such file")])


def load_env_file(config: Config, home: str) -> tuple[dict[str, str], list[ConfigProblem]]:
    """The variables of the configuration's `env_file`; none without one. Values are secrets: memory only."""
    path = env_file_path(config, home)
    if path is None:
        return {}, []
    text = _read(path)
    if isinstance(text, str):
        return read_env_file(text, path)
    if text is not None:
        return {}, [text]
    return {}, [ConfigProblem(config.file, config.lines["env_file",], "env_file", f"there is no file {path}")]


def env_file_path(config: Config, home: str) -> str | None:
    """Where the `env_file` is: relative to the configuration file, `~/` is `home`. `None`: there is none."""
    if config.env_file is None:
        return None
    return os.path.join(os.path.dirname(config.file), _at_home(config.env_file, home))


def home_of(environ: Mapping[str, str]) -> str:
    """The home directory: `$HOME`, else the account's."""
    return environ.get("HOME") or os.path.expanduser("~")


def _at_home(path: str, home: str) -> str:
    return os.path.join(home, path[2:]) if path.startswith("~/") else path


def _read(path: str) -> str | ConfigProblem | None:
    """The text of a file; `None` where there is none."""
    try:
        # Without O_NONBLOCK, opening a FIFO waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return ConfigProblem(path, 1, "", f"cannot be opened: {_reason(error)}")
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)  # not left to `open`, which refuses a directory without closing it
        return ConfigProblem(path, 1, "", "is not a regular file")
    if mode & 0o002:
        os.close(descriptor)
        return ConfigProblem(
            path, 1, "", "may be written by anybody, who could have any program run; run `chmod o-w` on it"
        )
    with open(descriptor, "rb") as file:
        try:
            data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            return ConfigProblem(path, 1, "", f"cannot be read: {_reason(error)}")
    if len(data) > MAX_FILE_BYTES:
        return ConfigProblem(path, 1, "", f"is larger than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return ConfigProblem(
            path, data.count(b"\n", 0, error.start) + 1, "", "is not UTF-8 here; save it as UTF-8"
        )


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "the system gave no reason"
