"""The examples of docs/hooks.md, as they are printed there."""

import re
from pathlib import Path

import trio

from carpool_protocol.config.text.jsonc import parse
from tests.behaviours import behaviour
from tests.kit.line_agent import LIMIT_S, fault_of
from tests.kit.live import Make, observer

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


def block(text: str, begin: str) -> str:
    """The code block that holds this line."""
    blocks: list[str] = re.findall(r"```\w+\n(.*?)```", text, re.DOTALL)
    (found,) = [each for each in blocks if begin in each]
    return found


@behaviour("hooks:page")
async def test_the_examples_deny_rewrite_and_redact(daemon: Make) -> None:
    page = PAGE.read_text(encoding="utf-8")
    one = daemon(up=False)
    parsed = parse(block(page, '"mcpServers"'), "hooks.md")
    assert isinstance(parsed.value, dict)
    hooks = parsed.value["hooks"]
    assert isinstance(hooks, list)
    script = one.base / "bin" / "redact"
    script.parent.mkdir()
    script.write_text(block(page, "# ~/bin/redact"))
    script.chmod(0o700)
    (one.base / "my_hooks.py").write_text(block(page, "# my_hooks.py"))
    for each in hooks:
        assert isinstance(each, dict)
        each["timeout_s"] = 60  # the machine may be busy
    servers = {"files": observer("--tool", "read"), "mail": observer("--tool", "send", "--tool", "inbox")}
    one.configure(servers, hooks=hooks)
    one.up()
    with trio.fail_after(LIMIT_S):
        async with one.shim() as agent:
            denied = await agent.call("files__read", {"path": "/home/me/.env"})
            assert fault_of(denied)["code"] == "denied_by_hook"
            assert "ask the user for the value you need" in denied["content"][0]["text"]
            assert await agent.text("files__read", {"path": "/home/me/notes"}) == "read"
            assert await agent.text("mail__send", {"text": "hello"}) == "hello\n-- sent by live"
            assert await agent.text("mail__inbox", {"text": "card 1234567812345678"}) == "card [card]"
