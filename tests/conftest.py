"""What holds for every test: property tests draw the same examples in each run, whatever other tests run with
them, unless HYPOTHESIS_PROFILE says otherwise, and no example has a deadline."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# On a busy machine, any example may take long, and so may making it.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", patient, derandomize=True)
settings.register_profile("random", patient, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
if settings.get_current_profile_name() == "same":
    # Hypothesis also draws constants of the modules imported so far: other examples beside other tests.
    providers._get_local_constants = lambda: providers._local_constants
