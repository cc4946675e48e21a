"""The release of carpool that this code is.

Owns the one place of the version: the build reads it here. The package's metadata say the same, but to read
them takes longer than an interpreter takes to start. Imports nothing.
"""

RELEASE = "0.1.0"
