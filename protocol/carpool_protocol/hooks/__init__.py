"""What hooks are asked and may answer, as lines.

The files here know nothing of: when they are asked.
"""
