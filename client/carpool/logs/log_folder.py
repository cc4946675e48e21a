"""The log files of one carpool, by the names of their logs.

Owns the lookup: a name is compared with those of the files that are there, and never becomes a part of a
path. Knows nothing of: the format of a line (`records`), who reads it.
"""

import os

from carpool.logs.log_tail import LogTail
from carpool.logs.records import LogReader, LogRecord


def log_files(folder: str) -> dict[str, str]:
    """Return the path of every log by the name of its file: `broker`, `server-git`."""
    try:
        files = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    except OSError:
        files = []
    return {file.removesuffix(".log"): os.path.join(folder, file) for file in files}


def last_records(folder: str, log: str, count: int) -> list[LogRecord] | None:
    """Return the last records of one log, oldest first; None if there is no such log."""
    path = log_files(folder).get(log)
    return None if path is None else [*LogReader(log).read(LogTail(path).last_lines(count))]
