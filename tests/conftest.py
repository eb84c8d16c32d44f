"""What all tests share: Hypothesis without deadlines (kernels compile on first use)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("quick", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("quick")
