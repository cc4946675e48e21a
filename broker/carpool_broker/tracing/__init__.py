"""Export of traces to OpenTelemetry.

The files here know nothing of: which calls are traced, which spans a call has.
"""
