"""`carpool setup`: takes over the MCP servers of other programs, and gives them back (docs/setup.md).

`inventory`, `git`, `file_io`, `carpool_files`, `run_record` and `undo_run` read or write files, and
`entry_environment` looks at directories; all others decide, and are pure. The verb itself is `cli.setup`. The
README of this folder says where to start.
"""
