"""The `Authorization` of a bridge: the access token of the login on disk, renewed when it has expired.

Owns when a token is renewed: shortly before it expires, and once when the server answers 401. Several
bridges share a login: under the lock the file is read again first, and a token that another bridge has
renewed is taken. Never opens a browser; without a login requests go out as they are, and what the server
says then is `http_client`'s. The login itself is the SDK's flow (`oauth_login`).

Sources: RFC 6749, 6 (refreshing) and 2.3.1 (client authentication); RFC 8707 (`resource`).
"""

import base64
from collections.abc import AsyncGenerator
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from carpool.bridge.error_texts import RequestTrouble, needs_login
from carpool.bridge.oauth_store import LoginStore, OAuthLogin, renew_at
from carpool_protocol.bootstrap import paths
from carpool_protocol.carrier.remote import Remote, host_of
from carpool_protocol.runtime.wallclock import unix_s

_RENEW_S: Final = 30.0


class LoginError(Exception):
    """The login cannot be used; the request was not sent."""

    def __init__(self, trouble: RequestTrouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


class _Granted(Struct):
    """A token response (RFC 6749, 5.1)."""

    access_token: str
    refresh_token: str = ""
    expires_in: float | None = None
    scope: str = ""


_granted: Final = msgspec.json.Decoder(_Granted, strict=False)


class BearerAuth(httpx2.Auth):
    """Authorizes the requests to one server."""

    def __init__(self, remote: Remote, logins: LoginStore) -> None:
        self._remote = remote
        self._logins = logins
        self._turn = trio.Lock()
        self.is_known = False
        """There was a login for the last request."""

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """See `httpx2.Auth`. Raises `LoginError`."""
        login = self._logins.read()
        self.is_known = login is not None
        if login is None:
            yield request
            return
        if login.renew_at and login.renew_at < unix_s():
            login = await self._renewed(login)
        _authorize(request, login)
        response = yield request
        if response.status_code != 401:
            return
        _authorize(request, await self._renewed(login))
        yield request

    async def _renewed(self, spent: OAuthLogin) -> OAuthLogin:
        try:
            async with self._turn, self._logins.renewal_lock():
                now = self._logins.read()
                if now is not None and now.access_token != spent.access_token:
                    return now
                if now is None or not now.refresh_token:
                    raise LoginError(self._login_expired())
                login = await self._request_token(now)
                self._logins.write(login)
                return login
        except OSError as error:
            why = error.strerror or "the system gave no reason"
            raise LoginError(RequestTrouble(f"the renewed login cannot be kept: {why}")) from None
        except paths.NotPrivateError as error:
            raise LoginError(RequestTrouble(f"the renewed login cannot be kept: {error}")) from None

    async def _request_token(self, login: OAuthLogin) -> OAuthLogin:
        """The server's own endpoint of tokens is asked, without the headers of the configuration."""
        form = {
            "grant_type": "refresh_token",
            "refresh_token": login.refresh_token,
            "client_id": str(login.client.get("client_id", "")),
            **({"resource": login.resource} if login.resource else {}),
        }
        headers = client_authentication(login.client, form)
        try:
            async with httpx2.AsyncClient(timeout=_RENEW_S) as client:
                response = await client.post(login.token_endpoint, data=form, headers=headers)
        except (httpx2.RequestError, httpx2.InvalidURL):
            host = host_of(login.token_endpoint)
            raise LoginError(RequestTrouble(f"cannot reach {host}, which renews the login")) from None
        if response.status_code >= 500:
            host = host_of(login.token_endpoint)
            raise LoginError(
                RequestTrouble(f"{host}, which renews the login, answered {response.status_code}")
            )
        try:
            granted = _granted.decode(response.content) if response.status_code == 200 else None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            granted = None
        if granted is None:
            raise LoginError(self._login_expired())
        return replace(
            login,
            access_token=granted.access_token,
            refresh_token=granted.refresh_token or login.refresh_token,
            renew_at=renew_at(granted.expires_in, unix_s()),
            scope=granted.scope or login.scope,
        )

    def _login_expired(self) -> RequestTrouble:
        return needs_login(host_of(self._remote.url), self._remote.server, again=True)


def _authorize(request: httpx2.Request, login: OAuthLogin) -> None:
    request.headers["authorization"] = f"Bearer {login.access_token}"


def client_authentication(client: dict[str, object], form: dict[str, str]) -> dict[str, str]:
    """Authenticate a client that has a secret: adds to `form`, or returns headers."""
    secret, name = client.get("client_secret"), str(client.get("client_id", ""))
    if not isinstance(secret, str) or not secret:
        return {}
    if client.get("token_endpoint_auth_method") == "client_secret_basic":
        pair = f"{quote(name, safe='')}:{quote(secret, safe='')}"
        return {"authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    form["client_secret"] = secret
    return {}
