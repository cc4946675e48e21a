"""Log lines of the OpenTelemetry SDK, as lines of carpool's own log.

Owns what such a line may say: the SDK's fixed text, numbers, and words that are known to be no value. All
else may be a header, a URL or an answer of a collector, and is left out. Owns the bound of these lines: the
SDK writes some for each batch that fails.

Refuses to know: spans, collectors. Imports nothing of OpenTelemetry.
"""

import contextlib
import logging
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

log = logging.getLogger("carpool.broker")

SDK_LOGGER: Final = "opentelemetry"
WINDOW_S: Final = 3600.0
"""A text is said at most once in this time."""
MAX_LINES: Final = 20
"""The number of different texts that are said in this time."""
MAX_CHARS: Final = 300
_KNOWN_WORDS: Final = frozenset({"spans", "Span", *(status.phrase for status in HTTPStatus)})
_USER: Final = re.compile(r"//[^/\s]*@")
_QUERY: Final = re.compile(r"\?\S+")


class SdkLogHandler(logging.Handler):
    """Writes lines of the SDK into carpool's log. `clock`: seconds of any beginning."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._window_began = clock()
        self._said: set[str] = set()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or count it as left out."""
        now, text = self._clock(), _text_of(record)
        if now - self._window_began >= WINDOW_S:
            self._window_began, self._said = now, set()
        if text in self._said or len(self._said) >= MAX_LINES:
            self._left_out += 1
            return
        self._said.add(text)
        left_out, self._left_out = self._left_out, 0
        more = f" ({left_out} lines were left out before)" if left_out else ""
        log.log(record.levelno, "OpenTelemetry: %s%s", text, more)


def log_as_carpool() -> None:
    """Let the SDK's lines go to carpool's log, and nowhere else. Doing it again changes nothing."""
    logger = logging.getLogger(SDK_LOGGER)
    logger.propagate = False
    if not any(isinstance(each, SdkLogHandler) for each in logger.handlers):
        logger.addHandler(SdkLogHandler())


class _LeftOut:
    """Stands for a value in a line."""

    def __repr__(self) -> str:
        return "…"


def _text_of(record: logging.LogRecord) -> str:
    """Return the text of a line without values: `code: %s, reason: %s` → `code: 401, reason: …`."""
    text = str(record.msg)
    if record.args:
        with contextlib.suppress(TypeError, ValueError, KeyError):  # the format wants what is left out
            text %= _safe(record.args)
    if record.exc_info and record.exc_info[0] is not None:
        text += f" ({record.exc_info[0].__name__})"
    return _QUERY.sub("", _USER.sub("//", text))[:MAX_CHARS]


def _safe(args: object) -> object:
    """Return the arguments of a line with `…` for each that may be a value."""
    if isinstance(args, dict):
        return {name: _safe_value(value) for name, value in args.items()}
    return tuple(map(_safe_value, args)) if isinstance(args, tuple) else _safe_value(args)


def _safe_value(value: object) -> object:
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and value in _KNOWN_WORDS):
        return value
    return type(value).__name__ if isinstance(value, BaseException) else _LeftOut()
