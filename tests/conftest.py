"""What holds for every test: generating examples may take as long as a busy machine needs.

`make test` runs several at once. So a test has its own directory, looks for processes by its own marks only,
takes a port that it must know from `tests.kit.ports`, and has the same name in every process: parameters come
in an order (no set), and what differs from run to run (a pid) has an id.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
