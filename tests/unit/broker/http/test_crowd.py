"""Which connection leaves when there is no room."""

from __future__ import annotations

from broker.http.crowd import Crowd, Guest


def test_who_has_waited_longest_leaves_and_who_is_served_stays() -> None:
    ended: list[str] = []
    displaced: list[None] = []
    crowd = Crowd(3, 1, lambda: displaced.append(None))

    def enter(name: str) -> Guest:
        guest = crowd.enter("10.0.0.1", lambda: ended.append(name))
        assert guest is not None
        return guest

    first, second, third = enter("first"), enter("second"), enter("third")
    first.is_served()
    first.waits()  # again, and later than the others
    third.waits()  # it still waits
    assert not enter("fourth").spare
    assert ended == ["second"]
    second.leave()
    second.waits()
    third.is_served()
    enter("fifth").is_served()
    assert (ended, len(crowd), len(displaced)) == (["second", "first"], 3, 2)
    enter("sixth").is_served()
    assert ended == ["second", "first", "fourth"]
    seventh = enter("seventh")
    assert seventh.spare  # all others are being served
    assert enter("eighth").spare
    assert ended[-1] == "seventh"
    third.leave()
    third.leave()
    assert not enter("ninth").spare
    assert len(crowd) == 4
    for name in ("tenth", "eleventh"):
        enter(name).is_served()
    assert crowd.enter("10.0.0.2", lambda: None) is None


def test_a_crowd_displaces_its_own_network_and_no_other() -> None:
    ended: list[str] = []
    crowd = Crowd(4, 0, lambda: None)

    def enter(network: str, name: str) -> Guest:
        guest = crowd.enter(network, lambda: ended.append(name))
        assert guest is not None
        return guest

    friend = enter("10.0.0.1", "friend")
    for number in range(100):
        enter("10.0.0.2", f"crowd {number}")
    assert ended == [f"crowd {number}" for number in range(97)]
    friend.is_served()
    friend.waits()
    enter("10.0.0.3", "newcomer")
    enter("10.0.0.1", "another friend")
    assert ended[97:] == ["crowd 97", "crowd 98"]
    enter("10.0.0.2", "the crowd comes back")
    assert ended[99:] == ["friend"], "only those of the network that has most"
