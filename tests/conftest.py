"""What holds for every test: property tests draw the same examples in each run, whatever other tests run with
them, unless HYPOTHESIS_PROFILE says otherwise, and no example has a deadline; when tests run side by side, as
`make test` does, those that share a broker or a Spark stay together.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
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

TESTS = Path(__file__).parent
TOGETHER = {"connector", "hostile"}
"""Folders whose tests run one after the other in one process: one Spark is enough for a machine, and later
attacks meet whatever earlier ones leave behind. Elsewhere, the tests of a file do."""


@pytest.hookimpl(tryfirst=True)  # before xdist writes the groups into the names of the tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests belong together when several processes share them (`--dist loadgroup`)."""
    for item in items:
        path = item.path.relative_to(TESTS)
        item.add_marker(pytest.mark.xdist_group(path.parts[0] if path.parts[0] in TOGETHER else str(path)))
