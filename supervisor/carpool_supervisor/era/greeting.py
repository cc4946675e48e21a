"""What a server says of itself in the handshake, read.

Owns the versions we speak, the InitializeResult as far as it is used, and how to understand a server that
refuses one. Source: MCP 2025-11-25, basic/lifecycle "Version Negotiation".

Knows nothing of: when it is asked, what it offers (`list_pages`).
"""

import json
from typing import Final

import msgspec
from msgspec import Struct

from carpool_protocol.carrier.remote import UNFIT_CODE
from carpool_protocol.ids import RawJson
from carpool_supervisor.era.list_pages import legible

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The newest first: what we say, and what we understand."""
INVALID_PARAMS: Final = -32602
MAX_MESSAGE_CHARS: Final = 200
MAX_BRIDGE_CHARS: Final = 400
"""More: its sentences end with what to do."""
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Initialized(Struct):
    """The fields of an InitializeResult that we use."""

    protocolVersion: str  # noqa: N815 - the wire's name
    capabilities: dict[str, msgspec.Raw] = {}
    serverInfo: msgspec.Raw = msgspec.Raw(b"{}")  # noqa: N815 - the wire's name
    instructions: str | None = None


class _Supported(Struct):
    supported: list[str] = []


class RpcError(Struct):
    """A JSON-RPC error as far as it is used."""

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


_initialized = msgspec.json.Decoder(Initialized)
_supported = msgspec.json.Decoder(_Supported)
_rpc_error = msgspec.json.Decoder(RpcError)


def read_initialized(result: RawJson) -> Initialized | None:
    """The InitializeResult; None for what is none."""
    try:
        return _initialized.decode(result)
    except _UNREADABLE:
        return _read_leniently(result)


def read_error(error: RawJson) -> RpcError:
    """An error, whatever the server made of it."""
    try:
        return _rpc_error.decode(error)
    except _UNREADABLE:
        return RpcError(message="an error that is no JSON-RPC error")


def common_version(error: RpcError, tried: str) -> str | None:
    """Some servers refuse a version with -32602 and say which they know."""
    if error.code != INVALID_PARAMS:
        return None
    try:
        supported = _supported.decode(error.data).supported
    except _UNREADABLE:
        return None
    return next((version for version in VERSIONS if version in supported and version != tried), None)


def refusal(method: str, error: RpcError, *, bridge: bool) -> str:
    """What an error says that answers a greeting. Carpool's own bridge has a whole sentence for a server that
    it cannot reach: the server has refused nothing.
    """
    if bridge and error.code == UNFIT_CODE:
        return error.message[:MAX_BRIDGE_CHARS]
    return f"refused {method}: {error.message[:MAX_MESSAGE_CHARS]} ({error.code})"


def _read_leniently(result: RawJson) -> Initialized | None:
    """For results that msgspec refuses (lone surrogates, rule 16): the standard library reads them."""
    try:
        fields = json.loads(result)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("protocolVersion"), str):
        return None
    capabilities = fields.get("capabilities")
    instructions = fields.get("instructions")
    return Initialized(
        protocolVersion=fields["protocolVersion"],
        capabilities={
            name: msgspec.Raw(json.dumps(value).encode())
            for name, value in (capabilities if isinstance(capabilities, dict) else {}).items()
        },
        serverInfo=msgspec.Raw(json.dumps(fields.get("serverInfo", {})).encode()),
        instructions=legible(instructions) if isinstance(instructions, str) else None,
    )
