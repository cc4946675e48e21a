"""A hook that is a command, for live tests: what it does is its first argument. Standard library only.

`shout` rewrites each text of a result; `deny` denies; `note FILE` adds a line for each call that it is told;
`gate DIR` does so, too, and lets it pass once there is a file `open`; `fail` ends with exit code 3; `speak`
says what is no verdict; `breed FILE` starts a process that would live on, and hangs.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any


def say(verdict: str, **more: Any) -> None:
    print(json.dumps({"verdict": verdict, **more}, indent=1))  # over several lines: that is allowed


def note(path: str, call: dict[str, Any]) -> None:
    text = call.get("arguments", {}).get("text", "")
    with open(path, "a") as file:
        file.write(f"{call['phase']} {call.get('outcome') or '-'} {call.get('code') or '-'} {text}\n")


def main() -> int:
    what, *rest = sys.argv[1:]
    call = json.load(sys.stdin)
    if what == "shout":
        content = [{**each, "text": each["text"].upper()} for each in call["result"]["content"]]
        say("rewrite", result={**call["result"], "content": content})
    elif what == "deny":
        say("deny", reason=f"{call['name']} is not for {call['agent']}\x1b[2J\nnever")
    elif what == "note":
        note(rest[0], call)
    elif what == "gate":
        note(os.path.join(rest[0], "seen"), call)
        while not os.path.exists(os.path.join(rest[0], "open")):
            time.sleep(0.01)
    elif what == "fail":
        print("this hook cannot go on, token is", os.environ.get("HOOK_TOKEN", "none"), file=sys.stderr)
        return 3
    elif what == "speak":
        print("good morning")
    elif what == "breed":
        child = subprocess.Popen([sys.executable, "-S", "-E", "-c", "import time; time.sleep(600)"])
        with open(rest[0], "a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
        time.sleep(600)
    return 0


if __name__ == "__main__":
    sys.exit(main())
