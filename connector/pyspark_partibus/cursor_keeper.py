"""Keeps the broker's cursor, and perhaps its queue, up with what a query has committed."""

from __future__ import annotations

import logging
import time

from pyspark_partibus.client.operations import CURSOR_NOT_FOUND, CURSOR_OWNED, Node
from pyspark_partibus.data_loss import report_loss
from pyspark_partibus.errors import OptionError, Refused, Unavailable
from pyspark_partibus.offsets import FIRST, Offset, Positions
from pyspark_partibus.options import SourceOptions

PAUSE_S = 10.0
"""For how long nothing is settled after a failure, so that planning does not wait for a partition that is
down."""
_log = logging.getLogger("pyspark_partibus")


class CursorKeeper:
    """Settles for one query. The cursor is made with the first batch that is settled, so that a query that
    fails before owns nothing."""

    def __init__(self, node: Node, options: SourceOptions) -> None:
        self._node, self._options = node, options
        self._settled: tuple[str, Positions] | None = None
        """The generation and the positions that were settled last."""
        self._rests_until = 0.0

    def check_before_first_batch(self) -> None:
        """Refuse to begin a query whose cursor belongs to another one. Raises OptionError."""
        options = self._options
        if options.settle == "none" or options.cursor is None or options.cursor_takeover:
            return
        if self._node.cursor(options.cursor) is not None:
            raise _owned(options)

    def confirmed(self, generation: str) -> Positions | None:
        """Where the query's cursor is, as far as the broker has confirmed to this process; None if it has
        not."""
        if self._settled is None or self._settled[0] != generation or self._options.cursor is None:
            return None
        return self._settled[1]

    def settle(self, offset: Offset) -> None:
        """Note that everything before this offset is done with. Raises OptionError if the cursor is another
        query's, and DataLoss as `_check_cursor`.

        Does nothing for the beginning of a query, and for positions of an entity that is gone or that ends
        before them: at these numbers there are, or will be, messages that the query has not read."""
        if self._options.settle == "none" or offset.initial:
            return
        if self._settled == (offset.generation, offset.positions) or time.monotonic() < self._rests_until:
            return
        try:
            with self._node.trying_once():
                if self._is_still_true(offset):
                    self._settle(offset)
                else:
                    _log.warning(
                        "'%s' was created again or restored since it was read; nothing is settled",
                        self._options.address,
                    )
        except Unavailable as error:
            _log.warning("settling is put off: %s", error)
            self._rests_until = time.monotonic() + PAUSE_S
        except Refused as refused:
            raise (_owned(self._options) if refused.condition == CURSOR_OWNED else refused) from refused
        else:
            self._settled = offset.generation, offset.positions

    def _is_still_true(self, offset: Offset) -> bool:
        """Whether the entity is the one that was read, and still reaches as far."""
        heads = self._node.heads()
        return offset.generation == heads.generation and all(
            offset.positions.get(each, FIRST) <= head for each, head in heads.heads.items()
        )

    def _settle(self, offset: Offset) -> None:
        options, node = self._options, self._node
        complete = options.settle == "complete"
        if options.cursor is None:
            node.settle_through(offset.positions)
            return
        if self._settled is None:
            self._check_cursor(options.cursor, offset)
        if self._settled is None and options.cursor_takeover:
            node.create_cursor(options.cursor, offset.owner, offset.positions, take_over=True)
        try:
            node.advance_cursor(options.cursor, offset.owner, offset.positions, complete)
        except Refused as refused:
            if refused.condition != CURSOR_NOT_FOUND:
                raise
            node.create_cursor(options.cursor, offset.owner, offset.positions, take_over=False)
            node.advance_cursor(options.cursor, offset.owner, offset.positions, complete)

    def _check_cursor(self, name: str, offset: Offset) -> None:
        """Compare a checkpoint with the query's own cursor, which never passes what Spark has committed, and
        never goes back. Raises DataLoss if messages are gone unread, unless the user is content with what is
        there."""
        options, cursor = self._options, self._node.cursor(name)
        if cursor is None or (cursor.owner, cursor.generation) != (offset.owner, offset.generation):
            return
        at, where = cursor.positions, f"the cursor '{name}' of '{options.address}'"
        if (ahead := _beyond(at, offset.positions)) is not None:
            text = (
                f"the checkpoint is older than {where}, which is at {at[ahead]} in partition {ahead} and the "
                f"checkpoint at {offset.positions[ahead]}: was it restored from a copy? "
            )
            if options.settle == "complete":
                report_loss(options, f"{text}What is between the two was completed")
            else:
                _log.warning("%sIts messages are read again", text)
        elif offset.settled and (behind := _beyond(offset.settled, at)) is not None:
            report_loss(
                options,
                f"{where} has gone back to {at[behind]} in partition {behind}, and was at "
                f"{offset.settled[behind]}: the broker's data were restored from an older copy, or damaged. "
                "Messages that were sent since have numbers that the query has read already",
            )


def _beyond(positions: Positions, others: Positions) -> int | None:
    """A partition in which the position is beyond the other one; None if there is none."""
    return next((each for each, at in sorted(positions.items()) if at > others.get(each, at)), None)


def _owned(options: SourceOptions) -> OptionError:
    return OptionError(
        "cursor",
        f"'{options.cursor}' of '{options.address}' belongs to another query, or to a checkpoint that was "
        "deleted; use another name, delete the cursor, or take it over with option cursorTakeover=true",
    )
