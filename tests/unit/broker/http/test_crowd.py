"""Which connection leaves when there is no room."""

from __future__ import annotations

from broker.http.crowd import Crowd, Guest


def test_who_has_waited_longest_leaves_and_who_is_served_stays() -> None:
    ended: list[str] = []
    displaced: list[None] = []
    crowd = Crowd(3, 1, lambda: displaced.append(None))

    def enter(name: str) -> Guest:
        guest = crowd.enter(lambda: ended.append(name))
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
    assert crowd.enter(lambda: None) is None
