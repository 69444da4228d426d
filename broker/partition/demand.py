"""Who waits for the messages of a subqueue, who holds some, and when they are asked back. Pure; knows no
messages.

*Turns.* Clients with demand wait in a queue. The first one gets up to its demand; if it still wants more it
goes to the end.

*Recall.* A message that was handed out may lie unseen in a connection's cache while another client asks in
vain. So:

1. A waiter is *eager* from its latest `Demand` until it is given something. As long as an eager client waits
   and nothing is available, every other client that was granted messages since its last `Recall`, and has not
   settled them all, is sent one; never a second one before it answered `Recalled`.
2. What comes back by `Recalled` goes at once to the eager waiters, the latest `Demand` first: it is the one
   most likely to have a client behind it that still waits. What is left takes the usual turns, with the
   client that gave it back at their end.
3. A withdrawal waits for recalls under way if the client is eager: "nothing there" is never said while a
   message may be on its way back.

Why no message goes round for ever: a message moves from one cache to another only for an eager waiter, which
is not eager any more once it has it. So between two `Demand` operations a message moves at most once per
waiting client; standing demand alone moves nothing. Why nobody starves: whoever asks is eager, so every cache
is asked for what it holds unseen, also for what is granted to others while it waits; it stops only when a
message came, or every one was seen by a client.

Invariants: who is in `_eager` waits; `_recallable` are exactly the holders with something granted since their
last recall and no recall under way; `_awaited` are those under way from which something may still come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from broker.operations import BYTES_UNBOUNDED, ClientId
from broker.partition.references import Holder, Lease


class Waiter:
    """A client with demand."""

    __slots__ = ("bytes", "client", "count")

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.count = 0
        self.bytes = 0
        """How many bytes it may still be given, as its latest demand says; at 0 the demand is void."""


_NO_WAITERS: OrderedDict[ClientId, Waiter] = OrderedDict()
_NO_HOLDERS: dict[ClientId, Holder] = {}
"""For the books of subqueues that nobody has asked for: most dead-letter queues. Nothing is put into
these."""


class DemandBook:
    """Waiters and holders of one subqueue. Owned by the partition's state machine."""

    __slots__ = ("_awaited", "_eager", "_gone", "_holders", "_leaving", "_recallable", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[ClientId, Waiter] = _NO_WAITERS
        """In the order of their turns."""
        self._eager: dict[ClientId, Waiter] = _NO_WAITERS
        """In the order of their latest demand."""
        self._leaving: dict[ClientId, Waiter] = _NO_WAITERS
        """Those that have withdrawn, while recalls made for them are still under way."""
        self._holders: dict[ClientId, Holder] = _NO_HOLDERS
        self._recallable: dict[ClientId, Holder] = _NO_HOLDERS
        self._awaited: dict[ClientId, Holder] = _NO_HOLDERS
        self._gone: list[ClientId] = []
        """Clients that were leaving and got all they had asked for."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Nobody waits, and nobody is to be told that waiting is over."""
        return not (self._waiting or self._leaving or self._gone)

    @property
    def is_held(self) -> bool:
        """Somebody holds messages that can be recalled, or is being asked for them."""
        return bool(self._holders)

    # --- demand ---------------------------------------------------------------------------------------------

    def ask(self, client: ClientId, count: int, bytes_max: int = BYTES_UNBOUNDED) -> None:
        """Raise a client's demand by `count` messages. It ends early once they have `bytes_max` bytes."""
        if self._waiting is _NO_WAITERS:
            self._waiting, self._eager, self._leaving = OrderedDict(), {}, {}
        waiter = self._waiting.get(client)
        if waiter is None:
            waiter = self._waiting[client] = Waiter(client)
        assert client not in self._leaving, "its withdrawal is confirmed before it asks again"
        waiter.count += count
        waiter.bytes = max(
            bytes_max, 1
        )  # who waits may be given something: otherwise serving it would never end
        self._eager.pop(client, None)
        self._eager[client] = waiter

    def waits(self, client: ClientId) -> bool:
        """The client has demand that was not met."""
        return client in self._waiting

    def first(self) -> Waiter | None:
        """Whose turn it is."""
        return next(iter(self._waiting.values()), None)

    def latest_but(self, client: ClientId) -> Waiter | None:
        """The eager waiter, other than this client, that asked last."""
        return next((waiter for waiter in reversed(self._eager.values()) if waiter.client != client), None)

    def ask_again(self, client: ClientId, count: int, size: int, bytes_left: int) -> None:
        """Raise a client's demand by what was taken from it: `count` messages, of which `size` bytes were
        given.

        `bytes_left` is what it might still have been given then, for a client that does not wait any more.
        """
        waiter = self._waiting.get(client)
        self.ask(client, count, size + (waiter.bytes if waiter is not None else bytes_left))

    def served(self, waiter: Waiter, count: int, size: int) -> int:
        """The waiter was given messages, and its turn is over. Gives how many of its count are void because
        its bytes are used up."""
        waiter.count -= count
        waiter.bytes -= size
        assert waiter.count >= 0
        void = waiter.count if waiter.bytes <= 0 else 0
        waiter.count -= void
        self._eager.pop(waiter.client, None)
        if waiter.count:
            self.pass_turn(waiter.client)
            return 0
        self._waiting.pop(waiter.client)
        if self._leaving.pop(waiter.client, None):
            self._gone.append(waiter.client)
        return void

    def pass_turn(self, client: ClientId) -> None:
        """The client goes to the end of the turns."""
        if client in self._waiting:
            self._waiting.move_to_end(client)

    def withdraw(self, client: ClientId) -> bool:
        """End a client's demand. False if recalls under way must be waited for: then it is among `left`
        later."""
        waiter = self._waiting.get(client)
        if waiter is not None and client in self._eager and self._may_still_get(client):
            self._leaving[client] = waiter
            return False
        self._forget_waiter(client)
        return True

    def is_leaving(self, client: ClientId) -> bool:
        """The client has withdrawn, and was not told yet that it is done."""
        return client in self._leaving

    def leave(self, client: ClientId) -> None:
        """End the demand of a client that is leaving, whatever is under way."""
        self._forget_waiter(client)

    def left(self) -> list[ClientId]:
        """End the demand of those that are leaving and have nothing more to wait for."""
        gone, self._gone = self._gone, []
        for waiter in list(self._leaving.values()):
            client = waiter.client
            if client not in self._eager or not self._may_still_get(client):
                self._forget_waiter(client)
                gone.append(client)
        return gone

    def detach(self, client: ClientId) -> None:
        """The client is gone; what it holds stays locked, but cannot be recalled."""
        self._forget_waiter(client)
        holder = self._holders.pop(client, None)
        if holder is not None:
            self._recallable.pop(client, None)
            self._awaited.pop(client, None)
            for lease in holder.granted | holder.asked:
                lease.holder = None

    # --- holding --------------------------------------------------------------------------------------------

    def holder(self, client: ClientId) -> Holder:
        """The client as holder of what it is granted now."""
        if self._holders is _NO_HOLDERS:
            self._holders, self._recallable, self._awaited = {}, {}, {}
        holder = self._holders.get(client)
        if holder is None:
            holder = self._holders[client] = Holder(client)
        return holder

    def granted(self, lease: Lease) -> None:
        """A lease that can be recalled has begun."""
        holder = lease.holder
        assert holder is not None
        holder.granted.add(lease)
        if not holder.under_way:
            self._recallable[holder.client] = holder

    def renewed(self, old: Lease, new: Lease) -> None:
        """Messages of a lease have gone to another one; whether they can be recalled stays as it was."""
        holder = old.holder
        if holder is None:
            return
        if old in holder.granted:
            holder.granted.add(new)
        elif old in holder.asked:
            holder.asked.add(new)
        else:
            return
        new.holder = holder

    def ended(self, lease: Lease) -> None:
        """A lease holds nothing any more."""
        holder = lease.holder
        if holder is None:
            return
        holder.granted.discard(lease)
        holder.asked.discard(lease)
        if not holder.granted:
            self._recallable.pop(holder.client, None)
        if not holder.asked:
            self._awaited.pop(holder.client, None)
            if not holder.granted and not holder.under_way:
                self._holders.pop(holder.client, None)

    # --- recall ---------------------------------------------------------------------------------------------

    def recall(self) -> Iterator[ClientId]:
        """Nothing is available: mark and give the clients that are to be asked for what they hold (rule
        1)."""
        if not self._eager or not self._recallable:
            return
        for client, holder in list(self._recallable.items()):
            if len(self._eager) == 1 and client in self._eager:
                continue  # nobody is asked for the sake of itself
            del self._recallable[client]
            holder.asked, holder.granted, holder.under_way = holder.granted, set(), True
            self._awaited[client] = holder
            yield client

    def recalled(self, client: ClientId) -> None:
        """The client has answered: what it holds of what it was asked for was seen, or is back."""
        holder = self._holders.get(client)
        if holder is None or not holder.under_way:
            return  # after a restart, or one that nobody asked
        for lease in holder.asked:
            lease.holder = None
        holder.asked, holder.under_way = set(), False
        self._awaited.pop(client, None)
        if holder.granted:
            self._recallable[client] = holder
        else:
            del self._holders[client]

    def check(self) -> None:
        """Assert the invariants above."""
        assert not _NO_WAITERS and not _NO_HOLDERS
        assert all(client in self._waiting for client in self._eager)
        assert all(waiter.count > 0 for waiter in self._waiting.values())
        assert self._leaving.keys() <= self._waiting.keys()
        for client, holder in self._holders.items():
            assert holder.client == client
            assert all(lease.left > 0 and lease.holder is holder for lease in holder.granted | holder.asked)
            assert (client in self._recallable) == (bool(holder.granted) and not holder.under_way)
            assert (client in self._awaited) == bool(holder.asked)
            assert holder.under_way or not holder.asked
            assert holder.granted or holder.under_way
        assert self._recallable.keys() | self._awaited.keys() <= self._holders.keys()

    def _may_still_get(self, client: ClientId) -> bool:
        return any(other != client for other in self._awaited)

    def _forget_waiter(self, client: ClientId) -> None:
        self._waiting.pop(client, None)
        self._leaving.pop(client, None)
        self._eager.pop(client, None)
