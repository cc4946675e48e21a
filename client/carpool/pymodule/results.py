"""What a function returned, where the SDK would not say it as it is meant: bytes.

Owns that bytes are content of their own, an image where they begin like one. Everything else is the SDK's.

Knows nothing of: functions, tools.
"""

import base64
from types import UnionType
from typing import Any, Union, get_args, get_origin

from mcp.types import BlobResourceContents, EmbeddedResource, ImageContent

_PLAIN = "application/octet-stream"
_STARTS = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))


def returns_bytes(annotation: Any) -> bool:
    """Whether a function with this return annotation may return bytes, so that no structure is promised."""
    arms = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return bytes in arms


def as_content(name: str, result: Any) -> Any:
    """The result of the tool `name`, for the SDK."""
    if not isinstance(result, bytes):
        return result
    data, kind = base64.b64encode(result).decode(), _kind(result)
    if kind != _PLAIN:
        return ImageContent(type="image", data=data, mime_type=kind)
    contents = BlobResourceContents(uri=f"carpool:{name}", blob=data, mime_type=kind)
    return EmbeddedResource(type="resource", resource=contents)


def _kind(data: bytes) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _STARTS if data.startswith(start)), _PLAIN)
