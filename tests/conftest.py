"""What holds for every test: generating examples may take as long as a busy machine needs."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy machine", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy machine")
