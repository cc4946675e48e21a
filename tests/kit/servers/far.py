"""Servers to be reached over a URL, for the tests of the bridge: one process, one port, many ways in.

    far.py PORT [--oauth SECONDS]

`/mcp`: the official SDK's Streamable HTTP, both eras. `/sse`: its HTTP+SSE. `/raw`: an endpoint of our own that
answers what no typed SDK would. `/seen`: what came in. With `--oauth` the first two want a token that is good
for so many seconds. PORT 0 is any; the port that it is goes to stdout.
"""

import argparse
import base64
import hashlib
import json
import secrets
import socket
import time
from typing import Any
from urllib.parse import parse_qs, urlencode

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

options = argparse.ArgumentParser()
options.add_argument("port", type=int)
options.add_argument("--oauth", type=float, default=0.0)
chosen = options.parse_args()

seen: list[dict[str, Any]] = []
facts: dict[str, Any] = {"hanging": 0, "cancelled": 0, "registered": 0, "refreshed": 0}
server: MCPServer[None] = MCPServer("far", instructions="Far away.")


@server.tool()
def echo(text: str) -> str:
    return text


@server.tool()
def header(name: str, ctx: Context[Any, Any]) -> str:
    """A header of the request that brought this call."""
    request = ctx.request_context.request
    return str(request.headers.get(name)) if isinstance(request, Request) else "no request"


@server.tool()
async def work(steps: int, ctx: Context[Any, Any]) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
    return "done"


class NameAnswer(BaseModel):
    name: str


@server.tool()
async def ask(question: str, ctx: Context[Any, Any]) -> str:
    said = await ctx.elicit(question, NameAnswer)
    return f"{said.action} {said.data.name if said.action == 'accept' else ''}"


@server.tool()
async def hang() -> str:
    facts["hanging"] += 1
    try:
        await anyio.sleep_forever()
    finally:
        facts["cancelled"] += 1
    return "never"


@server.tool()
async def grow(ctx: Context[Any, Any]) -> str:
    """One tool more."""

    def grown() -> str:
        return "grown"

    server.add_tool(grown)
    await ctx.session.send_tool_list_changed()
    return "grown"


# --- answers that no SDK would give -------------------------------------------------------------------------

BIG = 123456789012345678901234567890
RAW = {
    "echo": {
        "content": [{"type": "text", "text": "raw", "vendor": {"kept": [1, None]}, "_meta": {"x/y": BIG}}],
        "structuredContent": {"big": BIG, "negative": -BIG, "half": 0.5, "umlaut": "ä\u2028😀"},
        "isError": False,
        "vendorField": {"nested": {"deeply": True}},
        "_meta": {"vendor/key": "kept"},
    },
}


async def raw(request: Request) -> Response:
    if request.headers.get("last-event-id") == "first":
        answer = {"jsonrpc": "2.0", "id": facts["raw"]["id"], "result": RAW["echo"]}
        return Response(f"id: second\ndata: {json.dumps(answer)}\n\n", media_type="text/event-stream")
    if request.method != "POST":
        return Response(status_code=405)
    message = json.loads(await request.body())
    facts["raw"] = message
    if "id" not in message:
        return Response(status_code=202)
    method = message["method"]
    result: dict[str, Any] = {}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "vendor": {"a": 1}},
            "serverInfo": {"name": "raw", "version": "1", "vendor": "kept"},
        }
    elif method == "tools/list":
        result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}, "vendor": BIG}]}
    elif method == "tools/call":
        name = message["params"]["name"]
        if name.startswith("status"):
            return Response("<p>no", status_code=int(name[6:]), headers={"retry-after": "7"})
        if name == "cut":
            return Response(b'{"jsonrpc"', media_type="application/json", headers={"content-length": "99"})
        if name == "later":  # the server hangs up and wants to be asked again
            return Response("id: first\nretry: 10\ndata:\n\n", media_type="text/event-stream")
        if name == "huge":
            return Response(b"{", media_type="application/json", headers={"content-length": str(1 << 30)})
        if name == "nonsense":
            return Response(b"[1, 2", media_type="application/json")
        if name == "nothing":
            return Response(status_code=202)
        result = RAW["echo"]
    return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})


# --- an OAuth server, as small as one can be ---------------------------------------------------------------

codes: dict[str, dict[str, str]] = {}
access: dict[str, float] = {}
refresh: set[str] = set()


def root(request: Request) -> str:
    return str(request.base_url).rstrip("/")


async def resource(request: Request) -> Response:
    if "resource_status" in facts:
        return Response(status_code=facts["resource_status"])
    return JSONResponse(
        {
            "resource": f"{root(request)}/{request.path_params['path']}",
            "authorization_servers": [root(request)],
            "scopes_supported": ["all"],
        }
    )


async def metadata(request: Request) -> Response:
    base = root(request)
    if facts.get("metadata", request.url.path) != request.url.path:
        return Response(status_code=404)
    return JSONResponse(
        {
            "issuer": base,
            "authorization_endpoint": f"{base}/authorize",
            "token_endpoint": f"{base}/token",
            "registration_endpoint": f"{base}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": facts.get("methods", ["none"]),
            "authorization_response_iss_parameter_supported": True,
        }
    )


async def register(request: Request) -> Response:
    facts["registered"] += 1
    wished = json.loads(await request.body())
    return JSONResponse({**wished, "client_id": f"client-{facts['registered']}"}, status_code=201)


async def authorize(request: Request) -> Response:
    """Whoever asks is let in: there is nobody to be asked."""
    asked = dict(request.query_params)
    facts["authorized"] = {key: asked.get(key) for key in ("scope", "resource", "code_challenge_method")}
    code = secrets.token_hex(8)
    codes[code] = asked
    back = urlencode({"code": code, "state": asked["state"], "iss": root(request)})
    if asked.get("state") and facts.get("deny"):
        back = urlencode({"error": "access_denied", "state": asked["state"]})
    return RedirectResponse(f"{asked['redirect_uri']}?{back}", status_code=302)


def grant() -> Response:
    token, more = secrets.token_hex(16), secrets.token_hex(16)
    access[token] = time.monotonic() + chosen.oauth
    refresh.add(more)
    facts["tokens"] = [*facts.get("tokens", []), token, more]
    return JSONResponse(
        {
            "access_token": token,
            "token_type": "bearer",
            "expires_in": int(chosen.oauth),
            "refresh_token": more,
            "scope": "all",
        }
    )


async def token(request: Request) -> Response:
    form = {key: values[0] for key, values in parse_qs((await request.body()).decode()).items()}
    facts["form"] = form
    facts["basic"] = request.headers.get("authorization")
    if "token_status" in facts:
        return JSONResponse(facts.get("token_says", {"error": "x"}), status_code=facts["token_status"])
    if form["grant_type"] == "refresh_token":
        if form["refresh_token"] not in refresh:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        refresh.discard(form["refresh_token"])  # one use each, as OAuth 2.1 wants it of public clients
        facts["refreshed"] += 1
        facts["refreshed_for"] = form.get("resource")
        return grant()
    asked = codes.pop(form["code"], None)
    proof = (
        base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
    )
    if asked is None or asked["code_challenge"] != proof or asked["redirect_uri"] != form["redirect_uri"]:
        return JSONResponse({"error": "invalid_grant"}, status_code=400)
    return grant()


# --- all together --------------------------------------------------------------------------------------------


async def card(request: Request) -> Response:
    if "card" not in facts:
        return Response(status_code=404)
    kind = "sse" if facts["card"].endswith("sse") else "streamable-http"
    return JSONResponse(
        {"name": "far/far", "version": "1", "remotes": [{"type": kind, "url": facts["card"]}]}
    )


async def look(request: Request) -> Response:
    return JSONResponse({**facts, "seen": seen})


async def change(request: Request) -> Response:
    said = json.loads(await request.body())
    if said.get("forget") == "access":
        access.clear()
    if said.get("forget") == "refresh":
        refresh.clear()
    facts.update(said.get("set", {}))
    for name in said.get("unset", []):
        facts.pop(name, None)
    return JSONResponse({})


class Gate:
    """Notes every request, and lets in who has a token."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["path"]
        if path not in ("/seen", "/change"):
            seen.append({"method": scope["method"], "path": path, "headers": headers})
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if chosen.oauth and path in ("/mcp", "/sse") and access.get(token, 0.0) < time.monotonic():
            host = f"http://{headers['host']}"
            challenge = f'Bearer resource_metadata="{host}/.well-known/oauth-protected-resource{path}"'
            refusal = Response(status_code=401, headers={"www-authenticate": challenge})
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)


http = server.streamable_http_app()
sse = server.sse_app()
app = Starlette(
    routes=[
        Route("/.well-known/oauth-protected-resource/{path:path}", resource),
        Route("/.well-known/oauth-authorization-server", metadata),
        Route("/.well-known/openid-configuration", metadata),
        Route("/.well-known/mcp/server-card.json", card),
        Route("/register", register, methods=["POST"]),
        Route("/authorize", authorize),
        Route("/token", token, methods=["POST"]),
        Route("/raw", raw, methods=["GET", "POST", "DELETE"]),
        Route("/seen", look),
        Route("/change", change, methods=["POST"]),
        *http.routes,
        *sse.routes,
    ],
    lifespan=http.router.lifespan_context,
)

if __name__ == "__main__":
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", chosen.port))
    listening.listen(64)
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(Gate(app), log_level="error")).run(sockets=[listening])
