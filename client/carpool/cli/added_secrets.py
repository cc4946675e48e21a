"""Keeps the secrets of a server that `carpool add` writes out of the configuration.

Owns the order: first the server without its secrets, then the `env_file` with them. Refuses to know which
text is a secret (`setup.secrets`), the names and lines of the variables (`setup.secret_variables`), where the
`env_file` is (`setup.carpool_files`), and the text of the configuration.
"""

from typing import Any, Final

from msgspec import Struct

from carpool.setup import file_io
from carpool.setup.carpool_files import secrets_file
from carpool.setup.model import SecretsFile
from carpool.setup.secret_variables import CannotKeepError, free_name, variable_name, with_lines
from carpool.setup.secrets import without_secrets
from carpool_protocol.config.reading.load import ConfigFile, load_layer
from carpool_protocol.config.schema.model import Config

_MODE: Final = 0o600


class AddedSecrets(Struct, frozen=True):
    """A server without its secrets, and where these go."""

    server: dict[str, Any]
    variables: dict[str, str]
    file: SecretsFile

    def __repr__(self) -> str:
        return f"AddedSecrets({self.file!r})"

    def write(self) -> None:
        """Add the variables to the file. Raises `OSError`."""
        text = with_lines(self.file.text or "", self.variables)
        file_io.write(self.file.path, text.encode(), _MODE)


def take_secrets(server: dict[str, Any], name: str, config: Config, home: str) -> AddedSecrets:
    """Return the server with a variable in place of each secret. One with a secret that no `env_file` can
    hold stays as it is.
    """
    file = secrets_file(config, load_layer(ConfigFile(config.file, asked_for=False), home).env, home)
    variables: dict[str, str] = {}

    def variable(purpose: str, value: str) -> str:
        known = {**file.values, **variables}
        found = free_name(variable_name(name, purpose, value), value, known.get)
        variables[found] = value
        return found

    try:
        return AddedSecrets(without_secrets(server, variable), variables, file)
    except CannotKeepError:
        return AddedSecrets(server, {}, file)
