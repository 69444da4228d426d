"""The short run: the unchanged corpus, then a fixed number of mutations from a fixed seed. `make fuzz` runs
more."""

from __future__ import annotations

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS
from tests.fuzz.worker import corpus_of

SEED = 20_260_000
CASES = {
    "engine": 2_500,
    "broker": 600,
    "values": 10_000,
    "transactional": 2_000,
    "message": 10_000,
    "properties": 10_000,
    "batch": 8_000,
    "finder": 3_000,
    "large": 3_000,
    "lenience": 5_000,
    "sasl": 5_000,
}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_mutated_input_is_refused_or_understood_and_nothing_else(target: str) -> None:
    outcome = fuzz(target, SEED, count=len(corpus_of(target)) + CASES[target])
    assert outcome.cases == len(corpus_of(target)) + CASES[target]
