"""The tokens of the HTTP door, read on their own: they count though something else in the file is broken.

Owns which tokens are admitted (`AdmittedTokens`), what remains of two readings, and the reading of
`http.tokens` alone. A broken file admits nobody new: from such a file only what it leaves out counts.

Knows nothing of: the other settings of the door, hashes of requests, the token that the door makes itself.
"""

from msgspec import Struct

from carpool_protocol.config.reading.load import ConfigFile, read_config_text
from carpool_protocol.config.schema.model import HttpConfig, HttpToken
from carpool_protocol.config.schema.value_types import read_tokens
from carpool_protocol.config.text.jsonc import parse
from carpool_protocol.config.text.problems import ConfigProblem


class AdmittedTokens(Struct, frozen=True):
    """The tokens that let a client in."""

    named: dict[str, HttpToken] = {}
    """Those of the file, by name."""
    has_generated: bool = False
    """The one that the door makes lets a client in."""
    is_open: bool = False
    """No token is needed."""

    def narrowed_by(self, later: "AdmittedTokens", *, with_its_rights: bool = False) -> "AdmittedTokens":
        """Return what is admitted both here and by a later reading. A later reading without tokens takes all
        of them away. `with_its_rights`: with the rights of the later reading, not with those of here.
        """
        if self.is_open:
            return later
        rights = later.named if with_its_rights else self.named
        named = {
            name: rights[name]
            for name, token in self.named.items()
            if name in later.named and later.named[name].hash == token.hash
        }
        return AdmittedTokens(named, has_generated=self.has_generated and later.has_generated)


def admitted_by(settings: HttpConfig) -> AdmittedTokens:
    """Return what these settings admit."""
    return _admitted(settings.given_tokens)


def read_admitted_tokens(file: ConfigFile) -> AdmittedTokens | None:
    """Read `http.tokens` of a file, whatever else is wrong with it. A token that cannot be read is not
    admitted. None: it cannot be told which tokens the file has. Blocks while the disk does not answer.
    """
    text = read_config_text(file.path)
    if text is None:
        return None if file.asked_for else _admitted({})
    if not isinstance(text, str):
        return None
    parsed = parse(text, file.path)
    http = parsed.value.get("http", {}) if isinstance(parsed.value, dict) else None
    if not parsed.complete or any(map(_hides_tokens, parsed.problems)) or not isinstance(http, dict):
        return None
    written = http.get("tokens", {})
    if not isinstance(written, dict):
        return _admitted(None) if written is False else None
    named = read_tokens(written, lambda _problem: None) or {}
    return AdmittedTokens(named, has_generated=not written)


def _hides_tokens(problem: ConfigProblem) -> bool:
    """True if it cannot be told which tokens a text with this problem has."""
    return problem.where in {"", "http"} or problem.where.startswith("http.tokens")


def _admitted(given: dict[str, HttpToken] | None) -> AdmittedTokens:
    return AdmittedTokens(given or {}, has_generated=given == {}, is_open=given is None)
