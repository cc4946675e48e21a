# mypy: ignore-errors
"""A caller of an HTTP API in a run's namespace: `api_caller.py METHOD URL [BODY]` tells status and body."""

import sys
import urllib.error
import urllib.request

method, url, *body = sys.argv[1:]
request = urllib.request.Request(url, method=method, headers={"Content-Type": "application/json"})
request.data = body[0].encode() if body else None
try:
    with urllib.request.urlopen(request, timeout=150) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as refused:
    print(refused.code, refused.read().decode())
