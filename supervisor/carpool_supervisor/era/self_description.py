"""The limits on a server's description of itself: instructions, name and capabilities.

Owns these limits and how a longer text is cut. Each agent's greeting carries the instructions, so the part
over the limit is left out and reported. Pure.

Knows nothing of: lists (`list_pages`), eras, how greetings are merged.
"""

from typing import Final

from msgspec import Struct

from carpool_protocol.ids import EMPTY_OBJECT, RawJson

MAX_INSTRUCTIONS_BYTES: Final = 16 * 1024
MAX_INFO_BYTES: Final = 16 * 1024
"""The limit of `serverInfo`."""
MAX_CAPABILITIES_BYTES: Final = 64 * 1024


class SelfDescription(Struct, frozen=True):
    """A server's description of itself."""

    instructions: str
    server_info: RawJson
    capabilities: RawJson

    def bounded(self) -> tuple["SelfDescription", str]:
        """The description within the limits, and a sentence on what is left out (empty if nothing is)."""
        over: list[str] = []
        instructions = cut(self.instructions, MAX_INSTRUCTIONS_BYTES)
        if instructions != self.instructions:
            over.append(
                _over(
                    "instructions", len(self.instructions.encode("utf-8", "replace")), MAX_INSTRUCTIONS_BYTES
                )
            )
        info, capabilities = self.server_info, self.capabilities
        if len(info) > MAX_INFO_BYTES:
            over.append(_over("serverInfo", len(info), MAX_INFO_BYTES, all_of_it=True))
            info = EMPTY_OBJECT
        if len(capabilities) > MAX_CAPABILITIES_BYTES:
            over.append(_over("capabilities", len(capabilities), MAX_CAPABILITIES_BYTES, all_of_it=True))
            capabilities = EMPTY_OBJECT
        return SelfDescription(instructions, info, capabilities), "; ".join(over)


def cut(text: str, most_bytes: int) -> str:
    """The beginning of a text: whole characters within this many bytes of UTF-8."""
    if len(text) * 4 <= most_bytes:
        return text
    return text[:most_bytes].encode("utf-8", "replace")[:most_bytes].decode("utf-8", "ignore")


def _over(what: str, size_bytes: int, most_bytes: int, *, all_of_it: bool = False) -> str:
    left = "they are left out" if all_of_it else "the rest is left out"
    return f"its {what} are {size_bytes} bytes, more than {most_bytes // 1024} KiB: {left}"
