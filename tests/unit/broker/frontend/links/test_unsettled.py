"""Finding settled messages in C is what Python says about each of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.frontend.links._unsettled import take
from protocol.links import Delivery


@pytest.mark.parametrize("seed", range(200))
def test_settled_deliveries_are_taken_out_and_grouped_by_partition(seed: int) -> None:
    chosen = random.Random(seed)
    unsettled: dict[Delivery, bytes] = {
        Delivery(number): chosen.choice((0, 1, 1, 513)).to_bytes(2, "big") + chosen.randbytes(14)
        for number in range(chosen.randrange(20))
    }
    asked = chosen.sample(list(unsettled), chosen.randrange(len(unsettled) + 1))
    asked += [Delivery(99), *asked[:1]]  # one that is unknown, and one that is reported twice
    chosen.shuffle(asked)
    left = dict(unsettled)
    expected: dict[int, tuple[list[Delivery], list[bytes]]] = {}
    for delivery in asked:
        token = left.pop(delivery, None)
        if token is not None:
            group = expected.setdefault(token[0] << 8 | token[1], ([], []))
            group[0].append(delivery)
            group[1].append(token)
    assert take(unsettled, asked) == expected
    assert unsettled == left


@pytest.mark.parametrize("arguments", [(), ({},), ({}, ()), ([], []), ({1: b"t"}, [1]), ({1: "token"}, [1])])
def test_anything_else_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        take(*arguments)
