"""`GET /health`: the state of the broker, its memory, and its entities."""

from __future__ import annotations

import json

from broker.entities.descriptions import QueueSettings
from tests.support.http_stack import HttpStack


async def test_health_tells_when_messages_are_refused_for_lack_of_memory(stack: HttpStack) -> None:
    for resident, state in ((1 << 20, "ok"), (1 << 31, "limited"), (1 << 20, "ok")):
        stack.resident[0] = resident
        stack.memory.look()
        status, text, _ = await stack.ask("GET", "/health", token=None)
        assert (status, json.loads(text)["memory"]) == (
            200,
            {"state": state, "used_bytes": resident, "mark_bytes": 1 << 30},
        )


async def test_health_names_each_entity_and_the_state_of_its_partitions(stack: HttpStack) -> None:
    await stack.namespace.create_entity("orders", QueueSettings(), 3)
    for number in range(3):
        stack.queue("orders").partition(number)
    stack.partition.health, stack.partition.available = "recovering", False
    status, text, _ = await stack.ask("GET", "/health", token=None)
    assert status == 200
    assert json.loads(text) == {
        "status": "healthy",
        "message": "Service is healthy.",
        "namespace": "sbemulatorns",
        "memory": {"state": "ok", "used_bytes": 0, "mark_bytes": 1 << 30},
        "data_folders": ["ok"],
        "partitions": {"closed": 0, "recovering": 1, "serving": 2},
        "damaged_entities": [],
        "entities": {
            "orders": {
                "availability": "Limited",
                "partitions": ["recovering", "serving", "serving"],
                "size_bytes_max": 3 << 30,
                "uncounted_partitions": [0],
            }
        },
    }


async def test_a_broker_that_does_not_serve_is_unhealthy_in_the_emulators_words(stack: HttpStack) -> None:
    stack.serving[0] = False
    status, text, _ = await stack.ask("GET", "/health", token=None)
    assert status == 503
    assert json.loads(text) == {
        "status": "unhealthy",
        "message": "Service not available. Please try after some time.",
    }
