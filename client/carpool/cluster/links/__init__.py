"""Links between nodes: NATS, and ZeroMQ over TCP with CURVE or over sockets of one machine.

A link carries frames to a node by name. It may lose frames, but neither changes nor repeats them, and those
of one sender come in order; all else is the channel's (`core.channel`). Each proves who sent a frame as far
as it can: by keys, or by what the NATS server permits its users.

Knows nothing of: what is in a frame.
"""
