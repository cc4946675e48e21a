"""Read the answer of a server to a greeting.

Owns the fields of the InitializeResult that carpool uses, and the meaning of a refusal. Source: MCP
2025-11-25, basic/lifecycle "Version Negotiation".

Knows nothing of: when a server is greeted, its catalog (`list_pages`).
"""

import json
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from carpool_protocol.carrier.remote import UNFIT_CODE
from carpool_protocol.ids import RawJson
from carpool_protocol.wire.json_scan import has_too_many_parts, replace_half_pairs
from carpool_supervisor.core.model.version_offers import VERSIONS

INVALID_PARAMS: Final = -32602
MAX_MESSAGE_CHARS: Final = 200
MAX_GREETING_BYTES: Final = 8 * 1024 * 1024
"""The limit for the answer to a greeting. All that carpool keeps of it has less than 100 KiB."""
MAX_SEARCHED: Final = 4096
"""So many characters of the text of a refusal, and bytes of its data, are searched for versions."""
MAX_BRIDGE_CHARS: Final = 400
"""The limit for errors of carpool's own bridge. It is higher because their last sentence says what to do."""
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class Initialized(Struct):
    """The fields of an InitializeResult that we use."""

    protocolVersion: str  # noqa: N815 - the wire's name
    capabilities: dict[str, msgspec.Raw] = {}
    serverInfo: msgspec.Raw = msgspec.Raw(b"{}")  # noqa: N815 - the wire's name
    instructions: str | None = None


class RpcError(Struct):
    """The fields of a JSON-RPC error that we use."""

    code: int = 0
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


_initialized = msgspec.json.Decoder(Initialized)
_rpc_error = msgspec.json.Decoder(RpcError)


def read_initialized(result: RawJson) -> Initialized | None:
    """Read an InitializeResult; None if it is not one, is too long or has too many parts to be read in one
    step.
    """
    if len(result) > MAX_GREETING_BYTES or has_too_many_parts(result):
        return None
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


def next_version(error: RpcError, tried: Sequence[str]) -> str | None:
    """The version to offer next to a server that has refused those `tried`: the newest that its error names
    in `data` or in its text; if it names none, the next older one. None: all were refused, or the version is
    not the reason.
    """
    said = error.message[:MAX_SEARCHED] + bytes(error.data)[:MAX_SEARCHED].decode("utf-8", "replace")
    if error.code != INVALID_PARAMS and "version" not in said.lower():
        return None
    named = [version for version in VERSIONS if version in said and version not in tried]
    older = [version for version in VERSIONS if version < min(tried)]
    return next(iter(named or older), None)


def is_of_bridge(error: RpcError, *, bridge: bool) -> bool:
    """True for an error of carpool's own bridge: the server has refused nothing, it could not be reached."""
    return bridge and error.code == UNFIT_CODE


def refusal(method: str, error: RpcError, *, bridge: bool) -> str:
    """The text for a greeting that was answered with an error. An error `is_of_bridge` is used whole."""
    if is_of_bridge(error, bridge=bridge):
        return error.message[:MAX_BRIDGE_CHARS]
    return f"refused {method}: {error.message[:MAX_MESSAGE_CHARS]} ({error.code})"


def _read_leniently(result: RawJson) -> Initialized | None:
    """Read a result that msgspec refuses with the standard library: one with half of a surrogate pair (rule
    16), which becomes U+FFFD wherever it stands, also in a name, or with a member of another type.
    """
    try:
        fields = json.loads(replace_half_pairs(result))
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
        instructions=instructions if isinstance(instructions, str) else None,
    )
