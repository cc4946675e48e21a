"""The address of the HTTP door: how it is written, the socket that is bound to it, and why one cannot be.

Standard library only: the launcher reads an address before it starts anything.
Knows nothing of: the configuration, tokens, HTTP.
"""

import errno
import socket

MAX_PORT = 65535


def split_address(text: str) -> tuple[str, int]:
    """Split `HOST:PORT`, `[::1]:PORT` or `PORT`. Raises `ValueError` with the sentence for people."""
    host, _, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(MAX_PORT))
    is_port = is_number and int(port) <= MAX_PORT
    if not is_port or any(each.isspace() or not each.isprintable() or each == "/" for each in host):
        raise ValueError(f"--http and CARPOOL_HTTP want HOST:PORT, such as 127.0.0.1:8808, not {text!a}")
    return host.strip("[]") or "127.0.0.1", int(port)


def bind(host: str, port: int, backlog: int = 0) -> socket.socket:
    """Return the bound socket, which listens if `backlog` is not 0. Raises `OSError`, and `UnicodeError` for
    a name that no machine can have.
    """
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind(address)
        if backlog:
            sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def has_address(sock: socket.socket, host: str, port: int) -> bool:
    """True if `bind` would bind to the address that this socket has. Port 0 is any port."""
    try:
        family, _, _, _, wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        return False
    bound_host, bound_port = sock.getsockname()[:2]
    return sock.family == family and bound_host == wanted[0] and port in {0, bound_port}


def cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> str:
    """Return why the door cannot listen there, and what to do."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no name of a machine"
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            advice = "end the program that listens there, or change http.port or --http"
        case errno.EACCES:
            advice = "take a port above 1023 in http.port or --http"
        case _:
            advice = "choose an address of this machine in http.host or --http"
    return f"the HTTP door cannot listen on {host}:{port} ({why}); {advice}"
