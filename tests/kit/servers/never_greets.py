# mypy: ignore-errors
"""Reads everything and never says a word; ends at the end of its stdin."""

import sys

for _ in sys.stdin.buffer:
    pass
