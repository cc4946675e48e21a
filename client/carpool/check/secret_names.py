"""Names of variables, headers and flags that hold a secret: `GITHUB_TOKEN`, `--api-key`, `Authorization`.

Owns that judgement. It errs to the safe side. A name that ends in `_FILE` or `_PATH` says where a secret is.

Pure. Knows nothing of: values, files.
"""

import re

_NAMES = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|KEY(?!BOARD|WORD)|AUTH(?!OR(?!I))|COOKIE|PRIVATE|BEARER|SIGNATURE"
    r"|WEBHOOK|CONNECTION_?STRING|(?:^|_)(?:PAT|PWD|PW|PASS|PIN|DSN|JWT|SALT)(?:_|$)"
)
_PLACES = re.compile(r"_(?:FILE|PATH|DIR|DIRECTORY|ENV|ENV_VAR)$")
"""The end of a name that says where a secret is, not what."""


def is_secret_name(name: str) -> bool:
    """Whether a variable, a header or a flag of this name holds a secret."""
    plain = name.lstrip("-").replace("-", "_").replace(".", "_").upper()
    return _NAMES.search(plain) is not None and _PLACES.search(plain) is None
