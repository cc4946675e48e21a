"""What people and agents touch: command line, shim, launcher, demo, bench.

This file stays empty of imports: the stdio shim passes through it and must stay small.
"""
