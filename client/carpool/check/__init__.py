"""What `carpool check` and the trust question find in a configuration.

The files here know nothing of: how findings are printed.
"""
