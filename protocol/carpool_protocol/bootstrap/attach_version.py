"""Versions of the attach line, alone in a file: the shim reads them and nothing else of the wire formats."""

ATTACH_VERSION = 3
"""Raised when a meaning changes. A broker refuses another number with a sentence that says what to do."""

NAMING_VERSION = 4
"""The same, said by carriers that may name a workspace. A broker that knows nothing of those would run
servers in the wrong one; it refuses this number. Everybody else goes on with the lower one, so that an update
separates nobody who need not be.
"""
