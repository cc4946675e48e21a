"""The format of log files: one JSON object a line, the same for every process of carpool and every server.

`{"at": UTC, "level": …, "process": …, fields, "message": …}`. Owns the writing of a line, and the message of
a line that was read. Invariant: a line is printable text on one line, so no peer's text can forge a line or
move a cursor, not even in a file that a terminal shows raw.

Standard library only: the launcher writes with it, and imports no JSON for that. Knows nothing of: the files,
the meaning of fields (docs/files.md has them).
"""

from collections.abc import Mapping
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
"""All levels, the least important first."""

_UNSEEN = (*range(0x20), *range(0x7F, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F))
_ESCAPED: Final = {
    **{code: f"\\u{code:04x}" for code in (*_UNSEEN, *range(0x2066, 0x206A))},
    **dict.fromkeys(range(0xD800, 0xE000), "\\ufffd"),  # no UTF-8 has them
    ord("\n"): "\\n",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("\\"): "\\\\",
}


def quoted(text: str) -> str:
    """The text as a JSON string without any character that a terminal obeys."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPED)}"'


def line_head(at: str, level: str, process: str, fields: Mapping[str, str | int]) -> str:
    """The start of a line, up to the message; empty fields are left out."""
    told = "".join(
        f'"{name}":{quoted(value) if isinstance(value, str) else value},'
        for name, value in fields.items()
        if value
    )
    return f'{{"at":"{at}","level":"{level}","process":{quoted(process)},{told}"message":'


def log_line(at: str, level: str, process: str, message: str, fields: Mapping[str, str | int]) -> str:
    """One whole line, without its line end. `at`: UTC, as `wallclock` writes it. `level`: one of `LEVELS`."""
    return f"{line_head(at, level, process, fields)}{quoted(message)}}}"


def message_of(line: str) -> str:
    """The message of a line; a line in another format as it is."""
    import json  # late: only for a process that has failed

    try:
        found = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return line
    return str(found["message"]) if isinstance(found, dict) and "message" in found else line
