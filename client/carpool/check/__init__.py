"""The findings of `carpool check` and of the trust question in a configuration.

The files here know nothing of: how findings are printed.
"""
