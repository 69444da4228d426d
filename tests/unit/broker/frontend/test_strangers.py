"""Which client without a credential gives way to another one."""

from __future__ import annotations

import random

import pytest

from broker.frontend.strangers import PROVING_S, Strangers, network_of


class Stranger:
    def __init__(self, network: str) -> None:
        self.network = network


def came(strangers: Strangers[Stranger], network: str, count: int, now_s: float = 0.0) -> list[Stranger]:
    """Clients that come from one network."""
    clients = [Stranger(network) for _ in range(count)]
    for client in clients:
        strangers.add(client, now_s)
    return clients


def test_the_first_of_the_network_with_most_gives_way_at_once() -> None:
    strangers: Strangers[Stranger] = Strangers()
    own = came(strangers, "10.0.0.1", 1)
    crowd = came(strangers, "10.0.0.2", 4)
    assert strangers.take_place_of("10.0.0.1", 0.0) is crowd[0]
    assert strangers.take_place_of("10.0.0.3", 0.0) is crowd[1]
    assert strangers.take_place_of("10.0.0.1", 0.0) is None, "2 would be as many as the crowd has"
    assert strangers.take_place_of("10.0.0.3", 0.0) is crowd[2]
    assert strangers.take_place_of("10.0.0.3", 0.0) is None, "nobody gives way to one that is like it"
    assert len(strangers) == 2
    strangers.discard(own[0])
    strangers.discard(crowd[3])
    strangers.discard(crowd[3])
    assert len(strangers) == 0 and strangers.take_place_of("10.0.0.3", 9.0) is None


def test_if_one_has_to_go_it_is_the_first_of_the_network_with_most_once_it_has_had_the_time() -> None:
    strangers: Strangers[Stranger] = Strangers()
    assert strangers.take_overdue(9.0) is None
    came(strangers, "10.0.0.1", 1)
    crowd = came(strangers, "10.0.0.2", 2, 1.0)
    assert strangers.take_overdue(1.0 + PROVING_S - 0.001) is None
    assert strangers.take_overdue(1.0 + PROVING_S) is crowd[0] and len(strangers) == 2


def test_a_crowd_does_not_displace_others_nor_its_own_at_once() -> None:
    strangers: Strangers[Stranger] = Strangers()
    came(strangers, "10.0.0.1", 1)
    came(strangers, "10.0.0.2", 4)
    assert strangers.take_place_of("10.0.0.2", PROVING_S - 0.001) is None


def test_who_has_had_the_time_gives_way_to_its_own_network() -> None:
    strangers: Strangers[Stranger] = Strangers()
    came(strangers, "10.0.0.1", 1, 0.0)
    crowd = came(strangers, "10.0.0.2", 2, 10.0) + came(strangers, "10.0.0.2", 2, 10.5)
    strangers.add(crowd[0], 11.0)  # keeps its time
    now_s = 10.0 + PROVING_S
    assert strangers.take_place_of("10.0.0.2", now_s) is crowd[0]
    assert strangers.take_place_of("10.0.0.2", now_s) is crowd[1]
    assert strangers.take_place_of("10.0.0.2", now_s) is None


def test_anybody_gives_way_to_a_client_with_a_credential() -> None:
    strangers: Strangers[Stranger] = Strangers()
    (alone,) = came(strangers, "10.0.0.1", 1)
    crowd = came(strangers, "10.0.0.2", 2)
    assert strangers.take_place_of("10.0.0.2", 0.0) is None
    assert strangers.take_place_of("10.0.0.2", 0.0, proven=True) is crowd[0]
    assert strangers.take_place_of("10.0.0.1", 0.0, proven=True) is alone


def test_the_counts_are_those_of_the_networks() -> None:
    """Compared with a count of all strangers at each step."""
    rng = random.Random(13)
    strangers: Strangers[Stranger] = Strangers()
    present: list[Stranger] = []
    networks = [f"10.0.0.{number}" for number in range(5)]
    for now_s in range(2_000):
        if rng.random() < 0.5 or not present:
            present += came(strangers, rng.choice(networks), rng.choice((1, 1, 3)), float(now_s))
        else:
            strangers.discard(present.pop(rng.randrange(len(present))))
        counts = {each: sum(client.network == each for client in present) for each in networks}
        newcomer = rng.choice(networks)
        left = strangers.take_place_of(newcomer, -1.0)
        if left is None:
            assert max(counts.values()) < counts[newcomer] + 2
        else:
            assert counts[left.network] == max(counts.values()) >= counts[newcomer] + 2
            assert left is next(client for client in present if client.network == left.network)
            present.remove(left)
        assert len(strangers) == len(present)


@pytest.mark.parametrize(
    ("peername", "network"),
    [
        (("192.0.2.7", 5672), "192.0.2.7"),
        (("::ffff:192.0.2.7", 5672, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 5672, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 5672, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5672, 0, 2), "fe80::/64"),
        (None, ""),
        ("/run/socket", ""),
    ],
)
def test_a_network_is_an_address_or_half_of_one(peername: object, network: str) -> None:
    assert network_of(peername) == network
