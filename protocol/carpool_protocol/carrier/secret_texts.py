"""Tells which names and which texts are secrets: `GITHUB_TOKEN`, `--api-key`, `ghp_…`.

Owns that judgement. A doubtful name counts as secret. A name that ends in `_FILE` or `_PATH` names the place
of a secret, so it does not count. Under any other name a text is known by a prefix of keys, by random
characters, or as a URL with a password: `localhost` and `production` are no secrets.

Pure. Knows nothing of: files, where a text came from, what is done with a secret.
"""

import math
import re
from collections import Counter
from typing import Final

_NAMES = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|KEY(?!BOARD|WORD)|AUTH(?!OR(?!I))|COOKIE|PRIVATE|BEARER|SIGNATURE"
    r"|WEBHOOK|CONNECTION_?STRING|(?:^|_)(?:PAT|PWD|PW|PASS|PIN|DSN|JWT|SALT)(?:_|$)"
)
_PLACES = re.compile(r"_(?:FILE|PATH|DIR|DIRECTORY|ENV|ENV_VAR)$")
"""Matches the endings of names that hold the place of a secret."""
KNOWN_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:gh[pousr]_|github_pat_|glpat-|gldt-|sk-|sk_|pk_|rk_|xox[abeprs]-|xapp-|AKIA|ASIA|AIza|ya29\."
    r"|hf_|npm_|pypi-|dop_v1_|lin_api_|ntn_|secret_|fc-|tvly-|SG\.|shp(?:at|ss)_|figd_|pplx-|gsk_|r8_|eyJ|atlasv1\."
    r"|dckr_pat_|sntry[su]_|nvapi-|key-|pat-|pat_)[A-Za-z0-9_.=+/-]{8,}"
)
"""Matches the keys of well-known services."""
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_WORDS = re.compile(r"[A-Za-z]{1,16}|[0-9]{1,8}|v?[0-9]+(?:\.[0-9]+)*")
_RANDOM = re.compile(r"[A-Za-z0-9+/_=.~-]{20,}")
_BITS: Final = 3.3
"""Bits of entropy per character from which a text of letters and digits looks random."""
_WITH_PASSWORD = re.compile(r"://[^/@:\s?#]*:[^/@\s?#]+@")


def is_secret_name(name: str) -> bool:
    """True if a variable, a header or a flag of this name holds a secret."""
    plain = name.lstrip("-").replace("-", "_").replace(".", "_").upper()
    return _NAMES.search(plain) is not None and _PLACES.search(plain) is None


def holds_secret(name: str, value: str) -> bool:
    """True if a variable of this name with this value holds a secret."""
    return is_secret_name(name) or looks_secret(value) or _WITH_PASSWORD.search(value) is not None


def looks_secret(text: str) -> bool:
    """True if the text itself looks like a secret."""
    known = KNOWN_KEY.search(text)
    if known is not None and any(each.isdigit() for each in known.group()):
        return True
    return _PEM.search(text) is not None or looks_random(text)


def looks_random(text: str) -> bool:
    """True if a text is long and of random letters and digits, and no name, path or version."""
    if _RANDOM.fullmatch(text) is None or text.startswith(("/", "./", "../", "~/")) or "//" in text:
        return False
    if not any(each.isdigit() for each in text) or not any(each.isalpha() for each in text):
        return False
    if all(
        _WORDS.fullmatch(each) for each in re.split(r"[_/=+-]", text) if each
    ):  # a model, a path, a version
        return False
    counted = Counter(text)
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counted.values()) >= _BITS
