"""Programs that start most MCP servers, and the package that installs each of them.

Owns the sentences for a program that is not installed and for a command line in place of a program, and the
pages where makers of programs say how to install them. Commands are examples: systems differ.

Knows nothing of: how a program is found in the PATH.
"""

from typing import Final

_BRINGS: Final = {
    **dict.fromkeys(("uvx", "uv"), "uv"),
    **dict.fromkeys(("npx", "npm", "node"), "Node.js"),
    **dict.fromkeys(("bunx", "bun"), "Bun"),
    **dict.fromkeys(("pipx", "deno", "docker", "podman"), ""),
}
_PAGES: Final = {
    "uv": ("https://docs.astral.sh/uv/getting-started/installation/", "pipx install uv"),
    "Node.js": ("https://nodejs.org/en/download", "brew install node"),
    "Bun": ("https://bun.sh/docs/installation", "npm install -g bun"),
    "pipx": ("https://pipx.pypa.io/stable/installation/", "python3 -m pip install --user pipx"),
    "deno": ("https://docs.deno.com/runtime/getting_started/installation/", "npm install -g deno"),
    "docker": ("https://docs.docker.com/get-started/get-docker/", ""),
    "podman": ("https://podman.io/docs/installation", ""),
}
"""By package: the page of its maker, and one command that installs it on many systems."""


def install_hint(program: str) -> str:
    """Advice for a missing program: `uvx` → `install uv, which brings uvx`. Empty for an unknown program."""
    if program not in _BRINGS:
        return ""
    brings = _BRINGS[program] or program
    return f"install {brings}" if brings == program else f"install {brings}, which brings {program}"


def install_steps(program: str) -> str:
    """Return the way to install a missing program: `uvx` → `Install uv (PAGE), for example by …`."""
    if program not in _BRINGS:
        return f"Install {program}, or write the absolute path of the program as `command`"
    package = _BRINGS[program] or program
    page, command = _PAGES[package]
    return f"Install {package} ({page})" + (f", for example by `{command}`" if command else "")


def command_line_text(command: str) -> str:
    """The sentence about a `command` that also holds arguments. Empty if it is one word.

    `uvx mcp-server-time` → "`command` names one program: leave `uvx` there, and put what follows it into
    `args`". The arguments are not repeated: they may be the value of a variable.
    """
    first, *rest = command.split()[:2] or [""]
    if not rest:
        return ""
    return f"`command` names one program: leave `{first}` there, and put what follows it into `args`"
