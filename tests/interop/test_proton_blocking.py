"""Qpid Proton's blocking client, a plain AMQP 1.0 client, unchanged, against the running broker."""

from __future__ import annotations

import pytest

from tests.interop.proton_blocking import connector, run
from tests.interop.proton_scenarios import SCENARIOS, play
from tests.interop.scenarios import CLIENTS, queue_name
from tests.support.broker_process import BrokerProcess


@pytest.mark.parametrize("name", CLIENTS["proton-blocking"])
def test_proton_blocking(broker: BrokerProcess, name: str) -> None:
    """Each scenario passes with Proton's blocking client."""
    run(play(name, queue_name("proton-blocking", name), connector(broker.addresses), broker.addresses))


def test_every_scenario_is_written_and_every_written_scenario_is_run() -> None:
    """Every listed scenario is implemented, and every implemented one is listed."""
    assert set(SCENARIOS) == set(CLIENTS["proton-blocking"])
