"""The error that every oracle of the simulated world raises.

Owns the class only. Knows nothing of: promises.
"""


class Violation(AssertionError):  # noqa: N818 - it is what it says
    """A promise of carpool's was broken."""
