# mypy: ignore-errors
"""Its tools are what a file says now: lines `name: description`. `tell` says that the list has changed.

Takes the file's path.
"""

import os
import sys

from speak import send, serve, text

FILE = sys.argv[1]
ran = []


def tools():
    with open(FILE) as file:
        written = dict(line.rstrip("\n").split(": ", 1) for line in file if ": " in line)
    return {"tell": "Says that the list has changed.", "ran": "What was run.", **written}


def call(name, arguments, request):
    if name == "tell":
        send({"method": "notifications/tools/list_changed"})
    elif name == "ran":
        return text(f"{os.getpid()} {' '.join(ran)}")
    else:
        ran.append(name)
    return text(name)


serve(tools, call, list_changed=True)
