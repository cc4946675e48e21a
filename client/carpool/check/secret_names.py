"""Names of variables, headers and flags that hold a secret: `GITHUB_TOKEN`, `--api-key`, `Authorization`.

Owns that judgement: a doubtful name counts as secret. A name that ends in `_FILE` or `_PATH` names the
place of a secret, so it does not count.

Pure. Knows nothing of: values, files.
"""

import re

_NAMES = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|KEY(?!BOARD|WORD)|AUTH(?!OR(?!I))|COOKIE|PRIVATE|BEARER|SIGNATURE"
    r"|WEBHOOK|CONNECTION_?STRING|(?:^|_)(?:PAT|PWD|PW|PASS|PIN|DSN|JWT|SALT)(?:_|$)"
)
_PLACES = re.compile(r"_(?:FILE|PATH|DIR|DIRECTORY|ENV|ENV_VAR)$")
"""Matches the endings of names that hold the place of a secret."""


def is_secret_name(name: str) -> bool:
    """True if a variable, a header or a flag of this name holds a secret."""
    plain = name.lstrip("-").replace("-", "_").replace(".", "_").upper()
    return _NAMES.search(plain) is not None and _PLACES.search(plain) is None
