"""A server with a hostile catalog, as a real process: what a terminal shows, what is told of the bounds."""

import json
import re

import trio

from tests.behaviours import behaviour
from tests.kit.catalog_reader import CAPABILITIES
from tests.kit.hostile_catalogs import HOSTILE, HostileCatalog
from tests.kit.line_agent import LIMIT_S
from tests.kit.live import Daemon, Make, kit

OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069]")
"""Control characters but line ends, and marks that change the reading direction."""
SHOWN = ("ansi", "controls", "bidi", "markdown", "names")


def recorded(daemon: Daemon, said: HostileCatalog) -> str:
    """The file that `recorded.py` tells it from."""
    about = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "x"}}
    listed = {"tools": said.tools, "prompts": said.prompts, "resources": said.resources}
    told = {
        f"{name}/list": '{"' + name + '":[' + b",".join(entries).decode() + "]}"
        for name, entries in listed.items()
    }
    told["initialize"] = json.dumps(about | {"instructions": said.instructions})
    file = daemon.base / f"{said.name}.json"
    file.write_text(json.dumps(told))
    return str(file)


def served(daemon: Make, said: HostileCatalog) -> Daemon:
    one = daemon({}, up=False)
    one.configure({"evil": kit("recorded", recorded(one, said))})
    one.up()
    return one


@behaviour("catalogs:terminal")
async def test_what_hostile_servers_list_is_not_obeyed_by_a_terminal(daemon: Make) -> None:
    one = daemon({}, up=False)
    one.configure({f"evil-{name}": kit("recorded", recorded(one, HOSTILE[name])) for name in SHOWN})
    one.up()
    with trio.fail_after(LIMIT_S):
        for verb in (("tools",), ("tools", "plain"), ("prompts",), ("resources",), ("status",)):
            _, out, err = await one.carpool(*verb)
            text = (out + err).replace("\t", " ")
            assert not OBEYED.search(text), verb
            if verb == ("tools",):
                assert all(f"evil-{name}" in text for name in SHOWN), "they are shown"


@behaviour("catalogs:bounded")
async def test_what_is_left_out_is_told_to_the_user(daemon: Make) -> None:
    instructions = HOSTILE["huge instructions"].instructions
    one = served(daemon, HostileCatalog("huge", HOSTILE["huge entries"].tools, instructions=instructions))
    with trio.fail_after(LIMIT_S):
        assert "evil__small" in (await one.carpool("tools"))[1]
        entries, text = "16 entries of its tools are left out", "its instructions are"
        for verb in (("status",), ("why", "evil"), ("logs", "evil"), ("logs", "--daemon")):
            _, out, _ = await one.carpool(*verb)
            assert entries in " ".join(out.split()), (verb, out)
            assert text in " ".join(out.split()), (verb, out)
