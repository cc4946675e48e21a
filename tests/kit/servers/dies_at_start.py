# mypy: ignore-errors
"""Says on stderr what is missing and exits with 3 before it greets."""

import sys

print("dies_at_start: no configuration", file=sys.stderr)
print("dies_at_start: giving up", file=sys.stderr)
sys.exit(3)
