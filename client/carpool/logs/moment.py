"""Times that a person types: past ones in the form of log lines, later ones in that of the configuration.

Pure: the caller brings the present time. Knows nothing of: logs.
"""

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_moment(text: str, now: datetime) -> str:
    """Return the time in UTC, as in log lines. Raises `ValueError`."""
    if (ago := _span(text)) is not None:
        then = now - ago
    elif re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
        then = datetime.fromisoformat(f"{now.astimezone().date()}T{text}").astimezone(UTC)
    else:
        then = datetime.fromisoformat(text).astimezone(UTC)
    return f"{then:%Y-%m-%dT%H:%M:%S}.{then.microsecond // 1000:03d}Z"


def parse_later_moment(text: str, now: datetime) -> str:
    """Return a time to come, as the configuration has it: `30d` from now, or a date or time, by default UTC.

    Raises `ValueError`.
    """
    if (span := _span(text)) is not None:
        then = now + span
    else:
        then = datetime.fromisoformat(text)
        then = then.replace(tzinfo=then.tzinfo or UTC).astimezone(UTC)
    if then <= now:
        raise ValueError("it is over")
    return f"{then:%Y-%m-%dT%H:%M:%SZ}"


def _span(text: str) -> timedelta | None:
    """Return a span such as `30d`; None if the text is none."""
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    return None if found is None else timedelta(seconds=int(found[1]) * _UNITS[found[2]])
