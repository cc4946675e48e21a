"""Measuring carpool against a direct pipe and against the least that any broker must cost."""
