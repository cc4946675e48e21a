"""Programs that start most MCP servers, and what brings each of them.

Owns the sentences for a program that is not installed and for a command line in place of a program. Names
packages, not commands: systems differ.

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


def command_line_text(command: str) -> str:
    """The sentence about a `command` that holds arguments as well; empty where it is one word.

    `uvx mcp-server-time` gives "`command` names one program: leave `uvx` there, and put what follows it into
    `args`". The rest is not repeated: it may be the value of a variable.
    """
    first, *rest = command.split()[:2] or [""]
    if not rest:
        return ""
    return f"`command` names one program: leave `{first}` there, and put what follows it into `args`"
