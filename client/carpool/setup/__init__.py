"""What other programs' MCP servers become in carpool, and how everything goes back (docs/setup.md).

Each file says what it owns. `disk`, `git`, `inventory`, `record`, `ours` and `back` read or write files; all
others decide, and are pure. The verb itself is `cli_setup`.
"""
