"""Formats, names and errors that the processes of carpool share.

Imports nothing of the broker, the supervisor or the client. This file stays empty of imports: the stdio shim
passes through it and must stay small.
"""
