"""The environment that a server gets (rule 13): lists of variables, as data.

Owns three decisions:

- `scrub`: the variables that the daemon keeps of the environment it was started in. The first agent that
  needs carpool starts it, and that agent's tokens must not reach every server of every agent. Kept variables
  describe the person and the machine: directories, language, temporary files, proxies, certificates, and the
  sources of packages (exact names of pip, uv and npm: without them a server cannot be installed behind a
  company's mirror; not all of `npm_config_*`, which npm sets for every program it runs).
- `VOLATILE`: variables that differ between two terminals of one person without effect on a server; `carpool
  run` ignores them in the key. `SSH_AUTH_SOCK` is not one: another socket can be another person's keys.
- the format of an `env_file`.

Pure. Knows nothing of: files, sessions, keys. Problems hold names, never values.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Final

from carpool_protocol.config.schema.expand import is_usable
from carpool_protocol.config.text.problems import ConfigProblem

KEPT: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("the person and the machine", ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "TMPDIR", "TZ", "XDG_*")),
    ("language", ("LANG", "LANGUAGE", "LC_*", "LOCALE_ARCHIVE", "__CF_USER_TEXT_ENCODING")),
    (
        "proxies",
        (
            *("HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "ALL_PROXY", "NO_PROXY"),
            *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"),
        ),
    ),
    (
        "certificates",
        (
            *("SSL_CERT_FILE", "SSL_CERT_DIR", "NIX_SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
            *("NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA", "AWS_CA_BUNDLE", "DENO_CERT", "DENO_TLS_CA_STORE"),
            *(
                "GIT_SSL_CAINFO",
                "GIT_SSL_CAPATH",
                "CARGO_HTTP_CAINFO",
                "PIP_CERT",
                "UV_NATIVE_TLS",
                "UV_SYSTEM_CERTS",
            ),
            *("npm_config_cafile", "NPM_CONFIG_CAFILE"),
        ),
    ),
    (
        "where packages come from",
        (
            *(
                "PIP_INDEX_URL",
                "PIP_EXTRA_INDEX_URL",
                "PIP_FIND_LINKS",
                "PIP_TRUSTED_HOST",
                "PIP_CONFIG_FILE",
            ),
            *("UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
            *("UV_INSECURE_HOST", "UV_CONFIG_FILE", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_MIRROR", "UV_OFFLINE"),
            *("npm_config_registry", "NPM_CONFIG_REGISTRY", "npm_config_userconfig", "NPM_CONFIG_USERCONFIG"),
            *("npm_config_cache", "NPM_CONFIG_CACHE"),
        ),
    ),
)
"""Patterns of variables that `scrub` keeps, with the reason."""

BUILT_IN: Final = (*KEPT[0][1], *KEPT[1][1], "PWD")
"""Patterns of variables that describe the person and the machine; their values are no secrets."""

VOLATILE: Final = (
    *("_", "PWD", "OLDPWD", "SHLVL"),
    *(
        "TERM",
        "TERM_*",
        "COLORTERM",
        "COLORFGBG",
        "COLUMNS",
        "LINES",
        "VTE_VERSION",
        "GPG_TTY",
        "TTY",
        "WINDOWID",
    ),
    *(
        "ITERM_*",
        "KITTY_*",
        "WEZTERM_*",
        "ALACRITTY_*",
        "KONSOLE_*",
        "GNOME_TERMINAL_*",
        "WT_SESSION",
        "LC_TERMINAL*",
    ),
    *("TMUX", "TMUX_*", "STY", "WINDOW", "ZELLIJ*"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AGENT_PID"),
    *(
        "XDG_SESSION_ID",
        "XDG_VTNR",
        "XDG_SEAT",
        "XDG_ACTIVATION_TOKEN",
        "DESKTOP_STARTUP_ID",
        "SECURITYSESSIONID",
    ),
    *("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "MANAGERPIDFDID"),
    *(
        "VSCODE_PID",
        "VSCODE_CWD",
        "VSCODE_IPC_HOOK",
        "VSCODE_IPC_HOOK_CLI",
        "VSCODE_NONCE",
        "VSCODE_INJECTION",
    ),
    *(
        "CURSOR_TRACE_ID",
        "CLAUDECODE",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SESSION_ID",
    ),
    *("TRACEPARENT", "TRACESTATE", "BAGGAGE"),
)
"""Patterns of names that the key of a `carpool run` ignores. The server still gets the first caller's
values.
"""

OWN_MARKS: Final = frozenset({"CARPOOL_INSTANCE", "CARPOOL_DAEMON"})
"""The marks by which carpool finds its own processes (rule 2). Never passed on from a caller's
environment.
"""


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))


_KEPT = _any_of(pattern for _, patterns in KEPT for pattern in patterns)
_VOLATILE = _any_of(VOLATILE)
_BUILT_IN = _any_of(BUILT_IN)
_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def scrub(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that a daemon keeps of the environment it was started in.

    Values that are not UTF-8 are left out, and so are relative entries of PATH: each server would look them
    up in its own directory.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if _KEPT.match(name) and not is_volatile(name) and is_usable(name) and is_usable(value)
    }
    path = ":".join(each for each in kept.pop("PATH", "").split(":") if each.startswith("/"))
    return {**kept, "PATH": path} if path else kept


def of_caller(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a `carpool run` server: the caller's, without carpool's own marks.

    Variables that JSON or a process cannot carry (values that are not UTF-8, names with `=`) are left out.
    """
    return {
        name: value
        for name, value in environ.items()
        if name and "=" not in name and name not in OWN_MARKS and is_usable(name) and is_usable(value)
    }


def is_built_in(name: str) -> bool:
    """True for a variable whose value describes the person or the machine and is no secret."""
    return _BUILT_IN.match(name) is not None


def is_volatile(name: str) -> bool:
    """True if the key of a `carpool run` ignores this variable."""
    return name in OWN_MARKS or _VOLATILE.match(name) is not None


def read_env_file(text: str, file: str) -> tuple[dict[str, str], list[ConfigProblem]]:
    """Read an `env_file`: lines `NAME=value`, with or without `export` and quotes, `#` lines, blank lines.

    Values are taken as they are: nothing is expanded, and `#` begins a comment only at the start of a line.
    """
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    problems: list[ConfigProblem] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        if found is None or not is_usable(found[2]):
            problems.append(ConfigProblem(file, number, "", "is not a line like NAME=value"))
            continue
        name, value = found[1], found[2]
        if name in values:
            text = f"set twice, also on line {lines[name]}; keep one"
            problems.append(ConfigProblem(file, number, name, text))
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[name] = value
        lines[name] = number
    return values, problems
