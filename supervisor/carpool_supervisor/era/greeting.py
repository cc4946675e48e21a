"""Read the answer of a server to a greeting.

Owns the versions that carpool speaks, the fields of the InitializeResult that it uses, and the meaning of a
refusal. Source: MCP 2025-11-25, basic/lifecycle "Version Negotiation".

Knows nothing of: when a server is greeted, its catalog (`list_pages`).
"""

import json
from typing import Final

import msgspec
from msgspec import Struct

from carpool_protocol.carrier.remote import UNFIT_CODE
from carpool_protocol.ids import RawJson
from carpool_supervisor.era.list_pages import legible

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The versions that carpool offers and understands, newest first."""
INVALID_PARAMS: Final = -32602
MAX_MESSAGE_CHARS: Final = 200
MAX_BRIDGE_CHARS: Final = 400
"""The limit for errors of carpool's own bridge. It is higher because their last sentence says what to do."""
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
    """The fields of a JSON-RPC error that we use."""

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


_initialized = msgspec.json.Decoder(Initialized)
_supported = msgspec.json.Decoder(_Supported)
_rpc_error = msgspec.json.Decoder(RpcError)


def read_initialized(result: RawJson) -> Initialized | None:
    """Read an InitializeResult; None if it is not one."""
    try:
        return _initialized.decode(result)
    except _UNREADABLE:
        return _read_leniently(result)


def read_error(error: RawJson) -> RpcError:
    """Read an error in whatever form the server wrote it."""
    try:
        return _rpc_error.decode(error)
    except _UNREADABLE:
        return RpcError(message="an error that is no JSON-RPC error")


def common_version(error: RpcError, tried: str) -> str | None:
    """The newest version shared with a server that refuses with -32602 and lists its versions."""
    if error.code != INVALID_PARAMS:
        return None
    try:
        supported = _supported.decode(error.data).supported
    except _UNREADABLE:
        return None
    return next((version for version in VERSIONS if version in supported and version != tried), None)


def refusal(method: str, error: RpcError, *, bridge: bool) -> str:
    """The text for a greeting that was answered with an error. Errors of carpool's own bridge are used whole:
    there the server has refused nothing, it could not be reached.
    """
    if bridge and error.code == UNFIT_CODE:
        return error.message[:MAX_BRIDGE_CHARS]
    return f"refused {method}: {error.message[:MAX_MESSAGE_CHARS]} ({error.code})"


def _read_leniently(result: RawJson) -> Initialized | None:
    """Read a result that msgspec refuses (lone surrogates, rule 16) with the standard library."""
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
