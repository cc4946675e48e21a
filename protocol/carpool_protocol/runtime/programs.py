"""Programs that start most MCP servers, and the package that installs each of them.

Owns the sentences for a program that is not installed and for a command line in place of a program. Names
packages, not commands: systems differ.

Knows nothing of: how a program is found in the PATH.
"""

from typing import Final

_BRINGS: Final = {
    **dict.fromkeys(("uvx", "uv"), "uv"),
    **dict.fromkeys(("npx", "npm", "node"), "Node.js"),
    **dict.fromkeys(("bunx", "bun"), "Bun"),
    **dict.fromkeys(("pipx", "deno", "docker", "podman"), ""),
}


def install_hint(program: str) -> str:
    """Advice for a missing program: `uvx` → `install uv, which brings uvx`. Empty for an unknown program."""
    if program not in _BRINGS:
        return ""
    brings = _BRINGS[program] or program
    return f"install {brings}" if brings == program else f"install {brings}, which brings {program}"


def command_line_text(command: str) -> str:
    """The sentence about a `command` that also holds arguments. Empty if it is one word.

    `uvx mcp-server-time` → "`command` names one program: leave `uvx` there, and put what follows it into
    `args`". The arguments are not repeated: they may be the value of a variable.
    """
    first, *rest = command.split()[:2] or [""]
    if not rest:
        return ""
    return f"`command` names one program: leave `{first}` there, and put what follows it into `args`"
