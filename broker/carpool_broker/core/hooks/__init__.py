"""Where hooks have a say in a call, and their runs.

The files here know nothing of: processes of hooks (`hooks`).
"""
