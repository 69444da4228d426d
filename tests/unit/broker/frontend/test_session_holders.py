"""Which link of a connection holds a session, found by the session and by the link's name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.frontend.session_holders import SessionHolders

QUEUE: Any = object()
OTHER: Any = object()


class HoldingLink:
    def __init__(self, client: int, name: str, session_id: str, queue: Any, subqueue: str) -> None:
        self.link = SimpleNamespace(name=name, gone=False)
        self.queue, self.subqueue, self.session_id, self.client = queue, subqueue, session_id, client


def link(client: int, name: str, session_id: str, queue: Any = QUEUE, subqueue: str = "") -> Any:
    return HoldingLink(client, name, session_id, queue, subqueue)


def test_a_session_is_found_in_its_own_subqueue_only() -> None:
    holders = SessionHolders()
    holders.enter(link(1, "one", "a"))
    holders.enter(link(2, "two", "a", OTHER))
    holders.enter(link(3, "three", "a", QUEUE, "dead"))
    assert [holders.holding(QUEUE, "", "a"), holders.holding(OTHER, "", "a")] == [1, 2]
    assert holders.holding(QUEUE, "dead", "a") == 3 and holders.holding(OTHER, "dead", "a") is None
    assert holders.holding(QUEUE, "", "b") is None


def test_of_those_that_share_a_session_the_first_one_that_is_still_there_is_found() -> None:
    holders = SessionHolders()
    first, second = link(1, "one", "a"), link(2, "two", "a")
    holders.enter(first)
    holders.enter(second)
    assert holders.holding(QUEUE, "", "a") == 1
    first.link.gone = True
    assert holders.holding(QUEUE, "", "a") == 2
    second.link.gone = True
    assert holders.holding(QUEUE, "", "a") is None


def test_a_session_is_found_by_the_name_of_its_link() -> None:
    holders = SessionHolders()
    holders.enter(link(1, "same", "a"))
    holders.enter(link(2, "same", "b", OTHER))
    assert [holders.session_of(QUEUE, "same"), holders.session_of(OTHER, "same")] == ["a", "b"]
    assert holders.session_of(QUEUE, "other") is None
    assert holders.session_of(QUEUE, None) is None and holders.session_of(QUEUE, ["same"]) is None


def test_nothing_is_kept_of_links_that_have_gone() -> None:
    holders = SessionHolders()
    both = [link(1, "one", "a"), link(2, "one", "a")]
    for each in both:
        holders.enter(each)
    for each in [*both, link(3, "never entered", "a")]:
        holders.leave(each)
    assert holders.holding(QUEUE, "", "a") is None and holders.session_of(QUEUE, "one") is None
    assert not holders._by_session and not holders._by_name
