"""The parts of a login that are ours: what is asked for, and when it is renewed."""

from typing import Any

import pytest
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import OAuthMetadata

from carpool.bridge.oauth_login import _MemoryTokenStore, _metadata, _registered, _settle_secret
from carpool.bridge.oauth_store import renew_at
from carpool_protocol.carrier.remote import Remote
from tests.behaviours import behaviour

URL = "https://far.example/mcp"


@pytest.mark.parametrize(("lasts_s", "at"), [(3600, 3570), (120, 90), (60, 45), (8, 6), (None, 0)])
def test_a_token_is_renewed_shortly_before_its_end_and_not_with_every_request(
    lasts_s: float | None, at: float
) -> None:
    now = 1_000_000.0
    assert renew_at(lasts_s, now) == (now + at if at else 0.0)


@behaviour("remote:login")
def test_the_scopes_of_the_configuration_stay_whatever_the_server_advertises() -> None:
    wished = _metadata(Remote(server="far", url=URL, scopes=("a", "b")), 1)
    wished.scope = "all"
    assert wished.scope == "a b"
    free = _metadata(Remote(server="far", url=URL), 1)
    free.scope = "all"
    assert free.scope == "all"


@pytest.mark.parametrize(
    ("methods", "taken"),
    [
        (["client_secret_basic"], "client_secret_basic"),
        (["client_secret_basic", "client_secret_post"], "client_secret_post"),
        (["none"], "client_secret_post"),
        (None, "client_secret_post"),
    ],
)
def test_a_registered_client_tells_its_secret_as_the_server_wants_it(
    methods: list[str] | None, taken: str
) -> None:
    remote = Remote(server="far", url=URL, client_id="me", client_secret="hunter2")
    client = _registered(remote, 1)
    provider = OAuthClientProvider(URL, _metadata(remote, 1), _MemoryTokenStore(client))
    provider.context.client_info = client
    said: dict[str, Any] = {
        "issuer": "https://far.example",
        "authorization_endpoint": "https://far.example/authorize",
        "token_endpoint": "https://far.example/token",
        "token_endpoint_auth_methods_supported": methods,
    }
    provider.context.oauth_metadata = OAuthMetadata.model_validate(said)
    _settle_secret(provider)
    assert client is not None
    assert client.token_endpoint_auth_method == taken
