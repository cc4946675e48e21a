"""A server that mostly does as it should, and otherwise whatever it likes: both eras.

Knows nothing of: what must come of it.
"""

import json
import os
from contextlib import suppress
from random import Random
from typing import Any, Final

from tests.kit.hostile import NAMES, VERSIONS, bomb, members, mutated, one_of, scalar, text, value
from tests.kit.in_process_servers import InProcessServer, Json, echo, modern

METHODS: Final = (
    *("notifications/progress",) * 4,
    *("notifications/message", "notifications/tools/list_changed", "notifications/resources/updated"),
    *(
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/cancelled",
    ),
    *("notifications/tasks/status", "notifications/tasks", "notifications/elicitation/complete", "no/such"),
    *(
        "notifications/subscriptions/acknowledged",
        "ping",
        "roots/list",
        "sampling/createMessage",
        "initialize",
    ),
    *("elicitation/create", "elicitation/create", "sampling/createMessage", "tasks/get", "tasks/result", ""),
)
SCHEMA: Final = b'{"type":"object","properties":{"a":{"type":"string"}}}'
META: Final = "io.modelcontextprotocol/"


class Hostile:
    """One program: `take` for `InProcessServer`. `era` is what it speaks where it speaks well."""

    def __init__(self, rng: Random, era: str, *, badness: float) -> None:
        self.rng = rng
        self.well = echo if era == "handshake" else modern
        self.badness = badness
        self.asked: list[Any] = [1]
        """Ids of all requests it has heard."""
        self._pages = 0

    def __call__(self, process: InProcessServer, message: Json) -> None:
        if "id" in message and "method" in message:
            self.asked.append(message["id"])
        rng = self.rng
        if rng.random() > self.badness:
            self.well(process, message)
        else:
            self._answer(process, message)
        if rng.random() < self.badness:
            self.babble(process)

    def babble(self, process: InProcessServer) -> None:
        """Something that nobody asked for."""
        rng = self.rng
        for _ in range(rng.randrange(3)):
            self._write(process, self._unasked())
        if rng.random() < 0.2:
            with suppress(BlockingIOError):
                os.write(
                    process.fds[2], rng.choice((b"\x1b[2J\xff\n", b"\r", b"half", b"x" * 5000, b"\0\n\n"))
                )
        if rng.random() < 0.03:
            process.write(b'{"jsonrpc":"2.0","id":1,"resu')

    def _write(self, process: InProcessServer, line: bytes) -> None:
        rng = self.rng
        if rng.random() < 0.08:
            line = mutated(rng, line)
        process.write(line.replace(b"\n", b" ") + rng.choice((b"\n", b"\n", b"\r\n", b"\n\n")))

    def _answer(self, process: InProcessServer, message: Json) -> None:
        rng = self.rng
        if "id" not in message or "method" not in message:
            return
        ident = json.dumps(message["id"]).encode()
        roll = rng.random()
        if roll < 0.1:
            return
        if roll < 0.25:
            ident = one_of(
                rng,
                json.dumps(rng.choice(self.asked)).encode(),
                b'"%b"' % ident.strip(b'"'),
                b"null",
                b"9" * 5000,
                odd=0.2,
            )
        if rng.random() < 0.2:
            said = ("error", one_of(rng, self._error(), odd=0.4))
        else:
            said = ("result", one_of(rng, self._result(message["method"]), odd=0.2))
        fields = [("jsonrpc", b'"2.0"'), ("id", ident), said]
        if rng.random() < 0.05:
            fields.append((rng.choice(("error", "result", "method", "params", "jsonrpc")), value(rng)))
        line = members(rng, fields)
        self._write(process, line)
        if roll > 0.9:
            self._write(process, line)

    def _error(self) -> bytes:
        rng = self.rng
        codes = (b"-32602", b"-32042", b"-32601", b"-32001", b"-32004", b"-32021", b"-32600", b"1e400", b"5")
        url = b'{"elicitations":[{"mode":"url","url":"https://x","message":"m","elicitationId":"e"}]}'
        supported = b'{"supported":["2026-07-28","2025-11-25"],"requested":"x"}'
        fields = [("code", one_of(rng, *codes)), ("message", one_of(rng, text(rng.choice(NAMES))))]
        if rng.random() < 0.5:
            fields.append(("data", one_of(rng, url, supported, odd=0.3)))
        return members(rng, fields)

    def _offer(self, key: str) -> bytes:
        rng = self.rng
        fields = [
            (key, one_of(rng, text(rng.choice(NAMES)), odd=0.05)),
            ("description", text(rng.choice(NAMES))),
        ]
        fields.append(("inputSchema", one_of(rng, SCHEMA, odd=0.1)))
        if rng.random() < 0.2:
            hints = b'{"readOnlyHint":true,"destructiveHint":1e999}'
            fields.append(("annotations", one_of(rng, hints)))
        if rng.random() < 0.2:
            fields.append(("execution", one_of(rng, b'{"taskSupport":"required"}')))
        if key != "name":
            fields.append(("name", one_of(rng, text(rng.choice(NAMES)))))
        return members(rng, fields)

    def _page(self, what: str, key: str) -> list[tuple[str, bytes]]:
        rng = self.rng
        offers = [one_of(rng, self._offer(key), odd=0.05) for _ in range(rng.randrange(5))]
        fields = [(what, b"[" + b",".join(offers) + b"]")]
        if rng.random() < 0.3:
            self._pages += 1
            fields.append(("nextCursor", one_of(rng, b'"again"', b'"%d"' % self._pages, b'""', b"null")))
        return fields

    def _result(self, method: str) -> bytes:  # noqa: C901 - an arm per method
        rng = self.rng
        fields: list[tuple[str, bytes]]
        match method:
            case "initialize":
                capable = (
                    b'{"tools":{"listChanged":true},"logging":{},"prompts":{},"resources":{"subscribe":true}}'
                )
                tasks = b'{"tools":{},"tasks":{"requests":{"tools":{"call":{}}}}}'
                fields = [
                    ("protocolVersion", one_of(rng, b'"2025-11-25"', text(rng.choice(VERSIONS)))),
                    ("capabilities", one_of(rng, capable, tasks)),
                    ("serverInfo", one_of(rng, members(rng, [("name", text(rng.choice(NAMES)))]))),
                    ("instructions", one_of(rng, text(rng.choice(NAMES)))),
                ]
            case "server/discover":
                fields = [
                    ("supportedVersions", one_of(rng, b'["2026-07-28"]', b'["x"]', b"[]")),
                    ("capabilities", one_of(rng, b'{"tools":{"listChanged":true}}', b"{}")),
                    ("serverInfo", one_of(rng, members(rng, [("name", text(rng.choice(NAMES)))]))),
                ]
            case "tools/list":
                fields = self._page("tools", "name")
            case "prompts/list":
                fields = self._page("prompts", "name")
            case "resources/list":
                fields = self._page("resources", "uri")
            case "resources/templates/list":
                fields = self._page("resourceTemplates", "uriTemplate")
            case _:
                block = members(rng, [("type", one_of(rng, b'"text"', b'"image"')), ("text", scalar(rng))])
                fields = [("content", one_of(rng, b"[%b]" % block, block, b"[]", odd=0.2))]
                if rng.random() < 0.15:
                    task = b'{"taskId":"t1","status":"working","ttl":1000,"pollInterval":1}'
                    fields.append(("task", one_of(rng, task, odd=0.2)))
                if rng.random() < 0.15:
                    fields += [
                        (name, scalar(rng)) for name in ("taskId", "status", "pollInterval", "progress")
                    ]
        if self.well is modern or rng.random() < 0.1:
            kinds = (b'"complete"', b'"complete"', b'"input_required"', b'"task"', b'"more"')
            fields.append(("resultType", one_of(rng, *kinds)))
            if rng.random() < 0.4:
                fields.append(("inputRequests", one_of(rng, self._wants(), odd=0.2)))
            if rng.random() < 0.4:
                fields.append(("requestState", one_of(rng, b'"state"', b'""')))
            fields.append(("ttlMs", one_of(rng, b"1000", b"-1", b"1e18", b"99999999999999999999")))
            fields.append(("cacheScope", one_of(rng, b'"public"', b'"private"')))
        if rng.random() < 0.1:
            fields.append(("_meta", value(rng)))
        return members(rng, fields)

    def _wants(self) -> bytes:
        rng = self.rng
        form = (
            b'{"method":"elicitation/create","params":{"mode":"form","message":"m","requestedSchema":%b}}'
            % SCHEMA
        )
        more = (
            b'{"method":"roots/list"}',
            b'{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}',
        )
        some = [(rng.choice(NAMES), one_of(rng, form, *more)) for _ in range(rng.randrange(3))]
        return members(rng, some)

    def _unasked(self) -> bytes:
        rng = self.rng
        roll = rng.random()
        if roll < 0.05:
            return bomb(rng)
        if roll < 0.12:
            return value(rng, 3)
        method = rng.choice(METHODS)
        token = one_of(rng, json.dumps(rng.choice(self.asked)).encode(), odd=0.1)
        numbers = (b"1", b"1e308", b"-1", b"1e999", b"0.5", b"9" * 400)
        fields: list[tuple[str, bytes]] = []
        match method:
            case "notifications/progress":
                fields = [
                    ("progressToken", token),
                    ("progress", one_of(rng, *numbers)),
                    ("total", one_of(rng, *numbers)),
                ]
                fields.append(("message", text(rng.choice(NAMES))))
            case "notifications/message":
                fields = [("level", one_of(rng, b'"info"', b'"error"', b'"loud"')), ("data", value(rng))]
            case "notifications/resources/updated":
                fields = [("uri", one_of(rng, b'"x://y"', text(rng.choice(NAMES))))]
            case "notifications/cancelled":
                fields = [("requestId", token), ("reason", scalar(rng))]
            case "sampling/createMessage":
                fields = [("messages", one_of(rng, b"[]")), ("maxTokens", one_of(rng, b"1"))]
            case "elicitation/create":
                url = rng.random() < 0.3
                fields = [("message", text(rng.choice(NAMES))), ("requestedSchema", one_of(rng, SCHEMA))]
                fields += (
                    [("mode", b'"url"'), ("url", b'"https://x"'), ("elicitationId", b'"e"')] if url else []
                )
            case _ if "tasks" in method:
                fields = [
                    ("taskId", one_of(rng, b'"t1"')),
                    ("status", one_of(rng, b'"completed"', b'"working"', b'"x"')),
                ]
            case _:
                fields = [("a", value(rng))]
        if rng.random() < 0.3:
            related = members(rng, [(META + "related-task", one_of(rng, b'{"taskId":"t1"}'))])
            fields.append(("_meta", one_of(rng, related, b'{"%bsubscriptionId":1}' % META.encode(), odd=0.2)))
        whole = [("jsonrpc", b'"2.0"'), ("method", text(method)), ("params", members(rng, fields))]
        if not method.startswith("notifications/") or rng.random() < 0.05:
            whole.append(("id", one_of(rng, b"1", b'"q"', b"7.5", b'"carpool-1"', odd=0.15)))
        return members(rng, whole)
