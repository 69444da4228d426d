"""The peer's bytes on their way to proton.

They are checked against the bounds (`limits.py`), corrected (`lenience.py`) and cut where a batch begins or
ends (`frames.py`). Bytes that proton does not take in this turn are kept for the next one.
"""

from __future__ import annotations

from protocol.events import ErrorCondition
from protocol.frames import BatchFrameFinder
from protocol.heavy_states import HeavyStates
from protocol.lenience import Lenience
from protocol.limits import Allowance

Piece = tuple[bytes, bool]
"""Bytes, and whether they end with a transfer of the batch format."""


class Intake:
    """The bytes from one connection's peer."""

    def __init__(self, lenience: Lenience) -> None:
        self._lenience = lenience
        self._finder = BatchFrameFinder()
        self._allowance: Allowance | None = None
        self._refusal: ErrorCondition | None = None
        self._kept: list[Piece] = []

    def restrict(self) -> None:
        """From now on, accept only what a peer needs to present credentials."""
        if self._allowance is None:
            self._allowance = Allowance(*self._lenience.take_back())
        elif self._allowance.is_lifted:
            self._allowance = Allowance(self._allowance.rest, 0)

    def lift_restriction(self) -> None:
        """Accept everything, because the peer has presented credentials."""
        if self._allowance is not None:
            self._allowance.lift()

    def take(self, data: bytes, sent: int = 0) -> list[Piece]:
        """Take bytes from the peer; gives the pieces to push now, in order. Kept pieces come first. `sent`:
        how many deliveries it got on this connection."""
        if self._refusal is not None:
            data = b""  # the refusal waits until the kept bytes are pushed; nothing follows it
        elif self._allowance is not None:
            data, self._refusal = self._allowance.take(data)
            if self._allowance.is_lifted:
                self._allowance = None
        lenience, pieces = self._lenience, self._kept
        lenience.wide.sent = sent
        self._kept = []
        if not data and self._finder.has_more and not pieces:
            pieces = self._finder.pieces(b"")
        elif data or (lenience.has_more and not pieces):
            pieces = pieces + self._finder.pieces(lenience.incoming(data))
        return pieces

    def keep(self, pieces: list[Piece]) -> None:
        """Keep the pieces that were not pushed, for the next `take`."""
        self._kept = pieces

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing is kept, checked or refused, so that the next byte begins a frame."""
        return (
            not self._kept
            and self._allowance is None
            and self._refusal is None
            and self._finder.is_between_frames
            and self._lenience.is_between_frames
        )

    @property
    def heavy_states(self) -> HeavyStates:
        """The states that proton has references to."""
        return self._lenience.wide.states

    def has_more_after(self, is_unread: bool) -> bool:
        """Whether something is left to be done when this turn ends. `is_unread`: some of what was pushed has
        not been read. States are forgotten once all of it is."""
        has_more = is_unread or self.has_more
        if not has_more:
            self.heavy_states.forget()
        return has_more

    @property
    def has_more(self) -> bool:
        """Whether pieces were kept, or are still to be made."""
        return bool(self._kept) or self._finder.has_more or self._lenience.has_more

    @property
    def refusal(self) -> ErrorCondition | None:
        """The error with which the rest of the stream is refused. None while earlier pieces wait to be
        pushed."""
        return None if self.has_more else self._refusal or self._finder.refusal or self._lenience.refusal
