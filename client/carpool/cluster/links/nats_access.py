"""Access to a NATS server: the proof of who this node is, and the check of the server.

Owns the sentences about failures, reading the credentials (a `.creds` file with a JWT and an NKEY seed, or a
file with a seed alone), the user in the URL, the TLS context, and that `tls://` never speaks without TLS.
Files are read for each new client, so a mended file counts at the next attempt. Needs the extra `cluster`.

Knows nothing of: subjects, frames, when a connection is tried again (docs/decisions/0056).
"""

import os
import re
import socket
import ssl
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urlsplit

import nats.errors
import nkeys  # type: ignore[import-untyped] # it has no types
from msgspec import Struct
from nats.aio.client import Client, RawCredentials

from carpool.cluster.links.link import LinkError

MAX_FILE_BYTES: Final = 64 * 1024
_JWT: Final = re.compile(r"-+BEGIN NATS USER JWT-+\s+([\w-]+\.[\w-]+\.[\w-]+)\s+-+END NATS USER JWT-+")
_SEED: Final = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(SU[A-Z2-7]+)\s+-+END USER NKEY SEED-+")
_SEED_ALONE: Final = re.compile(r"\s*(SU[A-Z2-7]+)\s*")
_ADVICE: Final = "check `cluster.credentials`, or the user in `cluster.url`"
_NO_TLS: Final = "the NATS server offers no TLS, and `tls://` asks for it: nothing was said to it"


class NatsAccess(Struct, frozen=True):
    """The address of a NATS server and the files for it; a path is empty if the user named none."""

    url: str
    credentials: str = ""
    ca: str = ""
    certificate: str = ""
    """The node's own certificate for a server that asks for one."""
    certificate_key: str = ""
    """Empty: the key stands in the file of the certificate."""

    def options(self) -> dict[str, Any]:
        """Return the options of a client, read from the files. Raises `LinkError`."""
        address = _split(self.url)
        host = address.netloc.rpartition("@")[2]
        options: dict[str, Any] = {
            "servers": address._replace(netloc=host).geturl(),
            "tls": _tls_context(self),
        }
        if self.credentials:
            return options | _credentials(self.credentials)
        if address.password is not None:
            return options | {"user": unquote(address.username or ""), "password": unquote(address.password)}
        return options | ({"token": unquote(address.username)} if address.username else {})

    def new_client(self) -> Client:
        """Return a client that is not connected."""
        return _TlsClient() if self.url.startswith("tls://") else Client()


class _TlsClient(Client):
    """A client that says nothing to a server without TLS.

    The official client takes `tls://` as a hint only: to a server that does not demand TLS, or to one who
    sits in between, it sends user and password in the clear.
    """

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise nats.errors.Error(_NO_TLS)
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)


def _split(url: str) -> SplitResult:
    try:
        address = urlsplit(url)
        if address.hostname and (address.port is None or address.port > 0):
            return address
    except ValueError:
        pass
    raise LinkError("`cluster.url` has no host, or its port is no number from 1 to 65535")


def _credentials(path: str) -> dict[str, Any]:
    text = _read_secret(path)
    token, seed = _JWT.search(text), _SEED.search(text)
    if token is not None and seed is not None:
        _check_seed(seed[1], path)
        return {"user_credentials": RawCredentials(text)}
    alone = _SEED_ALONE.fullmatch(text)
    if alone is None:
        raise LinkError(f"{path} holds no credentials of a NATS user: neither JWT and seed, nor an NKEY seed")
    _check_seed(alone[1], path)
    return {"nkeys_seed_str": alone[1]}


def _check_seed(seed: str, path: str) -> None:
    try:
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except (nkeys.NkeysError, ValueError):
        raise LinkError(f"the NKEY seed in {path} is damaged: copy the file again") from None


def _read_secret(path: str) -> str:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise LinkError(_unreadable("the credentials", path, error)) from None
    _refuse_open(mode, "the credentials", path)
    return data.decode("utf-8", "replace")


def _refuse_open(mode: int, what: str, path: str) -> None:
    if mode & 0o077:
        raise LinkError(f"others can read {what} in {path}: run `chmod 600` on it, and have new ones made")


def _tls_context(access: NatsAccess) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.ca or None)
    except ssl.SSLError:
        raise LinkError(f"{access.ca} (`cluster.ca`) holds no certificates in PEM form") from None
    except OSError as error:
        raise LinkError(_unreadable("the certificates of `cluster.ca`", access.ca, error)) from None
    if access.certificate:
        key = access.certificate_key or access.certificate
        try:
            _refuse_open(os.stat(key).st_mode, "the key of this node", key)
            # A key with a passphrase fails, rather than ask for it on a terminal.
            context.load_cert_chain(access.certificate, key, password="")
        except ssl.SSLError:
            raise LinkError(
                f"{access.certificate} (`cluster.certificate`) and its key are no pair in PEM form, or the "
                "key has a passphrase"
            ) from None
        except OSError as error:
            text = _unreadable("the certificate of this node or its key", access.certificate, error)
            raise LinkError(text) from None
    return context


def _unreadable(what: str, path: str, error: OSError) -> str:
    return f"{what} cannot be read from {path} ({os.strerror(error.errno or 0)})"


def is_refusal(error: Exception) -> bool:
    """Return True if a further attempt fails as well until somebody changes something."""
    text = str(error).lower()
    refused = ("authorization", "authentication", "permissions violation for subscription", _NO_TLS.lower())
    return isinstance(error, ssl.SSLError) or any(each in text for each in refused)


def sentence(error: Exception) -> str:
    """Return what an error of the client means and what to do, for people."""
    text = str(error).removeprefix("nats: ").strip().strip("'")
    low = text.lower()
    if isinstance(error, LinkError):
        return text
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of the NATS server is not accepted ({error.verify_message.rstrip('.')}): check "
            "`cluster.ca`, and that `cluster.url` has a name of that certificate"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no reason given").lower().replace("_", " ")
        return f"the NATS server ends the TLS connection ({reason}): does it ask for `cluster.certificate`?"
    if "authorization" in low or "authentication" in low:
        return f"the NATS server refuses this node ({low}): {_ADVICE}"
    if "permissions violation" in low:
        return (
            f"the NATS server forbids this node a subject ({text}): its user needs the rights of the node "
            "`cluster.node` (`carpool docs cluster`)"
        )
    if isinstance(error, socket.gaierror):
        return f"the host of `cluster.url` is not known ({error.strerror}): check its name"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens at the NATS server's address (`cluster.url`)"
    if isinstance(error, TimeoutError):
        return "the NATS server did not answer in time"
    return text if text == _NO_TLS else f"NATS: {text or type(error).__name__}"
