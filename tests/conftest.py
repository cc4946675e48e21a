"""What holds for every test: generating examples may take as long as a busy machine needs, and the garbage
collector passes over what collecting the tests has made.

`make test` runs several at once. So a test has its own directory, looks for processes by its own marks only,
takes a port that it must know from `tests.kit.ports`, and has the same name in every process: parameters come
in an order (no set), and what differs from run to run (a pid) has an id.
"""

import gc
import os

from hypothesis import HealthCheck, settings

# Collecting six thousand tests makes millions of objects that stay: the garbage collector went through them
# again and again, for two fifths of the time that collecting took, and in every test afterwards.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on the garbage collector sees what tests make, and no longer the tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


# No test runs the login shell of whoever runs the tests: this one is none that carpool asks.
os.environ["SHELL"] = "/bin/false"

settings.register_profile(
    "busy machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
