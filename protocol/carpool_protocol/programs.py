"""Programs that start most MCP servers, and what brings each of them.

Owns one sentence for a program that is not installed. Names packages, not commands: systems differ.

Knows nothing of: where a program is looked for.
"""

from typing import Final

_BRINGS: Final = {
    **dict.fromkeys(("uvx", "uv"), "uv"),
    **dict.fromkeys(("npx", "npm", "node"), "Node.js"),
    **dict.fromkeys(("bunx", "bun"), "Bun"),
    **dict.fromkeys(("pipx", "deno", "docker", "podman"), ""),
}


def install_hint(program: str) -> str:
    """What to install: `install uv, which brings uvx`; empty for a program that is not known here."""
    if program not in _BRINGS:
        return ""
    brings = _BRINGS[program] or program
    return f"install {brings}" if brings == program else f"install {brings}, which brings {program}"
