"""The version of the attach line, alone in a file: the shim reads it and nothing else of the wire formats."""

ATTACH_VERSION = 1
"""Raised when a meaning changes. A broker refuses another number with a sentence that says what to do."""
