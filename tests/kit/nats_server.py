"""A NATS server with a configuration of the test's own, users of it, and certificates."""

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import nkeys  # type: ignore[import-untyped] # it has no types
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kit.ports import free_port

LISTENS_S: Final = 10.0
JETSTREAM: Final = 'jetstream { store_dir: "store", max_file: 0, max_mem: 64M }\n'


class NatsServer:
    """One server. `config`: its text; paths in it are relative to `directory`."""

    def __init__(self, directory: Path, config: str, environ: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.log = directory / "nats.log"
        self._directory = directory
        self._environ = {**os.environ, **(environ or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.configure(config)

    def configure(self, config: str) -> None:
        """Write the configuration; `reload` makes a running server read it."""
        (self._directory / "nats.conf").write_text(config)

    def reload(self) -> None:
        """Have the server read its configuration again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def start(self) -> None:
        """Start it and wait until it listens."""
        binary = Path(sys.executable).parent / "nats-server"
        command = [str(binary), "-c", "nats.conf", "-a", "127.0.0.1", "-p", str(self.port), "-l", "nats.log"]
        self._process = subprocess.Popen(command, cwd=self._directory, env=self._environ)
        deadline = datetime.now(UTC) + timedelta(seconds=LISTENS_S)
        while datetime.now(UTC) < deadline:
            assert self._process.poll() is None, self.log.read_text()
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), LISTENS_S):
                return
        raise AssertionError(self.log.read_text())

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def nats_server(
    directory: Path, config: str, environ: Mapping[str, str] | None = None
) -> Iterator[NatsServer]:
    """Run a server with this configuration."""
    server = NatsServer(directory, config, environ)
    try:
        server.start()
        yield server
    finally:
        server.stop()


# --- certificates --------------------------------------------------------------------------------------


class Issuer:
    """A certificate authority of a test. `file`: its own certificate."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._build(self._name, self._key.public_key(), 365, is_ca=True).sign(
            self._key, hashes.SHA256()
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *hosts: str, days: int = 30) -> Path:
        """Write `NAME.crt` and `NAME.key` for these host names, valid for so many days; below zero: expired.
        Returns the certificate's path.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._build(subject, key.public_key(), days, is_ca=False)
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        path = self._directory / f"{name}.crt"
        certificate = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        path.with_suffix(".key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        path.with_suffix(".key").chmod(0o600)
        return path

    def _build(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey, days: int, *, is_ca: bool
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=400))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )


# --- users by key --------------------------------------------------------------------------------------


class NatsKey(NamedTuple):
    """A key pair of NATS: the seed, and the public key."""

    seed: str
    public: str


def new_key(kind: int = nkeys.PREFIX_BYTE_USER) -> NatsKey:
    """Make a key pair; `kind`: a prefix byte of `nkeys`."""
    seed = nkeys.encode_seed(os.urandom(32), kind).decode()
    return NatsKey(seed, nkeys.from_seed(bytearray(seed.encode())).public_key.decode())


class NatsAccount:
    """An operator with one account, whose users have `.creds` files. `config`: of a server that trusts it."""

    def __init__(self) -> None:
        operator = new_key(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
        system = new_key(nkeys.PREFIX_BYTE_ACCOUNT).public
        limits = {
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True,
            "conn": -1, "leaf": -1, "mem_storage": 16 << 20, "disk_storage": 0, "streams": -1, "consumer": -1,
        }  # fmt: skip
        owner = _token(operator, operator.public, {"type": "operator", "version": 2})
        claims = {
            self._account.public: {"type": "account", "version": 2, "limits": limits},
            system: {"type": "account", "version": 2},
        }
        accounts = "".join(f"  {name}: {_token(operator, name, each)}\n" for name, each in claims.items())
        self.config = (
            f"operator: {owner}\nsystem_account: {system}\nresolver: MEMORY\n"
            f"resolver_preload: {{\n{accounts}}}\n"
        )

    def credentials(self, path: Path, *, expires_s: float | None = None) -> Path:
        """Write the `.creds` file of a new user, private. `expires_s`: its JWT ends after this time."""
        user = new_key()
        claims = {"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1}
        token = _token(self._account, user.public, claims, expires_s)
        return write_secret(
            path,
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n",
        )


def write_secret(path: Path, text: str) -> Path:
    """Write a file that its owner alone can read."""
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _token(
    signer: NatsKey, subject: str, claims: Mapping[str, object], expires_s: float | None = None
) -> str:
    now = datetime.now(UTC)
    body: dict[str, object] = {
        "jti": "test",
        "iat": int(now.timestamp()),
        "iss": signer.public,
        "name": "test",
        "sub": subject,
        "nats": claims,
    }
    if expires_s is not None:
        body["exp"] = int(now.timestamp() + expires_s)
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = ".".join(_base64(json.dumps(each).encode()) for each in (head, body))
    return f"{text}.{_base64(nkeys.from_seed(bytearray(signer.seed.encode())).sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
