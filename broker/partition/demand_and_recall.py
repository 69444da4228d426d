"""Tracks which clients wait for the messages of a subqueue, which hold some, and when to recall them. Pure;
knows nothing about messages.

*Order.* Clients with demand wait in a queue. The first one is granted up to its demand; if it wants more, it
moves to the end.

*Recall.* A message that was handed out may lie unseen in one connection's cache while another client waits in
vain. Three rules prevent that:

1. A client is *eager* from its latest `Demand` until it is given something. While an eager client waits and
   nothing is available, every other client that has unsettled messages granted since its last `Recall` is
   sent a `Recall`, but no second one before it answers `Recalled`.
2. Messages returned by `Recalled` go at once to the eager clients, latest `Demand` first: that client is the
   most likely to be still waiting. Any that remain are granted in the usual order, with the client that
   returned them last.
3. The withdrawal of an eager client waits for recalls under way, and for those that the cycle's limit has put
   off: the partition never says "nothing there" while a message may be on its way back.

No message circulates forever. A message moves between caches only for an eager client, which stops being
eager once it has the message. So between two `Demand` operations a message moves at most once per waiting
client, and standing demand alone moves nothing. No client starves either. A client that asks is eager, so
every cache is asked for its unseen messages, including those granted to others while the client waits. This
stops only when the client gets a message or clients have seen them all.

Invariants: every client in `_eager` waits. `_recallable` holds exactly the holders with leases granted since
their last recall and no recall under way. `_awaited` holds the holders with a recall under way that may still
return something.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from broker.identifiers import ClientId
from broker.operations.receiving import BYTES_UNBOUNDED
from broker.partition.references import Holder, Lease


class Waiter:
    """A client with demand."""

    __slots__ = ("bytes", "client", "count")

    def __init__(self, client: ClientId) -> None:
        self.client = client
        self.count = 0
        self.bytes = 0
        """Bytes it may still be given under its latest demand; at 0 the demand is void."""


_NO_WAITERS: OrderedDict[ClientId, Waiter] = OrderedDict()
_NO_HOLDERS: dict[ClientId, Holder] = {}
"""Shared by the books of subqueues that no client has asked for, such as most dead-letter queues. They stay
empty."""


class DemandBook:
    """Waiters and holders of one subqueue. Owned by the partition's state machine."""

    __slots__ = ("_awaited", "_eager", "_gone", "_holders", "_leaving", "_recallable", "_waiting")

    def __init__(self) -> None:
        self._waiting: OrderedDict[ClientId, Waiter] = _NO_WAITERS
        """In the order in which they are given messages."""
        self._eager: dict[ClientId, Waiter] = _NO_WAITERS
        """In the order of their latest demand."""
        self._leaving: dict[ClientId, Waiter] = _NO_WAITERS
        """Clients that have withdrawn and may still get something: recalls are under way or can begin, or
        this cycle had nothing left to give them."""
        self._holders: dict[ClientId, Holder] = _NO_HOLDERS
        self._recallable: dict[ClientId, Holder] = _NO_HOLDERS
        self._awaited: dict[ClientId, Holder] = _NO_HOLDERS
        self._gone: list[ClientId] = []
        """Clients that were leaving and had their demand met."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def is_empty(self) -> bool:
        """No client waits, or has to be told that its withdrawal is complete."""
        return not (self._waiting or self._leaving or self._gone)

    @property
    def has_leaving(self) -> bool:
        """Some client has withdrawn, and is still to be told that this is complete."""
        return bool(self._leaving or self._gone)

    @property
    def is_held(self) -> bool:
        """Some client holds messages that can be recalled, or has a recall under way."""
        return bool(self._holders)

    def has_others(self, client: ClientId) -> bool:
        """Whether messages can be recalled from other clients, or are on their way back."""
        return any(other != client for holders in (self._recallable, self._awaited) for other in holders)

    # --- demand ---------------------------------------------------------------------------------------------

    def ask(self, client: ClientId, count: int, bytes_max: int = BYTES_UNBOUNDED) -> None:
        """Raise a client's demand by `count` messages. The demand ends early once they reach `bytes_max`
        bytes."""
        if self._waiting is _NO_WAITERS:
            self._waiting, self._eager, self._leaving = OrderedDict(), {}, {}
        waiter = self._waiting.get(client)
        if waiter is None:
            waiter = self._waiting[client] = Waiter(client)
        assert client not in self._leaving, "its withdrawal is confirmed before it asks again"
        waiter.count += count
        waiter.bytes = max(bytes_max, 1)  # else handing out to it would never end
        self._eager.pop(client, None)
        self._eager[client] = waiter

    def waits(self, client: ClientId) -> bool:
        """The client has unmet demand."""
        return client in self._waiting

    def first(self) -> Waiter | None:
        """The next client to hand out to."""
        return next(iter(self._waiting.values()), None)

    def latest_but(self, client: ClientId) -> Waiter | None:
        """The eager waiter, other than this client, with the latest demand."""
        return next((waiter for waiter in reversed(self._eager.values()) if waiter.client != client), None)

    def ask_again(self, client: ClientId, count: int, size: int, bytes_left: int) -> None:
        """Restore a client's demand for `count` messages taken back from it, `size` bytes in total.

        `bytes_left`: bytes that its demand still allowed after the grant; used if the client no longer waits.
        """
        waiter = self._waiting.get(client)
        self.ask(client, count, size + (waiter.bytes if waiter is not None else bytes_left))

    def given(self, waiter: Waiter, count: int, size: int) -> int:
        """The waiter was given messages. If it wants more, it moves to the end. Returns how many
        messages of its demand became void because its bytes were used up."""
        waiter.count -= count
        waiter.bytes -= size
        assert waiter.count >= 0
        void = waiter.count if waiter.bytes <= 0 else 0
        waiter.count -= void
        self._eager.pop(waiter.client, None)
        if waiter.count:
            self.move_to_end(waiter.client)
            return 0
        self._waiting.pop(waiter.client)
        if self._leaving.pop(waiter.client, None):
            self._gone.append(waiter.client)
        return void

    def move_to_end(self, client: ClientId) -> None:
        """Move the client to the end of the queue."""
        if client in self._waiting:
            self._waiting.move_to_end(client)

    def withdraw(self, client: ClientId, *, is_owed: bool = False) -> bool:
        """End a client's demand. Returns False if it must wait for recalls under way, or, if `is_owed`, for
        messages that are available; `left` returns the client later."""
        waiter = self._waiting.get(client)
        if waiter is not None and (is_owed or self._is_worth_waiting(client)):
            self._leaving[client] = waiter
            return False
        self._forget_waiter(client)
        return True

    def is_leaving(self, client: ClientId) -> bool:
        """The client has withdrawn, but its withdrawal is not confirmed yet."""
        return client in self._leaving

    def leave(self, client: ClientId) -> None:
        """End the demand of a leaving client at once, whatever it may still get."""
        self._forget_waiter(client)

    def left(self, is_owed: Callable[[ClientId], bool]) -> list[ClientId]:
        """End the demand of leaving clients with nothing more to wait for, and return the clients whose
        withdrawal is complete. `is_owed`: whether a client is to be given available messages."""
        gone, self._gone = self._gone, []
        # Thousands may be leaving, and each cycle looks at all of them.
        all_wait = len(self._awaited) + len(self._recallable) > 1
        done = [
            client
            for client in self._leaving
            if not ((all_wait and client in self._eager) or is_owed(client) or self._is_worth_waiting(client))
        ]
        for client in done:
            self._forget_waiter(client)
        return gone + done

    def detach(self, client: ClientId) -> None:
        """Forget a client that has gone. The messages it holds stay locked, but cannot be recalled."""
        self._forget_waiter(client)
        holder = self._holders.pop(client, None)
        if holder is not None:
            self._recallable.pop(client, None)
            self._awaited.pop(client, None)
            for lease in holder.granted | holder.asked:
                lease.holder = None

    # --- holding --------------------------------------------------------------------------------------------

    def holder(self, client: ClientId) -> Holder:
        """The client's holder, created if it has none."""
        if self._holders is _NO_HOLDERS:
            self._holders, self._recallable, self._awaited = {}, {}, {}
        holder = self._holders.get(client)
        if holder is None:
            holder = self._holders[client] = Holder(client)
        return holder

    def granted(self, lease: Lease) -> None:
        """Add a new lease that can be recalled."""
        holder = lease.holder
        assert holder is not None
        holder.granted.add(lease)
        if not holder.under_way:
            self._recallable[holder.client] = holder

    def renewed(self, old: Lease, new: Lease) -> None:
        """Messages moved to another lease by renewal. They stay recallable if they were."""
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

    @property
    def can_recall(self) -> bool:
        """Whether messages can be recalled for a client that is eager."""
        if not self._eager or not self._recallable:
            return False
        return len(self._eager) > 1 or any(client not in self._eager for client in self._recallable)

    def recall(self) -> Iterator[ClientId]:
        """Choose the clients to recall messages from, as nothing is available (rule 1). Marks each as having
        a recall under way when it is chosen; the others can be chosen later."""
        if not self._eager or not self._recallable:
            return
        for client, holder in list(self._recallable.items()):
            if len(self._eager) == 1 and client in self._eager:
                continue  # never recall from a client on its own behalf
            self._ask_back(holder)
            yield client

    def recall_from(self, lease: Lease) -> ClientId | None:
        """Recall the messages of the client that holds this lease, whoever waits. Returns None if they cannot
        be recalled, or a recall is under way."""
        holder = lease.holder
        if holder is None or holder.client not in self._recallable:
            return None
        self._ask_back(holder)
        return holder.client

    def _ask_back(self, holder: Holder) -> None:
        del self._recallable[holder.client]
        holder.asked, holder.granted, holder.under_way = holder.granted, set(), True
        self._awaited[holder.client] = holder

    def recalled(self, client: ClientId) -> None:
        """The client has answered. It kept only messages that were delivered, and returned the rest."""
        holder = self._holders.get(client)
        if holder is None or not holder.under_way:
            return  # the recall predates a restart, or there was none
        for lease in holder.asked:
            lease.holder = None
        holder.asked, holder.under_way = set(), False
        self._awaited.pop(client, None)
        if holder.granted:
            self._recallable[client] = holder
        else:
            del self._holders[client]

    def clients(self) -> set[ClientId]:
        """Those that wait, or hold messages that can be recalled."""
        return {*self._waiting, *self._holders}

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

    def _is_worth_waiting(self, client: ClientId) -> bool:
        """Whether a client has been given nothing yet, and recalls are under way or can begin."""
        return client in self._eager and any(
            other != client for holders in (self._awaited, self._recallable) for other in holders
        )

    def _forget_waiter(self, client: ClientId) -> None:
        self._waiting.pop(client, None)
        self._leaving.pop(client, None)
        self._eager.pop(client, None)
