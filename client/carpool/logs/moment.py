"""Times that a person types, in the form of log lines.

Pure: the caller brings the present time. Knows nothing of: logs.
"""

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_moment(text: str, now: datetime) -> str:
    """Return the time in UTC, as in log lines. Raises `ValueError`."""
    if ago := re.fullmatch(r"(\d{1,6})([smhdw])", text):
        then = now - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
    elif re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
        then = datetime.fromisoformat(f"{now.astimezone().date()}T{text}").astimezone(UTC)
    else:
        then = datetime.fromisoformat(text).astimezone(UTC)
    return f"{then:%Y-%m-%dT%H:%M:%S}.{then.microsecond // 1000:03d}Z"
