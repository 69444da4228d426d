"""The engine keeps nothing of messages, links and connections that have ended, and frees large amounts in
parts."""

from __future__ import annotations

import gc
import threading
from collections import deque

from protocol.codec import UInt
from protocol.events import (
    DeliveriesUpdated,
    LinkAttached,
    MessagesReceived,
)
from protocol.link_table import FREED_AT_ONCE
from protocol.proton_values import lib
from tests.support import raw_amqp as raw
from tests.support.engine_frames import REFUSAL, detach, disposition, tags, transfer
from tests.support.engine_peer import EnginePeer, message, of, only
from tests.support.memory_use import grows_by_less_than


def test_what_is_sent_on_a_link_that_we_have_closed_is_thrown_away(peer: EnginePeer) -> None:
    link = peer.sender()
    peer.engine.close_link(link, REFUSAL)
    with grows_by_less_than(20_000, "40 MB were sent"):
        for number in range(0, 2000, 50):
            assert peer.say(*(transfer(0, number + each, b"x" * 20_000) for each in range(50))) == []
            peer.hear()


def busy_connection() -> EnginePeer:
    """A connection with everything outstanding: unsettled both ways, partial, a batch begun, credit, links
    half gone."""
    peer = EnginePeer(idle_timeout_ms=10_000).open()
    sender, receiver, refused = peer.sender(0), peer.receiver(1), peer.sender(2)
    peer.say(
        *(transfer(0, number, b"x" * 1000) for number in range(10)),
        transfer(0, 10, b"half", batch=True, more=True),
    )
    peer.engine.send(receiver, tags(*range(10)), [message(b"x" * 1000)] * 10, False)
    peer.engine.close_link(refused, REFUSAL)
    peer.say(
        disposition(0, 3, raw.outcome(raw.ACCEPTED)),
        raw.frame(raw.ATTACH, raw.sender_attach(3, "queue")),
        detach(0),
    )
    assert not sender.gone
    return peer


def test_messages_and_links_of_every_fate_leave_no_memory_behind(peer: EnginePeer) -> None:
    def live(number: int) -> None:
        """Run through two links. One gets a settled message that is too large, then the peer detaches it; we
        close the other, and the peer answers."""
        peer.attach(raw.sender_attach(0, "queue"), max_message_bytes=10)
        peer.say(transfer(0, number, b"x" * 1_000, settled=True))
        peer.release(peer.say(detach(0)))
        closed = peer.attach(raw.sender_attach(1, "queue"))
        peer.engine.close_link(closed, REFUSAL)
        peer.hear()
        peer.say(detach(1))
        peer.hear()

    for number in range(200):
        live(number)
    with grows_by_less_than(2_000):
        for number in range(200, 5_000):
            live(number)


def test_settled_messages_that_are_too_large_leave_no_memory_behind(peer: EnginePeer) -> None:
    peer.sender(max_message_bytes=10)

    def refuse(first: int, count: int) -> None:
        for number in range(first, first + count):
            peer.say(transfer(0, number, b"x" * 20, settled=True))
            peer.hear()

    refuse(0, 2_000)
    with grows_by_less_than(2_000):
        refuse(2_000, 18_000)


def test_freeing_with_everything_outstanding_ends_the_links_and_can_be_done_twice() -> None:
    peer = busy_connection()
    links = peer.engine.links()
    peer.engine.free()
    peer.engine.free()
    assert links and all(link.gone for link in links) and peer.engine.links() == [] and peer.engine.finished
    assert all(link.freed for link in links), (
        "before their sessions, which proton takes long to free otherwise"
    )


def test_the_memory_of_a_connection_can_be_freed_later_in_another_thread() -> None:
    """Symptom: the end of a connection with 200,000 unsettled deliveries held the event loop for 170 ms."""
    peer = busy_connection()
    links, engine = peer.engine.links(), peer.engine
    assert engine.unsettled >= 10
    steps = engine.free_in_steps()
    assert engine.finished and engine.links() == [] and all(link.gone for link in links)
    assert engine.unsettled == 0 and not all(link.freed for link in links)
    thread = threading.Thread(target=lambda: deque(steps, 0))
    thread.start()
    thread.join(10)
    assert all(link.freed for link in links)
    assert list(engine.free_in_steps()) == []


def test_links_with_many_unsettled_deliveries_are_freed_after_different_writes(peer: EnginePeer) -> None:
    links = [peer.receiver(handle, credit=1_000) for handle in range(4)]
    for place, link in enumerate(links):
        numbers = range(600 * place, 600 * (place + 1))
        peer.engine.send(link, tags(*numbers), [message(b"x")] * 600, False)
    peer.hear()
    peer.release(peer.say(*(detach(handle) for handle in range(4))))
    freed = []
    while peer.engine.leftovers:
        peer.engine.output()
        freed.append(sum(link.freed for link in links))
    assert freed == [1, 2, 3, 4]


def test_thousands_of_connections_leave_no_memory_behind() -> None:
    def make(count: int) -> None:
        for _ in range(count):
            busy_connection().engine.free()

    make(300)  # fill pools and arenas first
    gc.collect()
    with grows_by_less_than(6_000, "2000 connections kept more than 3 KiB each"):
        make(2000)
        gc.collect()


def test_messages_in_and_out_leave_no_memory_behind(peer: EnginePeer) -> None:
    incoming, outgoing = peer.sender(0), peer.receiver(1, credit=0)

    def exchange(first: int, count: int) -> None:
        for number in range(first, first + count, 10):
            events = peer.say(*(transfer(0, number + each, b"x" * 500) for each in range(10)))
            peer.engine.accept(of(events, MessagesReceived)[0].deliveries)
            peer.engine.grant(incoming, 10)
            peer.say(raw.frame(raw.FLOW, raw.flow_fields(1, number, 10)))
            peer.engine.send(outgoing, tags(*range(number, number + 10)), [message(b"x" * 500)] * 10, False)
            peer.hear()
            event = only(
                peer.say(disposition(number, number + 9, raw.outcome(raw.ACCEPTED))), DeliveriesUpdated
            )
            peer.engine.settle(event.deliveries, event.outcome)
            peer.hear()

    exchange(0, 3000)
    with grows_by_less_than(3_000):
        exchange(3000, 10_000)


LINKS = 600
"""Three times as many links as one write frees."""


def with_links() -> EnginePeer:
    """A peer whose links are all attached."""
    peer = EnginePeer().open()
    attaches = [raw.frame(raw.ATTACH, raw.sender_attach(handle, "queue")) for handle in range(LINKS)]
    for event in of(peer.say(*attaches), LinkAttached):
        peer.engine.accept_link(event.link)
    peer.hear()
    return peer


def writes_until_all_is_given_back(peer: EnginePeer) -> int:
    writes = 0
    while peer.engine.leftovers:
        peer.engine.output()
        writes += 1
        assert writes < 10
    return writes


def test_the_memory_of_many_links_is_given_back_a_part_at_a_time() -> None:
    peer = with_links()
    detaches = [raw.frame(raw.DETACH, [UInt(handle), True]) for handle in range(LINKS)]
    half = LINKS // 2  # the engine takes some hundred at a time
    peer.release(peer.say(*detaches[:half]) + peer.say(*detaches[half:]))
    assert writes_until_all_is_given_back(peer) == 3 and peer.engine.link_count == 0


def test_the_memory_of_a_session_with_many_links_is_given_back_a_part_at_a_time() -> None:
    peer = with_links()
    peer.release(peer.say(raw.frame(raw.END, [])))
    assert raw.END in [frame.code for frame in peer.hear()], "the first write"
    assert writes_until_all_is_given_back(peer) == 2 and peer.engine.link_count == 0


def many_links(count: int) -> EnginePeer:
    """A connection on whose session the peer has attached many links."""
    peer = EnginePeer().open()
    events = peer.say(*(raw.frame(raw.ATTACH, raw.sender_attach(each, "queue")) for each in range(count)))
    assert len(of(events, LinkAttached)) == count
    return peer


def test_a_connection_with_many_links_is_freed_in_steps_and_leaves_no_memory_behind() -> None:
    def come_and_go() -> int:
        return sum(1 for _ in many_links(1_000).engine.free_in_steps())

    assert come_and_go() > 5
    with grows_by_less_than(3_000):  # a kilobyte or two for each link, if they stayed
        for _ in range(5):
            come_and_go()


def test_what_proton_notes_about_freed_links_is_dropped_with_each_write(peer: EnginePeer) -> None:
    """Symptom: the first read after the end of a session with 5,000 links took 42 ms, to drop what
    proton had noted about each of them."""
    for handle in range(2 * FREED_AT_ONCE + 1):
        peer.receiver(handle)
    peer.release(peer.say(raw.frame(raw.END, [])))
    writes = 0
    while writes == 0 or peer.engine.leftovers:
        peer.engine.output()
        assert not lib.pn_collector_peek(peer.engine._collector)
        writes += 1
    assert writes == 3


def test_the_engine_knows_how_many_deliveries_were_held_at_a_time(peer: EnginePeer) -> None:
    link = peer.receiver(credit=50)
    assert peer.engine.held_most == 0
    peer.engine.send(link, tags(*range(20)), [message(b"x")] * 20, False)
    assert peer.engine.held_most == 20
