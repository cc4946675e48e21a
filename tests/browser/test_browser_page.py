"""The web page in a real browser: figures, errors, acts, hostile texts, keyboard, phone, deaths."""

import json
import os
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio

from carpool.cluster.core.offers import NodeOffer
from carpool.cluster.node_facts import NodeFacts, OtherNode, SilentNode, write_facts
from carpool.http.core.access import hash_of
from carpool_protocol.faults.kinds import KINDS
from tests.behaviours import behaviour
from tests.kit.browser import HeadlessBrowser
from tests.kit.hostile_catalogs import HOSTILE
from tests.kit.live import Daemon, Make, kit, observer
from tests.kit.open_door import open_door
from tests.kit.ports import free_port
from tests.live.test_live_hostile_catalogs import SHOWN, recorded
from tests.live.test_live_http import door

LIMIT_S = 120.0
AGENTS = 12
TEXT = "document.body.innerText"


async def address(daemon: Daemon, *, with_key: bool = True) -> str:
    door(daemon)
    told: dict[str, str] = json.loads((await daemon.carpool("web", "--json"))[1])
    return told["url" if with_key else "page"]


SHORT = """
globalThis.all = (selector) => document.querySelectorAll(selector);
globalThis.one = (selector) => document.querySelector(selector);
globalThis.show = (isHidden) => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => isHidden});
  document.dispatchEvent(new Event('visibilitychange'));
};
globalThis.seen = [];
const mark = $('link-state');
new MutationObserver(() => seen.push(mark.dataset.state)).observe(mark, {attributes: true});
"""
"""Short words for the tests. `seen`: the states of the connection since then."""


async def shown(browser: HeadlessBrowser, daemon: Daemon, *, with_key: bool = True) -> None:
    """Open the page, and wait for its first state."""
    await browser.resize(1280, 900)
    await browser.open(await address(daemon, with_key=with_key))
    await browser.until("typeof state !== 'undefined' && state !== null")
    await browser.run(SHORT)


def clicked(selector: str, words: str = "") -> str:
    """Click the first element of this kind with these words; true if there is one."""
    return (
        f"(() => {{ const found = [...document.querySelectorAll({json.dumps(selector)})]"
        f".find(each => each.offsetParent && each.textContent.includes({json.dumps(words)}));"
        " found?.click(); return Boolean(found) })()"
    )


async def status_of(daemon: Daemon) -> Any:
    return json.loads((await daemon.carpool("status", "--json"))[1])


@behaviour("web:same")
async def test_the_figures_on_the_page_are_those_of_the_broker(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo"), "good": observer()}, http=open_door())
    with trio.fail_after(LIMIT_S):
        async with AsyncExitStack() as stack:
            agents = [await stack.enter_async_context(one.agent()) for _ in range(AGENTS)]
            for number, agent in enumerate(agents):
                assert await agent.text("echo__echo", {"text": str(number)}) == str(number)
            await shown(browser, one)
            await browser.until(f"state.totals.calls >= {AGENTS}")
            totals = (await status_of(one))["totals"]
            figures = await browser.run(
                "Object.fromEntries([...all('#totals div')]"
                ".map(each => [each.children[0].textContent, each.children[1].textContent]))"
            )
            assert figures["agents"] == str(totals["sessions"]) == str(AGENTS)
            assert figures["calls so far"] == str(totals["calls"])
            assert figures["server processes"] == str(totals["instances"])
            assert await browser.run("all('#flow-agent-list .agent').length") == AGENTS
            held = await agents[0].start("good__hold", {"text": "x", "until": str(one.base / "go")})
            await browser.until("all('.agent.busy').length === 1")
            await browser.until("all('.instance.busy').length === 1")
            (one.base / "go").touch()
            await agents[0].answer(held)
            await browser.until("all('.agent.busy').length === 0")


@behaviour("web:waterfall", "web:errors")
async def test_an_error_is_followed_to_its_explanation(daemon: Make, browser: HeadlessBrowser) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        async with one.agent() as agent:
            await agent.text("echo__echo", {"text": "hi"})
            assert "error" in await agent.answer(await agent.start("echo__nothing", {}))
        await browser.until(clicked("#recent-short button", "unknown_tool"))
        kind = KINDS["unknown_tool"]
        said = await browser.run("$('details').innerText")
        assert kind.what in said
        assert kind.advice in said
        assert await browser.run(clicked("#details button", "On the page of errors"))
        await browser.until(f"one('#error-list').innerText.includes({json.dumps(kind.what)})")
        assert await browser.run("one('#tab-errors').ariaSelected") == "true"
        assert await browser.run(clicked("#tab-calls"))
        await browser.until(clicked("#recent-long button", "echo/echo"))
        said = await browser.run("$('details').innerText")
        assert "at the server" in said
        assert await browser.run(clicked("#details button", "What happened to it"))
        await browser.until("$('details').innerText.includes('its server answered')")


@behaviour("web:access")
async def test_a_server_is_restarted_by_keyboard_after_a_question(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.text("echo__echo", {"text": "hi"})
            await shown(browser, one)
            assert "#code" not in await browser.run("location.href"), "the code does not stay in the address"
            (before,) = [each["pid"] for each in (await status_of(one))["servers"]["echo"]["instances"]]
            await browser.run(clicked("#tab-servers"))
            await browser.until("one('#table-servers button.small')")
            await browser.run("one('#table-servers button.small').focus()")
            await browser.press("Enter")
            await browser.until("$('ask').open")
            assert "Restart echo?" in await browser.run("$('ask').innerText")
            await browser.press("Escape")
            await browser.until("!$('ask').open")
            await browser.press("Enter")
            await browser.until("$('ask').open")
            await browser.run("$('ask-yes').focus()")
            await browser.press("Enter")
            await browser.until("$('said').textContent.startsWith('echo:')")
            await browser.until(f"!state.servers.echo.instances.some(each => each.pid === {before})")


@behaviour("web:sealed")
@pytest.mark.parametrize("name", SHOWN)
async def test_a_hostile_catalog_is_shown_and_not_obeyed(
    daemon: Make, browser: HeadlessBrowser, name: str
) -> None:
    one = daemon({}, up=False, http=open_door())
    said = HOSTILE[name]
    one.configure({"evil": kit("recorded", recorded(one, said))}, http=open_door())
    one.up()
    with trio.fail_after(LIMIT_S):
        await one.carpool("tools")
        await shown(browser, one)
        count = "all('*').length"
        kinds = "[...new Set([...all('*')].map(each => each.localName))].sort().join()"
        known = set((await browser.run(kinds)).split(","))
        await browser.run(clicked("#tab-tools"))
        await browser.until("all('#offer tbody tr').length > 0")
        await browser.run(clicked("#offer tbody button"))
        await browser.until("$('details').open")
        await browser.run(clicked("#details button", "Definition"))
        await browser.until("one('#details pre')")
        assert set((await browser.run(kinds)).split(",")) - known <= {
            "pre",
            "h3",
            "dl",
            "dt",
            "dd",
            "tr",
            "td",
        }
        assert await browser.run(count) < 2000
        text = await browser.run("$('details').textContent + $('offer').textContent")
        unseen = {
            chr(code)
            for code in (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0x1B)
        }
        assert not unseen & set(text)
        assert await browser.run("all('img, iframe, object, script:not([src])').length") == 0
        assert await browser.run("document.title") == "carpool"


@behaviour("web:sealed")
async def test_markup_in_the_name_of_an_agent_is_text(daemon: Make, browser: HeadlessBrowser) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    name = "<img src=x onerror=owned=1><b>bold"
    with trio.fail_after(LIMIT_S):
        async with one.agent(greet=False) as agent:
            about = {"protocolVersion": "2025-11-25", "capabilities": {}}
            await agent.result("initialize", {**about, "clientInfo": {"name": name, "version": "1"}})
            await agent.tell("notifications/initialized")
            await agent.text("echo__echo", {"text": "hi"})
            await shown(browser, one)
            await browser.until(f"one('#flow-agent-list').textContent.includes({json.dumps(name)})")
            assert await browser.run("typeof owned") == "undefined"
            assert await browser.run("all('img, b').length") == 0


@behaviour("web:access")
@pytest.mark.parametrize(
    "fragment", ["code=%E0%A4%A", "code=\u00e9", "code=", "key=x", "code=once-x", "nothing"]
)
async def test_a_fragment_that_cannot_be_read_is_said_and_leaves_the_address(
    daemon: Make, browser: HeadlessBrowser, fragment: str
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await browser.open(f"{await address(one, with_key=False)}#{fragment}")
        await browser.until("typeof state !== 'undefined' && state !== null")
        assert await browser.run("location.hash") == "#overview"
        assert await browser.run("$('said').textContent.toLowerCase().startsWith('this ')")
        assert await browser.run("sessionStorage.length") == 0
        if fragment == "code=once-x":
            (refused,) = browser.complaints
            assert "403" in refused
            browser.complaints.clear()


@behaviour("web:same", "cluster:status")
async def test_the_nodes_of_a_cluster_are_on_the_page(daemon: Make, browser: HeadlessBrowser) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    hostile = "<b>alpha\u202e"
    facts = NodeFacts(
        pid=os.getpid(),
        cluster="garage",
        is_up=True,
        own=NodeOffer(node="beta", epoch="1", release="1"),
        nodes=[OtherNode(offer=NodeOffer(node=hostile, epoch="1", release="1"), is_reached=True, sessions=0)],
        silent=[SilentNode("gamma", 90.0)],
    )
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        assert await browser.run("$('flow-nodes').textContent") == ""
        write_facts(str(one.directory), facts)
        await browser.until("state.cluster !== null")
        said = await browser.run("$('flow-nodes').innerText")
        for words in ("Nodes of garage", "beta", "this one", "<b>alpha\\u202e", "reached", "gamma"):
            assert words in said
        assert "silent for 90.0 s" in said
        await browser.run(clicked("#tab-servers"))
        await browser.until("one('#table-nodes').innerText.includes('gamma')")


@behaviour("web:access")
async def test_without_the_key_the_page_reads_and_offers_no_act(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one, with_key=False)
        await browser.until("$('right').textContent === 'may only read'")
        await browser.run(clicked("#tab-servers"))
        await browser.until("one('#table-servers button.small')")
        assert await browser.run("[...all('#table-servers .acts button')].every(b => b.disabled)")
        key = (await address(one)).partition("#code=")[2]
        await browser.run(f"$('key').value = {json.dumps(key)}")
        await browser.run(clicked("#enter"))
        await browser.run("$('login-form').requestSubmit()")
        await browser.until("$('right').textContent === 'may act'")
        await browser.until("[...all('#table-servers .acts button')].every(b => !b.disabled)")


@behaviour("web:access")
async def test_with_tokens_the_page_asks_for_one_and_says_what_is_wrong(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    tokens = {"eye": {"hash": hash_of("read"), "operator": "read"}}
    one = daemon({"echo": kit("echo")}, http={"port": 0, "tokens": tokens})
    with trio.fail_after(LIMIT_S):
        await browser.open(await address(one, with_key=False))
        await browser.until("typeof $ !== 'undefined' && !$('login').hidden")
        await browser.run("$('key').value = 'wrong'")
        await browser.run("$('login-form').requestSubmit()")
        await browser.until(f"{TEXT}.includes('the key is not accepted')")
        await browser.run("$('key').value = 'read'")
        await browser.run("$('login-form').requestSubmit()")
        await browser.until("state !== null && $('right').textContent === 'may only read'")
    browser.complaints = [each for each in browser.complaints if "401" not in each]


@behaviour("web:proof")
async def test_a_token_is_sent_to_no_program_that_listens_after_the_end_of_carpool(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    tokens = {"eye": {"hash": hash_of("secret-token"), "operator": "read"}}
    port = free_port()
    servers = {"echo": kit("echo")}
    one = daemon(servers, http={"port": port, "tokens": tokens})
    got: list[bytes] = []

    async def stranger(stream: trio.SocketStream) -> None:
        """It answers whatever it is asked, as well as it can."""
        async with stream:
            head = b""
            while data := await stream.receive_some():
                head += data
                if b"\r\n\r\n" in head:
                    break
            got.append(head)
            body = b'{"proof":"%b"}' % (b"00" * 32)
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )

    with trio.fail_after(LIMIT_S):
        await browser.open(await address(one, with_key=False))
        await browser.until("typeof $ !== 'undefined' && !$('login').hidden")
        await browser.run(SHORT)
        await browser.run("$('key').value = 'secret-token'")
        await browser.run("$('login-form').requestSubmit()")
        await browser.until("state !== null && isLive")
        assert await browser.run("sessionStorage.length + localStorage.length") == 0
        assert (await one.carpool("restart", "--all"))[0] == 0
        await browser.run("state = null")
        await browser.until("state !== null && isLive")
        assert await browser.run("right") == "read", "it connects to the next door by itself"
        assert (await one.carpool("down"))[0] == 0
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(trio.serve_tcp, stranger, port, host="127.0.0.1"))
            await browser.until(f"{TEXT}.includes('The token was not sent')")
            nursery.cancel_scope.cancel()
        assert b"POST /operator/proof" in got[0]
        assert not any(b"secret-token" in each or b"uthorization" in each for each in got)
    browser.complaints = [each for each in browser.complaints if "401" not in each and "ERR_" not in each]


@behaviour("web:same")
async def test_the_page_is_used_by_keyboard_and_told_to_a_screen_reader(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        await browser.run("$('tab-overview').focus()")
        for tab in ("calls", "servers", "agents", "tools", "profiles", "logs", "errors", "overview"):
            await browser.press("ArrowRight")
            assert await browser.run("document.activeElement.id") == f"tab-{tab}"
            assert not await browser.run(f"document.getElementById('panel-{tab}').hidden")
        await browser.run("choose('servers')")
        await browser.until("one('#table-servers tbody tr')")
        told = await browser.accessible()
        assert ("heading", "carpool") in told
        assert ("tab", "Servers") in told
        assert ("columnheader", "SERVER") in told
        assert ("button", "Restart echo") in told
        assert any(role == "status" and name == "" for role, name in told), "the sentence is live"
        unnamed = [role for role, name in told if role in {"button", "tab", "link", "searchbox"} and not name]
        assert unnamed == []


@behaviour("web:same")
async def test_no_part_of_the_page_is_wider_than_a_phone(daemon: Make, browser: HeadlessBrowser) -> None:
    one = daemon({"echo": kit("echo"), "long": kit("echo", tags=["x" * 30])}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        await browser.resize(390, 844)
        for tab in ("overview", "calls", "servers", "agents", "tools", "profiles", "logs", "errors"):
            await browser.run(f"choose('{tab}')")
            await browser.until("document.documentElement.scrollWidth <= 390")


@behaviour("web:same")
async def test_on_a_phone_all_tabs_are_in_view_and_all_rows_are_equally_high(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo"), "long": kit("echo", tags=["x" * 30])}, http=open_door())
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.text("echo__echo", {"text": "hi"})
            await shown(browser, one)
            await browser.resize(390, 844)
            assert await browser.run("$('tabs').scrollWidth <= $('tabs').clientWidth")
            heights = (
                "new Set([...all('tbody tr')].filter(e => e.offsetParent).map(e => e.offsetHeight)).size"
            )
            for tab, rows in (("servers", 2), ("tools", 3), ("errors", 3)):
                await browser.run(f"choose('{tab}')")
                await browser.until(
                    f"[...all('#panel-{tab} tbody tr')].filter(e => e.offsetParent).length >= {rows}"
                )
                assert await browser.run(heights) == 1, tab


@behaviour("web:same")
async def test_the_open_dialog_of_a_server_follows_it_and_keeps_what_was_read(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        async with one.agent() as agent:
            await agent.text("echo__echo", {"text": "hi"})
            await shown(browser, one)
            await browser.run("showServer('echo')")
            (before,) = [each["pid"] for each in (await status_of(one))["servers"]["echo"]["instances"]]
            await browser.until(f"$('details').innerText.includes('{before}')")
            assert await browser.run(clicked("#details button", "Why is it shared like this?"))
            await browser.until("one('#details pre')")
            await one.operate("restart", "echo")
            (after,) = [each["pid"] for each in (await status_of(one))["servers"]["echo"]["instances"]]
            await browser.until(f"$('details').innerText.includes('{after}')")
            assert not await browser.run(f"$('details').innerText.includes('{before}')")
            assert await browser.run("Boolean(one('#details pre'))")
            assert (await one.carpool("pause", "echo"))[0] == 0
            await browser.until("one('#details dl').innerText.includes('paused')")
            await browser.until("one('#details .acts').innerText.includes('Resume')")


@behaviour("web:same")
async def test_an_instance_without_a_process_here_has_no_pid_on_the_page(
    daemon: Make, browser: HeadlessBrowser
) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        known = {"state": "serving", "in_flight": 0, "calls": 0, "pss_bytes": 0, "cpu_percent": 0.0}
        rows = [{**known, "id": 7, "pid": 0, "node": "alpha"}, {**known, "id": 8, "pid": 0, "node": ""}]
        cells = await browser.run(f"{json.dumps(rows)}.map(each => instanceRow(each).cells)")
        assert [row[:3] for row in cells] == [["#7", "at alpha", "serving"], ["#8", "\u2013", "serving"]]
        assert cells[0][5:7] == ["\u2013", "\u2013"], "its memory is measured at its own node"


@behaviour("web:frozen")
async def test_the_page_goes_on_after_the_death_of_the_broker(daemon: Make, browser: HeadlessBrowser) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        pid = (await status_of(one))["broker"]["pid"]
        await browser.run("state = null; seen = []")
        os.kill(pid, signal.SIGKILL)
        await browser.until("seen.includes('away') && state !== null")
        await browser.until("$('link-state').dataset.state === 'live'")
        await browser.until(f"{TEXT}.includes('have died since carpool came up')")


@behaviour("web:frozen")
async def test_a_page_that_is_not_in_view_reads_nothing(daemon: Make, browser: HeadlessBrowser) -> None:
    one = daemon({"echo": kit("echo")}, http=open_door())
    with trio.fail_after(LIMIT_S):
        await shown(browser, one)
        await browser.run("show(true)")
        await browser.until("$('link-state').textContent === 'not in view'")
        assert await browser.run("stream.signal.aborted")
        await browser.run("state = null; show(false)")
        await browser.until("state !== null")
