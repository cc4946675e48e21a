"""Counters of calls: one record for each agent, server and tool (docs/counters.md).

The files here know nothing of: open calls and sessions (`core/calls/call_counting` does).
"""
