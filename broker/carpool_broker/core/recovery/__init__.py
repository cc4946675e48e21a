"""What survives a broker's death: sessions that return, calls in the supervisor's record, a new supervisor.

The files here know nothing of: carriers and sockets.
"""
