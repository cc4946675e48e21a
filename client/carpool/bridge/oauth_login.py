"""The interactive login of OAuth: the SDK's flow, a listener for the browser on loopback, and the login kept.

Owns the way from a server's 401 to a file in `oauth_store`. Discovery, registration, PKCE, `state` and the
issuer's checks are the SDK's (MCP 2025-11-25, basic/authorization; RFC 8252: native applications use a
loopback redirect). Bounded in time. Never runs in the bridge.

Knows nothing of: terminals, browsers (`show` is the caller's), how a login is renewed (`oauth_token`).
"""

from collections.abc import Awaitable, Callable
from typing import Final

import httpx2
import msgspec
import trio
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, ValidationError

from carpool.bridge import proxies
from carpool.bridge.error_mapping import connect_trouble, redirected_request
from carpool.bridge.http_client import MOST_REDIRECTS
from carpool.bridge.oauth_callback import PATH, OAuthCallback
from carpool.bridge.oauth_store import LoginStore, OAuthLogin, renew_at
from carpool.bridge.transport_probe import NotFoundError, find_transport
from carpool_protocol.carrier.remote import Remote, host_of
from carpool_protocol.runtime.wallclock import unix_s

_HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "carpool", "version": "0"},
    },
}
_HELLO_HEADERS: Final = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2025-11-25",
}


class SignInError(Exception):
    """There is no login. The text says whose fault it is and what to do."""


class _MemoryTokenStore:
    """The SDK's store, in memory: what it holds at the end becomes the login."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.tokens: OAuthToken | None = None
        self.client = client

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def sign_in(remote: Remote, show: Callable[[str], Awaitable[None]], limit_s: float) -> str:
    """Log in and keep it. `show`: put this URL before the user. Returns the host that it is for.

    Raises `SignInError`, and `OSError` where the login cannot be kept.
    """
    if (trouble := proxies.unusable()) is not None:
        raise SignInError(trouble.text)
    try:
        remote = await find_transport(remote, None)
    except NotFoundError as error:
        raise SignInError(error.trouble.text) from None
    try:
        listeners = await trio.open_tcp_listeners(remote.redirect_port, host="127.0.0.1")
    except OSError as error:
        why = error.strerror or "the system gave no reason"
        raise SignInError(f"nobody can wait on port {remote.redirect_port} of 127.0.0.1: {why}") from None
    (listener,) = listeners
    async with listener:
        port = listener.socket.getsockname()[1]
        kept = _MemoryTokenStore(_registered(remote, port))
        callback = OAuthCallback(listener)

        async def shown(url: str) -> None:
            _settle_secret(provider)
            callback.expect_state(url)
            await show(url)

        provider = OAuthClientProvider(
            server_url=remote.url,
            client_metadata=_metadata(remote, port),
            storage=kept,
            redirect_handler=shown,
            callback_handler=callback.result,
        )
        with trio.move_on_after(limit_s) as limit:
            await _asked(remote, provider)
    if limit.cancelled_caught:
        raise SignInError(f"the browser has not come back within {limit_s:g} s")
    if kept.tokens is None or kept.client is None:
        raise SignInError(f"{host_of(remote.url)} wants no login: it answers without one")
    LoginStore(remote.logins, remote).write(_login(provider, kept.tokens, kept.client))
    return host_of(remote.url)


async def sign_out(remote: Remote) -> bool:
    """Forget the login. Whether there was one. Raises `SignInError`, `OSError`."""
    if LoginStore(remote.logins, remote).delete():
        return True
    try:
        remote = await find_transport(remote, None)
    except NotFoundError as error:
        raise SignInError(error.trouble.text) from None
    return LoginStore(remote.logins, remote).delete()


async def _asked(remote: Remote, provider: OAuthClientProvider) -> None:
    """Send one request that makes the SDK log in. Raises `SignInError`."""
    host = host_of(remote.url)
    try:
        async with httpx2.AsyncClient(headers=remote.headers, auth=provider, timeout=30.0) as client:
            if remote.transport == "sse":
                hello = client.build_request("GET", remote.url, headers={"accept": "text/event-stream"})
            else:
                hello = client.build_request("POST", remote.url, json=_HELLO, headers=_HELLO_HEADERS)
            answer = await _sent(client, hello)
            status, session = answer.status_code, answer.headers.get("mcp-session-id")
            if session is not None:
                await client.delete(answer.url, headers={**_HELLO_HEADERS, "mcp-session-id": session})
    except (httpx2.RequestError, httpx2.InvalidURL) as error:
        raise SignInError(connect_trouble(remote.url, error).text) from None
    except (OAuthFlowError, OAuthRegistrationError, OAuthTokenError, ValidationError) as error:
        raise SignInError(f"the login at {host} failed: {_why(error)}") from None
    if 300 <= status < 400:
        raise SignInError(f"{host} redirects: write the URL that it redirects to into the configuration")
    if status in {401, 403}:
        raise SignInError(f"{host} does not accept the login that it has given ({status})")


async def _sent(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Send as the bridge does, following redirects on the same host. Only the head of a response is read."""
    response = await client.send(request, stream=True)
    await response.aclose()
    for _ in range(MOST_REDIRECTS):
        further = redirected_request(response)
        if further is None:
            break
        response = await client.send(further, stream=True)
        await response.aclose()
    return response


def _why(error: Exception) -> str:
    """The SDK's sentence, without bodies of responses and values of parameters."""
    if isinstance(error, ValidationError):
        return "it answered what OAuth does not know"
    said = str(error)
    return said.partition(": {")[0].splitlines()[0][:300] if said else type(error).__name__


class _ClientMetadata(OAuthClientMetadata):
    """Asks for the scopes that the user names; the SDK would take those that the server names."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "scope":
            super().__setattr__(name, value)


def _metadata(remote: Remote, port: int) -> OAuthClientMetadata:
    return (_ClientMetadata if remote.scopes else OAuthClientMetadata)(
        client_name="carpool",
        redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}{PATH}")],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",  # noqa: S106 - a public client
        scope=" ".join(remote.scopes) or None,
    )


def _registered(remote: Remote, port: int) -> OAuthClientInformationFull | None:
    """The client of the configuration; without one the SDK registers one for this login."""
    if not remote.client_id:
        return None
    return OAuthClientInformationFull(
        client_id=remote.client_id,
        client_secret=remote.client_secret or None,
        token_endpoint_auth_method="client_secret_post" if remote.client_secret else "none",
        redirect_uris=[AnyUrl(f"http://127.0.0.1:{port}{PATH}")],
    )


def _settle_secret(provider: OAuthClientProvider) -> None:
    """Choose how a manually registered client sends its secret, by the metadata of the server."""
    client, metadata = provider.context.client_info, provider.context.oauth_metadata
    known = (metadata.token_endpoint_auth_methods_supported if metadata is not None else None) or []
    if client is None or client.token_endpoint_auth_method != "client_secret_post":  # noqa: S105 - a method
        return
    if "client_secret_basic" in known and "client_secret_post" not in known:
        client.token_endpoint_auth_method = "client_secret_basic"  # noqa: S105


def _login(
    provider: OAuthClientProvider, tokens: OAuthToken, client: OAuthClientInformationFull
) -> OAuthLogin:
    context = provider.context
    metadata = context.oauth_metadata
    endpoint = str(metadata.token_endpoint) if metadata is not None else ""
    base = context.get_authorization_base_url(context.server_url)
    wants_resource = context.should_include_resource_param(context.protocol_version)
    return OAuthLogin(
        access_token=tokens.access_token,
        refresh_token=tokens.refresh_token or "",
        renew_at=renew_at(tokens.expires_in, unix_s()),
        scope=tokens.scope or "",
        token_endpoint=endpoint or f"{base}/token",
        resource=context.get_resource_url() if wants_resource else "",
        client=msgspec.json.decode(client.model_dump_json(exclude_none=True), type=dict[str, object]),
    )
