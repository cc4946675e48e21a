"""The files of the web page: their addresses, headers and policy, and who gets them."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from carpool.http.core.access import AccessRules, hash_of
from carpool.http.core.effects import HttpRules
from carpool.http.web_files import read_web_files
from carpool.terminal import display
from carpool_protocol.faults.kinds import KINDS
from tests.behaviours import behaviour
from tests.client.http.door_core_rig import DoorCoreRig

FILES = read_web_files()
PATHS = ("/", "/web/", "/web/page.js", "/web/page.css", "/web/errors.json")
TOKENS = AccessRules(tokens={"agent": hash_of("agent")})


def rig(gate: AccessRules | None = None, path: str = "/mcp") -> DoorCoreRig:
    return DoorCoreRig(HttpRules(path=path), gate, web_files=FILES)


@behaviour("web:sealed")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("gate", [None, TOKENS], ids=["open", "tokens"])
def test_the_page_loads_from_its_door_alone(path: str, gate: AccessRules | None) -> None:
    door = rig(gate)
    x = door.send("GET", path)
    assert door.status(x) == 200
    policy = dict(
        each.split(" ", 1) for each in (door.header(x, "Content-Security-Policy") or "").split("; ")
    )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert door.header(x, "X-Content-Type-Options") == "nosniff"
    assert door.header(x, "Referrer-Policy") == "no-referrer"
    assert door.header(x, "Cross-Origin-Opener-Policy") == "same-origin"
    assert door.header(x, "Access-Control-Allow-Origin") is None


class _Links(HTMLParser):
    """What a page loads, and what runs in it."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._open = tag
        self.inline += [name for name, _ in attributes if name.startswith("on") or name == "style"]
        self.loaded += [value or "" for name, value in attributes if name in {"src", "href"} and tag != "a"]

    def handle_data(self, data: str) -> None:
        if self._open in {"script", "style"} and data.strip():
            self.inline.append(data)


@behaviour("web:sealed")
def test_the_page_holds_no_inline_script_or_style_and_names_no_other_host() -> None:
    links = _Links()
    links.feed(FILES["index.html"].body.decode())
    assert links.inline == []
    assert links.loaded == ["data:,", "/web/page.css", "/web/page.js"]
    for file in FILES.values():
        hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", file.body.decode()))
        assert hosts <= {"http://www.w3.org/2000/svg"}, "a namespace is a name, and is not loaded"


@behaviour("web:sealed")
def test_the_script_never_reads_text_as_markup_or_code() -> None:
    script = FILES["page.js"].body.decode()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in script


@behaviour("web:sealed")
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed, which runs the script")
def test_the_page_spells_out_what_is_not_seen() -> None:
    script = FILES["page.js"].body.decode()
    begin, end = script.index("const UNSEEN"), script.index("const text =")
    text = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
    run = f"{script[begin:end]} process.stdout.write(shown(require('fs').readFileSync(0, 'utf8')))"
    done = subprocess.run(["node", "-e", run], input=text.encode(), capture_output=True, check=True)
    kept = {*done.stdout.decode()}
    unseen = {*filter(display.is_unseen, text)}
    assert kept & unseen == {"\n", "\t"}
    assert {*"aé日\u00a0\U0001f600"} <= kept
    one = subprocess.run(
        ["node", "-e", run], input="a\u202e\U000e0041".encode(), capture_output=True, check=True
    )
    assert one.stdout == rb"a\u202e\U000e0041"


@behaviour("web:errors")
def test_each_error_code_is_explained_in_the_words_of_the_page_of_errors() -> None:
    door = rig()
    found = json.loads(door.answers[door.send("GET", "/web/errors.json")].body)
    assert found.keys() == KINDS.keys()
    kind = KINDS["timed_out"]
    assert found["timed_out"] == {
        "family": kind.family,
        "delivered": kind.delivered,
        "what": kind.what,
        "advice": kind.advice,
    }


def test_where_mcp_is_spoken_at_the_root_the_page_is_below_it() -> None:
    door = rig(path="/")
    assert door.status(door.send("GET", "/")) == 406, "it is of MCP"
    assert door.answers[door.send("GET", "/web/")].media.startswith("text/html")


def test_the_page_is_only_read() -> None:
    door = rig()
    x = door.send("POST", "/", b"{}", content_type="application/json")
    assert door.status(x) == 405
    assert door.header(x, "Allow") == "GET, HEAD"


@behaviour("web:access")
def test_the_page_opens_by_a_link_elsewhere_and_is_not_embedded_there() -> None:
    door = rig()
    visit = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert door.status(door.send("GET", "/", **visit)) == 200
    assert door.status(door.send("GET", "/", **{**visit, "sec_fetch_dest": "iframe"})) == 403
    assert door.status(door.send("GET", "/", **visit, origin="https://evil.example")) == 403
    assert door.status(door.send("GET", "/web/page.js", sec_fetch_site="cross-site")) == 403
    assert door.status(door.send("GET", "/operator/status", **visit)) == 403
    assert door.status(door.send("GET", "/", host="evil.example")) == 421
