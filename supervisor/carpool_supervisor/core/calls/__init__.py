"""Open calls: placement, waiting, leases, time-outs, requests of servers, the record for the next broker.

The files here know nothing of: how instances start and end (`core/pools`).
"""
