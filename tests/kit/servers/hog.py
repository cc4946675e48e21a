# mypy: ignore-errors
"""`hog.py [MIB]` holds so many MiB from the start; `grow(mib)` takes more. At most 512 in all."""

import sys

from speak import serve, text

held = [bytearray(b"x" * (int(each) << 20)) for each in sys.argv[1:2]]


def call(name, arguments, request):
    total = sum(map(len, held)) >> 20
    held.append(bytearray(b"x" * (min(arguments.get("mib", 16), 512 - total) << 20)))
    return text(str(sum(map(len, held)) >> 20))


serve({"grow": "Takes memory."}, call)
