"""What agents have subscribed to: resources, log levels, listen streams.

The files here know nothing of: how a notification is written.
"""
