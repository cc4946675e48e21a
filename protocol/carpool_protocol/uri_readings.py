"""How else a server may read a URI, so that a right to resources is no matter of spelling.

Servers make of a URI what their libraries do: they take percent signs out, fold the scheme's case, merge
slashes, let a query go, cut at NUL, drop what `URL` of JavaScript drops (tabs, line ends, blanks around).
So a pattern that keeps something back has to know the same thing in each of these spellings. Where a URI
that climbs (`file:///public/../secret`) leads is in no text at all: some servers walk it, some count the host
as a directory, some follow links first.

Owns those spellings. They are more than any one server reads: what they are for is to deny. Letters that only
some file systems take for each other (cases, accents in two forms) are not among them.

Pure. Knows nothing of: rights, servers, patterns.
"""

import re
from typing import Final
from urllib.parse import unquote

MAX_LAYERS: Final = 8
"""So often percent signs are taken out: no server does it more than twice."""

_SLASHES: Final = ("", "/", "//", "///")
# Nothing in these is folded, taken out, merged or cut by anybody: most URIs are like that.
_ordinary = re.compile(
    r"(?:file:///|(?!file:)[a-z][a-z0-9+.-]*://[^A-Z%\\?#\x00-\x20/.][^A-Z%\\?#\x00-\x20/]*/)"
    r"[^%\\?#\x00-\x20/.][^%\\?#\x00-\x20/]*(?:/[^%\\?#\x00-\x20/.][^%\\?#\x00-\x20/]*)*"
).fullmatch
_scheme = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:").match
_nowhere = re.compile(r"/(?:\.?/)+")
_climbing = re.compile(r"(?:^|[/:])\.\.(?=[/?#;\0]|$)").search
_cut = re.compile(r"[?#\0]")
_dropped = str.maketrans("", "", "\t\r\n")
_AROUND: Final = "".join(map(chr, range(0x21)))


def readings(uri: str) -> tuple[str, ...]:
    """`uri` as it is written, then every other spelling of it that a pattern may be written in."""
    if _ordinary(uri):
        return (uri,)
    bare = _bare(uri)
    found = _scheme(bare)
    scheme = found[0].lower() if found else ""
    path = _nowhere.sub("/", "/" + bare[len(scheme) :])[1:]
    host, slash, rest = path.partition("/")
    paths = [path, host.lower() + slash + rest]
    if scheme == "file:" and host.lower() == "localhost":
        paths.append(rest)
    paths += [_cut.split(each, maxsplit=1)[0] for each in paths]
    paths += [each.rstrip("/") for each in paths]
    spelled = (scheme + slashes + each for each in dict.fromkeys(paths) for slashes in _SLASHES)
    return tuple(dict.fromkeys((uri, *spelled)))


def climbs(uri: str) -> bool:
    """Whether it may lead out of what its text begins with."""
    return not _ordinary(uri) and _climbing(_bare(uri)) is not None


def _bare(uri: str) -> str:
    """Without escapes of any kind, and with one kind of slash."""
    for _ in range(MAX_LAYERS):
        before, uri = uri, unquote(uri.translate(_dropped).strip(_AROUND))
        if uri == before:
            break
    return uri.replace("\\", "/")
