"""What holds for every test: property tests draw the same examples in each run, unless HYPOTHESIS_PROFILE
says otherwise."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
