"""Pairs of clients and subqueues, found from both sides."""

from __future__ import annotations

from broker.identifiers import ClientId
from broker.partition.waiting_clients import WaitingClients

A, B = ClientId(1), ClientId(2)


def test_a_client_is_found_once_in_each_subqueue_and_in_the_order_in_which_it_came() -> None:
    waiting = WaitingClients()
    for client, number in [(B, 7), (A, 7), (B, 7), (A, 3)]:
        waiting.add(client, number)
    assert list(waiting.numbers) == [7, 3]
    assert list(waiting.clients(7)) == [B, A] and list(waiting.clients(3)) == [A] and not waiting.clients(5)


def test_who_is_taken_out_of_a_subqueue_still_waits_in_the_others() -> None:
    waiting = WaitingClients()
    for client, number in [(A, 7), (B, 7), (A, 3), (A, 4)]:
        waiting.add(client, number)
    assert waiting.take(7) == [A, B] and waiting.take(7) == []
    assert list(waiting.numbers) == [3, 4] and waiting
    assert waiting.forget(B) == []
    assert waiting.forget(A) == [3, 4] and not waiting


def test_who_goes_is_forgotten_in_all_subqueues() -> None:
    waiting = WaitingClients()
    for client, number in [(A, 7), (B, 7), (A, 3)]:
        waiting.add(client, number)
    assert waiting.forget(A) == [7, 3] and waiting.forget(A) == []
    assert list(waiting.numbers) == [7] and list(waiting.clients(7)) == [B]
    waiting.add(A, 3)
    assert waiting.take(3) == [A]


def test_nothing_is_kept_of_those_that_were_taken_or_have_gone() -> None:
    waiting = WaitingClients()
    for number in range(5):
        waiting.add(A, number)
        waiting.add(B, number)
    for number in range(5):
        waiting.take(number)
    waiting.add(A, 1)
    waiting.forget(A)
    assert not waiting._by_client and not waiting._by_number
