"""Normalization of URIs: one spelling for all that a server's library may read as the same URI.

Owns the normal form in which rights, hooks and collisions compare URIs, and the same form of patterns that
people write. `NOTE://me@Internal:/a//%62` and `note://internal/a/b` have one normal form. Escapes are
resolved, scheme and host are in lower case (IDNA), a user and a default port are dropped, slashes are merged,
and everything behind a NUL is cut. Letters that only some file systems treat as equal (upper and lower case
in a path, accents in two forms) stay different.

A normal form is for comparison only and never sent to a server, because it joins URIs that some server may
distinguish. A URI that climbs (`file:///public/../secret`) has a normal form, but its text does not show
where it leads.

Pure. Refuses to know: rights, servers, listed URIs.
"""

import re
from typing import Final
from urllib.parse import unquote

MAX_LAYERS: Final = 8
"""How often escapes are resolved. A URI with more layers counts as climbing: no server does it more than
twice.
"""

MAX_CHARS: Final = 4096
"""A longer URI is its own normal form and counts as climbing: reading it would delay all others."""
MAX_HOST_CHARS: Final = 255
"""A longer host is no DNS name; it only becomes lower case."""

_DEFAULT_PORTS: Final = {"ftp:": 21, "http:": 80, "https:": 443, "ws:": 80, "wss:": 443}
"""Schemes with default ports. Browsers also take the first segment after any slashes in these schemes for the
host.
"""

# Most URIs look like this and are their own normal form.
_ordinary = re.compile(
    r"(?:file:///|(?!file:)[a-z][a-z0-9+.-]*://[a-z0-9_{}-]+(?:\.[a-z0-9_{}-]+)*/)"
    r"[^%\\?#\x00-\x20/.][^%\\?#\x00-\x20/]*(?:/[^%\\?#\x00-\x20/.][^%\\?#\x00-\x20/]*)*"
).fullmatch
_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
_head = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://[^/?#]*)?").match
_detour = re.compile(r"/(?:\.?/)*(?:\.$)?")
_climbing = re.compile(r"(?:^|[/:])\.\.(?=[/?#;\0]|$)").search
_query = re.compile(r"\{[^{}]*\}|([?#].*)", re.DOTALL)
_port = re.compile(r":([0-9]*)$")
_scheme_pattern = re.compile(r"[A-Za-z0-9+.*?\[\]!-]+").fullmatch
_dropped = str.maketrans("", "", "\t\r\n")
_AROUND: Final = "".join(map(chr, range(0x21)))
_escapes = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_wild = re.compile(r"[*?\[]")


def normalize(uri: str) -> str:
    """The normal form of `uri`, or of a URI template. The normal form of a normal form is itself."""
    for _ in range(MAX_LAYERS):
        if len(uri) > MAX_CHARS or _ordinary(uri):
            break
        before, uri = uri, _normalize_once(uri)
        if uri == before:
            break
    return uri


def normalize_pattern(pattern: str) -> str:
    """The normal form of a shell pattern over URIs: `HTTPS://Intranet:443/*` → `https://intranet/*`.

    A wildcard keeps its meaning; a `?` is one character and begins no query.
    """
    text = pattern
    for _ in range(MAX_LAYERS):
        before, text = text, text.translate(_dropped).strip(_AROUND)
        text = _escapes.sub(lambda found: _wild.sub(r"[\g<0>]", unquote(found[0])), text)
        if text == before:
            break
    text = text.partition("\0")[0].strip(_AROUND).replace("\\", "/")
    scheme, mark, rest = text.partition("://")
    if mark and _scheme_pattern(scheme):
        scheme, rest = f"{scheme.lower()}:", f"//{rest}"
    elif found := _scheme(text):
        scheme, rest = found[0].lower(), text[found.end() :]
    else:
        return text
    if _wild.match(rest):  # a wildcard directly behind the colon matches any form
        return scheme + rest
    authority, path = _split(scheme, rest)
    if authority is None:
        return _joined(scheme, None, path)
    if _wild.search(authority):
        return f"{scheme}//{authority.lower()}{_detour.sub('/', path)}"
    return _joined(scheme, _normal_authority(scheme, authority), path)


def without_query(uri: str) -> tuple[str, ...]:
    """Normal forms of `uri`: the whole, without query and fragment, and also without its last slash.

    For rules that deny: a server may ignore any of these parts.
    """
    whole = normalize(uri)
    path = whole.removesuffix(_query_of(whole))
    return tuple(dict.fromkeys((whole, path, path.rstrip("/"))))


def climbs(uri: str) -> bool:
    """True if `uri` may lead out of the place that its text begins with."""
    if len(uri) > MAX_CHARS:
        return True
    if _ordinary(uri):
        return False
    text = _unescaped(uri)
    return _climbing(text) is not None or (text != unquote(text))


def authority(uri: str) -> str:
    """Scheme and authority in the normal form: `NOTE://me@internal/a` → `note://internal`, `note:a` →
    `note:`.
    """
    found = _head(normalize(uri))
    return found[0] if found else ""


def has_literal_authority(template: str) -> bool:
    """True if scheme and authority of a URI template are written out: of `note://a/{x}`, not of
    `note://{x}/a`.

    True for a URI without any expression.
    """
    text, brace, _ = template.partition("{")
    found = _head(text)
    return not brace or (found is not None and bool(scheme(text)) and found.end() < len(text))


def scheme(uri: str) -> str:
    """The scheme in lower case, with its colon; empty if there is none."""
    return _scheme_of(uri).lower()


def with_plain_head(uri: str) -> str:
    """`uri` with scheme and authority in lower case and the rest as written."""
    found = _head(uri)
    return found[0].lower() + uri[found.end() :] if found else uri


def _normalize_once(uri: str) -> str:
    text = _unescaped(uri).partition("\0")[0].strip(_AROUND)
    scheme = _scheme_of(text)
    text = text[len(scheme) :]
    query = _query_of(text)
    text = text.removesuffix(query)
    scheme = scheme.lower()
    host, path = _split(scheme, text)
    return _joined(scheme, None if host is None else _normal_authority(scheme, host), path) + query


def _scheme_of(text: str) -> str:
    found = _scheme(text)
    return found[0] if found else ""


def _query_of(text: str) -> str:
    """Query and fragment with their mark. The `?` of an expression (`{?page}`) begins no query."""
    return next((found[1] for found in _query.finditer(text) if found[1]), "")


def _unescaped(uri: str) -> str:
    """The URI without escapes of any kind, and with one kind of slash."""
    for _ in range(MAX_LAYERS):
        before, uri = uri, unquote(uri.translate(_dropped).strip(_AROUND))
        if uri == before:
            break
    return uri.replace("\\", "/")


def _split(scheme: str, text: str) -> tuple[str | None, str]:
    """Authority and path of the part behind the scheme. The authority is None if there is none."""
    if scheme in _DEFAULT_PORTS:
        text = "//" + text.lstrip("/")
    elif scheme == "file:" and not text.startswith("//"):
        text = "///" + text.lstrip("/")
    if not text.startswith("//"):
        return None, text
    authority, slash, path = text[2:].partition("/")
    return authority, slash + path


def _joined(scheme: str, authority: str | None, path: str) -> str:
    path = _detour.sub("/", path)
    if authority is None:
        return scheme + path
    return f"{scheme}//{authority}{path or ('/' if scheme in _DEFAULT_PORTS else '')}"


def _normal_authority(scheme: str, authority: str) -> str:
    authority = authority.rpartition("@")[2]
    port = _port.search(authority)
    host, number = (authority[: port.start()], port[1].lstrip("0")) if port else (authority, "")
    host = _normal_host(host)
    if scheme == "file:" and host == "localhost":
        host = ""
    return f"{host}:{number}" if number and number != str(_DEFAULT_PORTS.get(scheme, "")) else host


def _normal_host(host: str) -> str:
    host = host.lower()
    if not host.isascii() and len(host) <= MAX_HOST_CHARS:
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            host = host.casefold()
    return host.removesuffix(".")
