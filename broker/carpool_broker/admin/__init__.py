"""Handlers of the requests of `carpool` verbs and of `/health`.

The files here own no state of calls and sessions: they ask the core for it.
"""
