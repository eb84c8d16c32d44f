"""What all tests share: Hypothesis without deadlines (kernels compile on first use).

`quick` is what `make test` runs; `pytest --hypothesis-profile=full` looks much further, `explore` shows the first
failure as it was found, without making it smaller. `HYPOTHESIS_PROFILE=ci`, as CI sets it, tries the same things in
every run: what fails there is the change that is tested, and what chance finds is found where somebody looks.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]
_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)

settings.register_profile("quick", deadline=None, max_examples=30, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", settings.get_profile("quick"), derandomize=True)
settings.register_profile("full", deadline=None, max_examples=500, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile(
    "explore", deadline=None, max_examples=100, phases=_FOUND, suppress_health_check=_SLOW_IS_FINE
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
