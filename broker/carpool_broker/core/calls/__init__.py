"""The table of open calls, and what a call may be part of.

Rounds of input, tasks, requests of servers, the audit. The files here know nothing of: how a name becomes a
server (`core/requests`).
"""
