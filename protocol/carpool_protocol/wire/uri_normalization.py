"""Normalization of URIs: one spelling for all that a server's library may read as the same URI.

Owns the normal form in which rights, hooks and collisions compare URIs, and the same form of patterns that
people write. `NOTE://me@Internal:/a//%62` and `note://internal/a/b` have one normal form. Escapes are
resolved, scheme and host are in lower case (IDNA as `xn--…`), a user and a default port are dropped, slashes
are merged, and everything behind a NUL is cut. Letters that only some file systems treat as equal (upper and
lower case in a path, accents in two forms) stay different.

The labels of a host are encoded one by one, so a pattern is encoded between its wildcards too. A label that
is written as `xn--…` is never decoded: `xn--strae-oqa` is `straße` in newer standards, and not `strasse`.

A normal form is for comparison only and never sent to a server, because it joins URIs that some server may
distinguish. A URI that climbs (`file:///public/../secret`) has a normal form, but its text does not show
where it leads.

Pure. Refuses to know: rights, servers, listed URIs.
"""

import re
import stringprep
from bisect import bisect_left
from typing import Final
from unicodedata import ucd_3_2_0
from urllib.parse import unquote

MAX_LAYERS: Final = 8
"""How often escapes are resolved. A URI with more layers counts as climbing: no server does it more than
twice.
"""

MAX_CHARS: Final = 4096
"""A longer URI is its own normal form and counts as climbing: reading it would delay all others."""
MAX_HOST_CHARS: Final = 253
"""A longer host is no DNS name; it only becomes lower case."""
MAX_LABEL_CHARS: Final = 63
"""A label of a host that is longer when it is encoded is no DNS name; it stays in Unicode."""

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
_dots = str.maketrans("\u3002\uff0e\uff61", "...")
_wild_or_label = re.compile(r"\[!?\]?[^\]]*\]|(?<![^.@])[^.:@*?\[\]]+(?![^.:])")
"""A set of letters, or a whole label of a host."""
_case_folding: Final = stringprep.b3_exceptions
_first_mapping: Final = {**dict.fromkeys(stringprep.b1_set), **_case_folding}
"""The mappings of internationalized names (RFC 3454, B.1 and B.3) where they are not those of `str.lower`."""
_DIGITS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


def normalize(uri: str) -> str:
    """The normal form of `uri`, or of a URI template. The normal form of a normal form is itself."""
    for _ in range(MAX_LAYERS):
        if len(uri) > MAX_CHARS or _ordinary(uri):
            break
        before, uri = uri, _normalize_once(uri)
        if uri == before:
            break
    return uri


def cost_units(uri: str) -> int:
    """The cost of the normal form of `uri`, in units of `SlicedWork`: at most what the worst URI costs."""
    return 1 if _ordinary(uri) else 8 + min(len(uri), MAX_CHARS)


def normalize_pattern(pattern: str) -> str:
    """The normal form of a shell pattern over URIs: `HTTPS://Intranet:443/*` → `https://intranet/*`.

    A wildcard keeps its meaning; a `?` is one character and begins no query.
    """
    text = pattern
    for _ in range(MAX_LAYERS):
        before, text = text, text.translate(_dropped).strip(_AROUND)
        text = _escapes.sub(lambda found: _without_wildcards(unquote(found[0])), text)
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
        return f"{scheme}//{_normal_wild_authority(authority)}{_detour.sub('/', path)}"
    return _joined(scheme, _without_wildcards(_host_and_port(scheme, authority)), path)


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
    return normal_authority(normalize(uri))


def normal_authority(normal: str) -> str:
    """The same for a URI that is in the normal form already."""
    found = _head(normal)
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
    return _joined(scheme, None if host is None else _host_and_port(scheme, host), path) + query


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


def _host_and_port(scheme: str, authority: str) -> str:
    authority = authority.rpartition("@")[2]
    port = _port.search(authority)
    host, number = (authority[: port.start()], port[1].lstrip("0")) if port else (authority, "")
    host = _normal_host(host)
    if scheme == "file:" and host == "localhost":
        host = ""
    return f"{host}:{number}" if number and number != str(_DEFAULT_PORTS.get(scheme, "")) else host


def _without_wildcards(text: str) -> str:
    """A pattern that matches the text only: an escape or a wide letter (U+FF0A) may stand for a wildcard."""
    return _wild.sub(r"[\g<0>]", text)


def _normal_wild_authority(authority: str) -> str:
    """The authority of a pattern with wildcards. Its labels without wildcards are encoded."""
    authority = authority.lower()
    if authority.isascii():
        return authority
    return _wild_or_label.sub(
        lambda found: found[0] if found[0].startswith("[") else _without_wildcards(_encoded(found[0])),
        authority.translate(_dots),
    )


def _normal_host(host: str) -> str:
    host = host.lower()
    if not host.isascii() and len(host) <= MAX_HOST_CHARS:
        host = ".".join(map(_encoded, host.translate(_dots).split(".")))
    return host.removesuffix(".")


def _encoded(label: str) -> str:
    """The label in lower case as `xn--…`: what the codec `idna` makes of it, at a bounded price.

    That codec reads nine tables for each letter. It also refuses some letters and mixed directions, which no
    DNS name has; a label of them is encoded here like any other.
    """
    if label.isascii():
        return label
    folded = ucd_3_2_0.normalize("NFKC", label.translate(_first_mapping))
    if len(folded) <= 2 * MAX_LABEL_CHARS:
        folded = ucd_3_2_0.normalize("NFKC", folded.lower().translate(_case_folding))
        if folded.isascii():
            if 0 < len(folded) <= MAX_LABEL_CHARS:
                return folded
        elif len(folded) <= MAX_LABEL_CHARS and not folded.startswith("xn--"):
            encoded = _punycode(folded)
            if len(encoded) <= MAX_LABEL_CHARS - len("xn--"):
                return "xn--" + encoded
    return label.casefold()


def _punycode(label: str) -> str:
    """What the codec `punycode` makes of the label (RFC 3492), or its beginning if it is too long.

    The time of that codec grows with the square of the length.
    """
    places = [place for place, letter in enumerate(label) if letter.isascii()]
    digits = [label[place] for place in places]
    if digits:
        digits.append("-")
    code, rank, bias, damping = 0x80, 0, 72, 700
    for letter, place in sorted((ord(it), place) for place, it in enumerate(label) if not it.isascii()):
        if len(digits) > MAX_LABEL_CHARS:
            break
        delta = (letter - code) * (len(places) + 1) - rank
        code, rank = letter, bisect_left(places, place)
        delta += rank
        places.insert(rank, place)
        rank += 1
        rest, threshold = delta, 36 - bias
        while rest >= (least := 1 if threshold < 1 else min(threshold, 26)):
            rest, digit = divmod(rest - least, 36 - least)
            digits.append(_DIGITS[least + digit])
            threshold += 36
        digits.append(_DIGITS[rest])
        delta //= damping
        delta += delta // len(places)
        bias, damping = 0, 2
        while delta > 455:
            delta //= 35
            bias += 36
        bias += 36 * delta // (delta + 38)
    return "".join(digits)
