"""Lists before anything runs: what a server told an earlier carpool, and what a `tools_file` says."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from carpool.control.control_client import ControlClient
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, WAIT_S, Json, fault_of
from tests.kit.live import Daemon, Make, kit, texts_below
from tests.kit.stateless_agent import Stateless
from tests.kit.waits import until

CHANGED = "notifications/tools/list_changed"
RICH = {
    "tools": {"buy": "Buys."},
    "instructions": "Ring the bell.",
    "prompts": ["haggle"],
    "resources": ["shop:/bread"],
}


class Shop:
    """A server that offers what a file says, and how often it was started."""

    def __init__(self, one: Daemon, name: str, **offer: Any) -> None:
        self.ledger, self.offer = one.base / f"{name}-starts", one.base / f"{name}.json"
        self.ledger.touch()
        self.offers(**offer)

    def offers(self, **what: Any) -> None:
        self.offer.write_text(json.dumps(what))

    def config(self, **settings: Any) -> Json:
        return kit("offers", str(self.ledger), str(self.offer), **settings)

    def starts(self) -> int:
        return len(self.ledger.read_text().splitlines())


class Street(Daemon):
    """Carpool has run once, all shops have told their lists, and it runs again with another environment; each
    test has its shop.
    """

    def __init__(self) -> None:
        super().__init__()
        names = ("rich", "modern", "grown", "torn", "moved", "filed")
        self.shops = {name: Shop(self, name, **RICH) for name in names}
        self.shops["leaky"] = Shop(self, "leaky", tools={"buy": "Buys with open-sesame-17."})
        servers = {name: shop.config() for name, shop in self.shops.items()}
        servers["torn"]["era"] = "legacy"  # its starts are counted, whichever era lists first
        servers["leaky"]["env"] = {"SHOP_TOKEN": "open-sesame-17"}
        self.configure(servers)
        self.up()
        with ControlClient(str(self.directory), control=True) as door:
            door.request("carpool/tools", {}, WAIT_S)
        key = self.facts()["servers"]["torn"]["pools"][0]["key"]
        assert self.run("down").returncode == 0
        self.torn = self.kept / f"{key.rpartition(':')[2]}.catalog"
        data = self.torn.read_bytes()
        self.broken = data[:-1] + bytes([data[-1] ^ 1])
        self.torn.write_bytes(self.broken)
        other = Shop(self, "moved-there", tools={"lend": "Lends."})
        schema = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
        tools = [{"name": "buy", "inputSchema": schema}, {"name": "order", "inputSchema": schema}]
        self.lists = self.base / "tools.json"
        self.lists.write_text(json.dumps({"tools": tools}))
        (self.base / "bad.json").write_text('{"tools": [\n{"title": "no name"}]}')
        absent = {"command": str(self.base / "no-such-program"), "tools_file": "tools.json"}
        more = {
            "moved": other.config(),
            "filed": self.shops["filed"].config(tools_file="tools.json"),
            "absent": {**absent, "restart": {"give_up_after": 1, "open_s": 0}},
            "bad": self.shops["filed"].config(tools_file="bad.json"),
        }
        self.configure({**servers, **more})
        # Another program starts it, which passes on other variables of the user's.
        self.environ |= {"LANG": "de_DE.UTF-8", "LANGUAGE": "de:en", "TZ": "Europe/Berlin", "USER": "ann"}
        self.up()

    @property
    def kept(self) -> Path:
        return self.directory / "state" / "catalogs"


@pytest.fixture(scope="module")
def shared() -> Iterator[Street]:
    street = Street()
    yield street
    street.close()


@behaviour("lists:from-disk", "lists:renewed", "lists:any-starter")
async def test_lists_come_from_disk_and_a_start_that_offers_others_is_told(shared: Street) -> None:
    shop = shared.shops["rich"]
    shop.offers(tools={"buy": "Buys.", "sell": "Sells it."})
    with trio.fail_after(LIMIT_S):
        async with shared.shim(greet=False) as agent, shared.agent() as never_listed:
            greeted = await agent.greet()
            assert "Ring the bell." in greeted["instructions"]
            assert {"tools", "prompts", "resources"} <= greeted["capabilities"].keys()
            assert "rich__buy" in await agent.tools()
            prompts = (await agent.result("prompts/list"))["prompts"]
            resources = (await agent.result("resources/list"))["resources"]
            assert "rich__haggle" in [it["name"] for it in prompts]
            assert "carpool+rich+shop:/bread" in [it["uri"] for it in resources]
            facts = (await shared.status())["servers"]["rich"]
            assert (facts["state"], facts["tools"], facts["lists"]["from"]) == ("cold", 1, "earlier")
            assert "since carpool started" in (await shared.carpool("why", "rich"))[1]
            assert shop.starts() == 1, "a list has started it"
            since = len(agent.notices)
            assert await never_listed.text("rich__buy") == "buy"
            await agent.notice(CHANGED, since)
            assert "rich__sell" in await agent.tools()
            assert shop.starts() == 2
            assert (await shared.status())["servers"]["rich"]["lists"]["from"] == "server"
            files = list(shared.kept.glob("*.catalog"))
            assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
            await until(
                lambda: any(b"Sells it." in path.read_bytes() for path in shared.kept.glob("*.catalog")),
                "what it offers now is on disk",
            )


async def test_an_agent_of_the_stateless_era_is_told_that_a_list_from_disk_may_be_old(shared: Street) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent(greet=False) as agent:
            listed = await Stateless(agent).result("tools/list")
            assert "modern__buy" in [tool["name"] for tool in listed["tools"]]
            assert listed["ttlMs"] == 0
            assert shared.shops["modern"].starts() == 1


async def test_a_tool_that_the_list_from_disk_does_not_have_is_asked_of_the_server(shared: Street) -> None:
    shared.shops["grown"].offers(tools={"sell": "Sells."})
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            assert await agent.text("grown__sell") == "sell"
            assert (await agent.ask("tools/call", {"name": "grown__steal"}))["error"]["code"] == -32602
            names = await agent.tools()
            assert [name for name in names if name.startswith("grown__")] == ["grown__sell"]


@behaviour("lists:broken-file")
async def test_a_file_that_is_not_as_it_was_written_is_passed_over_and_replaced(shared: Street) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            await agent.until_listed(lambda names: "torn__buy" in names, "its server has told")
        assert shared.shops["torn"].starts() == 2
        assert shared.log("broker").count("is not a catalog of this carpool") == 1
        await until(lambda: shared.torn.read_bytes() != shared.broken, "it is written again")


async def test_a_list_that_holds_a_value_of_the_environment_is_not_kept(shared: Street) -> None:
    assert "the lists of leaky hold a value of its environment" in shared.log("broker")
    # The copy of the user's own file that stands in the runtime directory holds what is written out in that.
    told = [path for path, text in texts_below(shared.directory / "state") if "open-sesame-17" in text]
    assert told == []


async def test_a_broker_that_knows_no_values_yet_keeps_no_list_that_may_hold_one(daemon: Make) -> None:
    one = daemon(up=False)
    shop = Shop(one, "leaky", tools={"buy": "Buys with open-sesame-18."})
    one.configure({"leaky": shop.config(env={"SHOP_TOKEN": "${SHOP_TOKEN}"})})
    one.up()
    with trio.fail_after(LIMIT_S):
        async with one.shim(environ={"SHOP_TOKEN": "open-sesame-18"}) as agent:
            assert await agent.tools() == ["leaky__buy"]
            broker = (await one.status())["broker"]["pid"]
            carriers = [pid for pid, line in one.running().items() if line.endswith("carpool connect")]
            for pid in carriers:  # who brings the values comes back late
                os.kill(pid, signal.SIGSTOP)
            os.kill(broker, signal.SIGKILL)
            await until(lambda: one.log("broker").count("broker serves") == 2, "the next one serves", WAIT_S)
            # After what the supervisor has told of its pools.
            await one.until(lambda facts: facts["supervisors"], "the supervisor is linked")
            await one.status()
            for pid in carriers:
                os.kill(pid, signal.SIGCONT)
            assert await agent.tools() == ["leaky__buy"]
    assert one.run("down").returncode == 0
    assert "open-sesame-18" not in one.log_text()


async def test_a_server_with_other_arguments_is_another_one_to_what_is_kept(shared: Street) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            names = await agent.until_listed(lambda names: "moved__lend" in names, "its server has told")
            assert "moved__buy" not in names


# --- tools files -------------------------------------------------------------------------------------------


def of(server: str, names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(f"{server}__")]


@behaviour("tools-file:listed", "call:dry-run")
async def test_a_tools_file_speaks_until_the_server_does_and_when_it_is_stopped(shared: Street) -> None:
    shop = shared.shops["filed"]
    by_file = ["filed__buy", "filed__order"]
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            assert of("filed", await agent.tools()) == by_file
            assert (await shared.status())["servers"]["filed"]["lists"]["from"] == "file"
            words = ("call", "filed__order", "--dry-run", "--args")
            code, said, _ = await shared.carpool(*words, '{"count": 3}')
            assert (code, "nothing was called" in said) == (0, True)
            code, said, _ = await shared.carpool(*words, '{"count": "hush-hush"}', "--json")
            assert (code, json.loads(said)["problems"][0]["path"], "hush" in said) == (1, "count", False)
            assert shop.starts() == 1, "listing or a dry run has started it"
            since = len(agent.notices)
            assert await agent.text("filed__buy", {"count": 1}) == "buy"
            await agent.notice(CHANGED, since)
            assert of("filed", await agent.tools()) == ["filed__buy"]
            since = len(agent.notices)
            assert (await shared.carpool("stop", "filed"))[0] == 0
            await agent.notice(CHANGED, since)
            assert of("filed", await agent.tools()) == by_file
            assert fault_of(await agent.call("filed__order"))["code"] == "stopped"
            since = len(agent.notices)
            fresh = shared.lists.with_suffix(".new")
            fresh.write_text(json.dumps([{"name": "fetch"}]))
            fresh.replace(shared.lists)  # half of it would be a broken file
            await agent.notice(CHANGED, since)
            assert of("filed", await agent.tools()) == ["filed__fetch"]


async def test_the_tools_of_a_server_that_cannot_be_started_stay_listed_and_a_call_says_why(
    shared: Street,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with shared.agent() as agent:
            listed = of("absent", await agent.tools())
            assert listed
            fault = fault_of(await agent.call(listed[0]))
            assert (fault["server"], fault["delivered"]) == ("absent", "no")
            await shared.until(
                lambda facts: facts["servers"]["absent"]["state"] == "given_up", "it has given up"
            )
            assert of("absent", await agent.tools()) == listed
            assert fault_of(await agent.call(listed[0]))["code"] == "cannot_start"


@behaviour("tools-file:bad")
async def test_a_bad_tools_file_is_told_with_its_line(shared: Street) -> None:
    facts = (await shared.status())["servers"]["bad"]
    assert facts["state"] == "misconfigured"
    assert "bad.json:2: tools[0]: has no name" in facts["last_error"]
