"""The key pair of a node, for `tcp://`: a file with the secret key, and the public key that peers are given.

Owns the file's form (64 hexadecimal digits and a line end, mode 0600). The public key follows from the secret
one.

Knows nothing of: links, peers.
"""

import os
import re

from carpool.cluster.links.link import LinkError
from carpool_protocol.files import private_files

_HEX = re.compile(rb"[0-9a-f]{64}\n?")


def make_key(path: str) -> bytes:
    """Make a secret key, unless the file exists, and return it. Raises `LinkError`, `OSError`."""
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        import zmq  # late: other verbs need none of it
        from zmq.utils import z85

        _, secret = zmq.curve_keypair()
        private_files.replace(path, z85.decode(secret).hex().encode() + b"\n")
    return read_key(path)


def read_key(path: str) -> bytes:
    """Return the secret key. Raises `LinkError`."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1024)
    except OSError as error:
        raise LinkError(
            f"the key of this node cannot be read from {path} ({os.strerror(error.errno or 0)}); "
            "`carpool cluster key` makes one"
        ) from None
    if mode & 0o077:
        raise LinkError(f"others can read the secret key {path}: run `chmod 600` on it, and make another one")
    if _HEX.fullmatch(text) is None:
        raise LinkError(f"{path} holds no key: remove it, and run `carpool cluster key`")
    return bytes.fromhex(text.decode())


def public_key(secret: bytes) -> bytes:
    """Return the public key of a secret one, both of 32 bytes."""
    import zmq  # late, as above
    from zmq.utils import z85

    return bytes(z85.decode(zmq.curve_public(z85.encode(secret))))
